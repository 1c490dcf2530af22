#include "engine/checkpoint/safetensors_header.h"
#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>

#include <fmt/format.h>
#include <xxhash.h>

namespace zero {
namespace {

constexpr std::int64_t kMany = 1'000'000;

std::string with_sum(const std::string& text) {
  return text + fmt::format("{:016x}\n", XXH64(text.data(), text.size(), 0));
}

CheckpointManifest manifest_of(std::int64_t parameters) {
  CheckpointManifest manifest;
  manifest.states = {"master"};
  const auto bytes = static_cast<std::uint64_t>(parameters) * sizeof(float);
  const std::uint64_t blocks =
      (bytes + CheckpointManifest::kBlockBytes - 1) / CheckpointManifest::kBlockBytes;
  manifest.files.push_back({"values", bytes, std::vector<std::uint64_t>(blocks)});
  for (std::int64_t i = 0; i < parameters; ++i) {
    manifest.parameters.push_back({fmt::format("p{}", i), {1}});
    manifest.extents.push_back(
        {static_cast<std::size_t>(i), 0, 0, 1, 0, static_cast<std::uint64_t>(i) * sizeof(float)});
  }
  return manifest;
}

TEST_CASE("manifest: the seeds of the fuzzing are good", "[checkpoint][manifest]") {
  const std::string folder = std::string(ZERO_TEST_DATA) + "/checkpoint/";
  CHECK(CheckpointManifest::from_json(with_sum(support::read_bytes(folder + "manifest.json")), "")
            .parameters.size() == 2);
  CHECK(safetensors::parse_header(support::read_bytes(folder + "header.json"), 24, "").size() == 2);
}

TEST_CASE("manifest: a million parameters come back", "[checkpoint][manifest]") {
  const std::string text = manifest_of(kMany).to_json();
  const CheckpointManifest back = CheckpointManifest::from_json(text, "test");
  CHECK(back.parameters.size() == kMany);
  CHECK(back.extents.back().offset == (kMany - 1) * sizeof(float));
}

TEST_CASE("manifest: overlaps, gaps, ends and names that occur twice are refused",
          "[checkpoint][manifest]") {
  const auto refused = [](const std::function<void(CheckpointManifest&)>& change) {
    CheckpointManifest manifest = manifest_of(3);
    manifest.parameters[1].shape = {2};
    manifest.files[0].bytes = 16;
    manifest.extents[1].end = 2;
    manifest.extents[2].offset = 12;
    CHECK_NOTHROW(CheckpointManifest::from_json(manifest.to_json(), "test"));
    change(manifest);
    CHECK_THROWS_AS(CheckpointManifest::from_json(manifest.to_json(), "test"), InputError);
  };
  refused([](auto& m) { m.parameters[2].name = "p0"; });
  refused([](auto& m) { m.extents[1].end = 1; });
  refused([](auto& m) { m.extents[1].begin = 1; });
  refused([](auto& m) { m.extents.push_back(m.extents[1]); });
  refused([](auto& m) { m.extents[2].offset = 13; });
  refused([](auto& m) { m.extents[2].offset = UINT64_MAX - 3; });
  refused([](auto& m) { m.extents[2].file = 1; });
  refused([](auto& m) { m.extents[0].state = 1; });
  refused([](auto& m) { m.files[0].name = "../values"; });
  refused([](auto& m) { m.files[0].bytes = INT64_MAX; });
  refused([](auto& m) { m.parameters[0].shape = {INT64_MAX, INT64_MAX}; });
}

TEST_CASE("safetensors: a header with a million tensors is read", "[checkpoint][safetensors]") {
  std::string header = "{";
  for (std::int64_t i = 0; i < kMany; ++i) {
    header += fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",",
                          i,
                          i,
                          i + 1);
  }
  header += "}";
  REQUIRE(header.size() < safetensors::kLargestHeaderBytes);
  CHECK(safetensors::parse_header(header, kMany, "test").size() == kMany);
}

}  // namespace
}  // namespace zero
