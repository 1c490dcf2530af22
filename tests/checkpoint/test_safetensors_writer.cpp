#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/engine/safetensors.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace zero {
namespace {

using support::read_bytes;
using support::TemporaryFolder;

std::vector<SafetensorsWriter::Tensor> three_tensors() {
  return {{"half", DType::kF16, Shape{5}},
          {"b.weight", DType::kF32, Shape{2, 5000}},
          {"brain", DType::kBF16, Shape{3}},
          {"a.weight", DType::kF32, Shape{}},
          {"nothing", DType::kF32, Shape{0, 3}}};
}

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

/// Writes all of three_tensors(), the large one in pieces of `piece` elements from the back.
void write_all(const std::string& path, std::int64_t piece) {
  SafetensorsWriter writer(path, three_tensors());
  const std::vector<float> large = counting(10'000);
  for (std::int64_t end = 10'000; end > 0; end -= std::min(piece, end)) {
    const std::int64_t begin = std::max<std::int64_t>(0, end - piece);
    writer.write("b.weight",
                 begin,
                 std::span(large).subspan(static_cast<std::size_t>(begin),
                                          static_cast<std::size_t>(end - begin)));
  }
  writer.write("half", 0, std::vector<float>{1.0F, 2.0F, 65504.0F, -1e-9F, 1e9F});
  writer.write("brain", 2, std::vector<float>{3.14159F});
  writer.write("brain", 0, std::vector<float>{1.0F, 2.0F});
  writer.write("a.weight", 0, std::vector<float>{7.0F});
  writer.finish();
}

std::vector<float> read(const SafetensorsReader& reader, const char* name) {
  std::vector<float> values(static_cast<std::size_t>(reader.entry(name).elems));
  reader.read(name, 0, values);
  return values;
}

TEST_CASE("safetensors writer: what is written is read back, each rounded once",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  write_all(folder / "x", 777);
  const SafetensorsReader reader(folder / "x");
  CHECK(reader.entries().size() == 5);
  CHECK(read(reader, "b.weight") == counting(10'000));
  CHECK(reader.entry("b.weight").shape == std::vector<std::int64_t>{2, 5000});
  CHECK(reader.entry("a.weight").shape.empty());
  CHECK(read(reader, "a.weight") == std::vector<float>{7.0F});
  CHECK(read(reader, "brain") == std::vector<float>{1.0F, 2.0F, 3.140625F});
  CHECK(read(reader, "half") ==
        std::vector<float>{1.0F, 2.0F, 65504.0F, -0.0F, std::numeric_limits<float>::infinity()});
}

TEST_CASE("safetensors writer: bytes do not depend on the order of writes",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  write_all(folder / "x", 10'000);
  write_all(folder / "y", 13);
  CHECK((read_bytes(folder / "x") == read_bytes(folder / "y")));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("safetensors writer: the header is padded, sorted and marked for PyTorch",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  write_all(folder / "x", 10'000);
  const std::string bytes = read_bytes(folder / "x");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  const std::string header = bytes.substr(8, length);
  CHECK(header.rfind(R"({"__metadata__":{"format":"pt"},"a.weight":)", 0) == 0);
  const std::vector<std::size_t> places = {header.find("a.weight"),
                                           header.find("b.weight"),
                                           header.find("nothing"),
                                           header.find("brain"),
                                           header.find("half")};
  CHECK(std::is_sorted(places.begin(), places.end()));
}

/// Header without padding, and data, of a file's bytes.
std::pair<std::string, std::string> parts_of(const std::string& bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  std::string header = bytes.substr(8, length);
  header.erase(header.find_last_not_of(' ') + 1);
  return {header, bytes.substr(8 + length)};
}

TEST_CASE("safetensors writer: weights written by the reference library come out byte for byte",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const std::string published = ZERO_TEST_DATA "/parity/final_fp32.safetensors";
  const SafetensorsReader reader(published);
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const auto& [name, entry] : reader.entries()) {
    tensors.push_back({name, DType::kF32, Shape(std::span(entry.shape))});
  }
  std::reverse(tensors.begin(), tensors.end());
  SafetensorsWriter writer(folder / "x", tensors);
  for (const auto& tensor : tensors) {
    writer.write(tensor.name, 0, read(reader, tensor.name.c_str()));
  }
  writer.finish();
  auto [header, data] = parts_of(read_bytes(folder / "x"));
  const auto [their_header, their_data] = parts_of(read_bytes(published));
  const std::string metadata = R"("__metadata__":{"format":"pt"},)";  // the only difference
  REQUIRE(header.find(metadata) == 1);
  header.erase(1, metadata.size());
  CHECK(header == their_header);
  CHECK((data == their_data));  // in brackets, so that a failure does not print it
}

TEST_CASE("safetensors writer: a file that was not finished leaves nothing, and keeps the old one",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  support::write_bytes(folder / "x", "old");
  {
    SafetensorsWriter writer(folder / "x", three_tensors());
    writer.write("brain", 0, std::vector<float>{1.0F, 2.0F});
    CHECK_THROWS_AS(writer.finish(), InternalError);
  }
  CHECK(read_bytes(folder / "x") == "old");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  write_all(folder / "x", 100);
  CHECK_NOTHROW(SafetensorsReader(folder / "x"));
}

TEST_CASE("safetensors writer: a folder that is not there and a full disk are IoErrors",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(SafetensorsWriter(folder / "no/x", three_tensors()), IoError);
  // 8 EiB fit on no disk; the message names what was needed.
  const std::vector<SafetensorsWriter::Tensor> huge = {
      {"huge", DType::kF32, Shape{std::int64_t{1} << 60}}};
  CHECK_THROWS_AS(SafetensorsWriter(folder / "x", huge), IoError);
  CHECK_THROWS_WITH(SafetensorsWriter(folder / "x", huge), Catch::Contains("46116860184273"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("safetensors writer: misuse is a broken invariant", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  const std::vector<SafetensorsWriter::Tensor> twice = {{"a", DType::kF32, Shape{1}},
                                                        {"a", DType::kF32, Shape{2}}};
  CHECK_THROWS_AS(SafetensorsWriter(folder / "x", twice), InternalError);
  SafetensorsWriter writer(folder / "x", three_tensors());
  CHECK_THROWS_AS(writer.write("c", 0, std::vector<float>(1)), InternalError);
  CHECK_THROWS_AS(writer.write("half", 4, std::vector<float>(2)), InternalError);
}

}  // namespace
}  // namespace zero
