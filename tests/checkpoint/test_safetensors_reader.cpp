#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/engine/safetensors.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace zero {
namespace {

using support::TemporaryFolder;
using support::write_bytes;

std::string prefix(std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string file_with(const std::string& header, std::size_t data_bytes) {
  return prefix(header.size()) + header + std::string(data_bytes, '\0');
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

const std::string kTwoFloats = tensor("F32", "[2]", "[0,8]");

/// Opens a file of these bytes.
void open(const std::string& bytes) {
  const TemporaryFolder folder;
  write_bytes(folder / "file.safetensors", bytes);
  const SafetensorsReader reader(folder / "file.safetensors");
}

TEST_CASE("safetensors: what the format allows is read", "[checkpoint][safetensors]") {
  CHECK_NOTHROW(open(file_with("{}", 0)));
  CHECK_NOTHROW(open(file_with(R"({"__metadata__":{"format":"pt"},"a":)" + kTwoFloats + "}", 8)));
  CHECK_NOTHROW(open(file_with("{\"a\":" + kTwoFloats + "}     ", 8)));
  CHECK_NOTHROW(open(file_with("{\"a\":" + tensor("F64", "[]", "[0,8]") + "}", 8)));
  CHECK_NOTHROW(open(file_with("{\"a\":" + tensor("F4", "[2,3]", "[0,3]") + "}", 3)));
  // Empty tensors, also between others, also with a huge dimension beside the zero.
  CHECK_NOTHROW(
      open(file_with("{\"z\":" + tensor("I64", "[4611686018427387904,0]", "[8,8]") +
                         ",\"a\":" + kTwoFloats + ",\"b\":" + tensor("U8", "[1]", "[8,9]") + "}",
                     9)));
}

TEST_CASE("safetensors: each broken rule is refused with its reason", "[checkpoint][safetensors]") {
  const std::string a = "{\"a\":" + kTwoFloats;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "it has 0 bytes"},
      {"1234567", "it has 7 bytes"},
      {prefix(std::numeric_limits<std::uint64_t>::max()) + "{}",
       "claims a header of 18446744073709551615"},
      {prefix(100'000'001) + "{}", "claims a header of 100000001"},
      {prefix(3) + "{}", "claims a header of 3"},
      {file_with("", 0), "does not begin with {"},
      {file_with(" {}", 0), "does not begin with {"},
      {file_with("\xEF\xBB\xBF{}", 0), "does not begin with {"},
      {file_with("{", 0), "is not JSON"},
      {file_with("{}x", 0), "is not JSON"},
      {file_with(std::string("{}\0", 3), 0), "NUL byte"},
      {file_with("{\"\xFF\":" + kTwoFloats + "}", 8), "is not JSON"},
      {file_with(a + ",\"a\":" + kTwoFloats + "}", 8), "names \"a\" twice"},
      {file_with(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "names \"dtype\" twice"},
      {file_with(R"({"__metadata__":{"x":"1","x":"2"}})", 0), "names \"x\" twice"},
      {file_with(R"({"__metadata__":{"format":1}})", 0), "__metadata__"},
      {file_with(R"({"__metadata__":[]})", 0), "__metadata__"},
      {file_with("{\"a\":" + std::string(2000, '[') + std::string(2000, ']') + "}", 0),
       "too deeply"},
      {file_with("{\"a\":3}", 0), "\"a\" is not an object"},
      {file_with(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8), "has no dtype"},
      {file_with(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8), "has no shape"},
      {file_with(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "has no data_offsets"},
      {file_with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8),
       "unknown key \"x\""},
      {file_with("{\"a\":" + tensor("F33", "[2]", "[0,8]") + "}", 8), "unknown dtype \"F33\""},
      {file_with("{\"a\":" + tensor("F32", "[-2]", "[0,8]") + "}", 8), "has the dimension -2"},
      {file_with("{\"a\":" + tensor("F32", "[2.0]", "[0,8]") + "}", 8), "has the dimension 2.0"},
      {file_with("{\"a\":" + tensor("F32", "[18446744073709551615]", "[0,8]") + "}", 8),
       "has the dimension"},
      {file_with("{\"a\":" + tensor("F32", "[4294967296,4294967296]", "[0,0]") + "}", 0),
       "more elements than can be counted"},
      {file_with("{\"a\":" + tensor("F32", "[2305843009213693952]", "[0,0]") + "}", 0),
       "more bits than can be counted"},
      {file_with("{\"a\":" + tensor("F4", "[3]", "[0,1]") + "}", 1), "whole bytes"},
      {file_with("{\"a\":" + tensor("F32", "[2]", "[0,7]") + "}", 7), "needs 8 bytes"},
      {file_with("{\"a\":" + tensor("F32", "[2]", "[8,0]") + "}", 8), "needs 8 bytes"},
      {file_with("{\"a\":" + tensor("F32", "[2]", "[0]") + "}", 8), "not two unsigned integers"},
      {file_with("{\"a\":" + tensor("F32", "[2]", "[-8,0]") + "}", 8), "not two unsigned integers"},
      {file_with("{\"a\":" + tensor("F32", "[2]", "[0,8.0]") + "}", 8),
       "not two unsigned integers"},
      {file_with("{\"a\":" + tensor("F32", "[2]", "[0,99999999999999999999]") + "}", 8),
       "not two unsigned integers"},
      {file_with("{\"a\":" + tensor("F32", "[2]", "[4,12]") + "}", 12), "begins at byte 4"},
      {file_with(a + ",\"b\":" + tensor("F32", "[2]", "[4,12]") + "}", 12), "begins at byte 4"},
      {file_with(a + ",\"b\":" + tensor("F32", "[2]", "[12,20]") + "}", 20), "begins at byte 12"},
      {file_with(a + ",\"b\":" + kTwoFloats + "}", 8), "begins at byte 0"},
      {file_with(a + "}", 7), "end at byte 8 of 7"},
      {file_with(a + "}", 9), "end at byte 8 of 9"},
      {file_with("{}", 1), "end at byte 0 of 1"},
  };
  for (const auto& [bytes, reason] : cases) {
    INFO(bytes.substr(0, 200));
    CHECK_THROWS_AS(open(bytes), InputError);
    CHECK_THROWS_WITH(open(bytes), Catch::Contains(reason) && Catch::Contains("file.safetensors"));
  }
}

TEST_CASE("safetensors: every cut of a good file is refused", "[checkpoint][safetensors]") {
  const std::string whole = file_with("{\"a\":" + kTwoFloats + "}", 8);
  REQUIRE_NOTHROW(open(whole));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO("cut to " << length);
    CHECK_THROWS_AS(open(whole.substr(0, length)), InputError);
  }
}

TEST_CASE("safetensors: every changed byte of a header is refused or harmless",
          "[checkpoint][safetensors]") {
  const std::string whole = file_with("{\"a\":" + kTwoFloats + "}", 8);
  for (std::size_t at = 0; at + 8 < whole.size(); ++at) {
    for (const int flip : {1, 2, 16, 128}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      try {
        open(bytes);
      } catch (const InputError&) {  // the only exception that may come out
      }
    }
  }
  SUCCEED();
}

TEST_CASE("safetensors: a file that is missing, a folder or a pipe is refused",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(SafetensorsReader(folder / "none"), Catch::Contains("no such file"));
  CHECK_THROWS_WITH(SafetensorsReader(folder.path().string()),
                    Catch::Contains("not a regular file"));
}

TEST_CASE("safetensors: ranges of F32, F16 and BF16 come as fp32", "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  std::string data(4 * 4 + 2 * 2 + 2 * 2, '\0');
  const float f32[4] = {1.5F, -2.0F, 3.25F, std::numeric_limits<float>::infinity()};
  const std::uint16_t f16[2] = {0x3C00, 0x0001};   // 1, the smallest subnormal
  const std::uint16_t bf16[2] = {0x4049, 0xBF80};  // 3.140625, -1
  std::memcpy(data.data(), f32, 16);
  std::memcpy(data.data() + 16, f16, 4);
  std::memcpy(data.data() + 20, bf16, 4);
  const std::string header = "{\"a\":" + tensor("F32", "[2,2]", "[0,16]") +
                             ",\"b\":" + tensor("F16", "[2]", "[16,20]") +
                             ",\"c\":" + tensor("BF16", "[2]", "[20,24]") +
                             ",\"d\":" + tensor("I64", "[0]", "[24,24]") + "}";
  write_bytes(folder / "x", prefix(header.size()) + header + data);
  const SafetensorsReader reader(folder / "x");
  const auto read = [&](const char* name, std::int64_t begin, std::size_t count) {
    std::vector<float> values(count);
    reader.read(name, begin, values);
    return values;
  };
  CHECK(read("a", 0, 4) == std::vector<float>(f32, f32 + 4));
  CHECK(read("a", 1, 2) == std::vector<float>{-2.0F, 3.25F});
  CHECK(read("a", 4, 0).empty());
  CHECK(read("b", 0, 2) == std::vector<float>{1.0F, 0x1p-24F});
  CHECK(read("c", 1, 1) == std::vector<float>{-1.0F});
  CHECK(reader.entry("a").shape == std::vector<std::int64_t>{2, 2});
  CHECK_THROWS_AS(read("a", 3, 2), InternalError);
  CHECK_THROWS_AS(read("a", -1, 1), InternalError);
  CHECK_THROWS_WITH(read("d", 0, 0), Catch::Contains("dtype I64"));
  CHECK_THROWS_WITH(read("e", 0, 0), Catch::Contains("no tensor \"e\""));
}

TEST_CASE("safetensors: a file cut while open is an IoError, not garbage",
          "[checkpoint][safetensors]") {
  const TemporaryFolder folder;
  write_bytes(folder / "x", file_with("{\"a\":" + kTwoFloats + "}", 8));
  const SafetensorsReader reader(folder / "x");
  std::filesystem::resize_file(folder / "x", reader.entry("a").begin + 5);
  std::vector<float> values(2);
  CHECK_THROWS_AS(reader.read("a", 0, values), IoError);
}

}  // namespace
}  // namespace zero
