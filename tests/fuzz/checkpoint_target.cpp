#include "engine/checkpoint/safetensors_header.h"
#include "target.h"
#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <cstdio>
#include <cstdlib>

namespace zero::testing {
namespace {

std::string text_at_work;  // shown when an answer is wrong

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "contradiction: %s, in the text\n%s\n", what, text_at_work.c_str());
    std::abort();
  }
}

/// Under a good checksum, so that it is looked at.
std::string with_sum(const std::string& text) {
  return text + fmt::format("{:016x}\n", XXH64(text.data(), text.size(), 0));
}

void check_manifest(const std::string& text) {
  try {
    const CheckpointManifest manifest = CheckpointManifest::from_json(with_sum(text), "fuzz");
    for (const CheckpointManifest::Extent& extent : manifest.extents) {
      const auto& file = manifest.files.at(extent.file);
      require(extent.begin >= 0 && extent.end <= manifest.parameters.at(extent.parameter).elems(),
              "an extent leaves its parameter");
      require(
          extent.offset + 4 * static_cast<std::uint64_t>(extent.end - extent.begin) <= file.bytes,
          "an extent leaves its file");
    }
    const std::string once = manifest.to_json();
    require(CheckpointManifest::from_json(once, "fuzz").to_json() == once,
            "a manifest that was written is another when it is read");
  } catch (const InputError&) {  // the only way to refuse
  }
}

/// With as many bytes of data as its last tensor says, so that all of it is looked at.
void check_header(const std::string& text) {
  for (const std::uint64_t data_bytes : {0, 16, 24}) {
    try {
      std::uint64_t bytes = 0;
      const std::uint64_t data_begin = safetensors::kPrefixBytes + text.size();
      for (const auto& [name, entry] : safetensors::parse_header(text, data_bytes, "fuzz")) {
        require(entry.begin >= data_begin && entry.end <= data_begin + data_bytes,
                "a tensor leaves the file");
        bytes += entry.end - entry.begin;
      }
      require(bytes == data_bytes, "tensors overlap or leave a gap");
    } catch (const InputError&) {  // the only way to refuse
    }
  }
}

}  // namespace

void exercise(const std::string& text) {
  text_at_work = text;
  check_manifest(text);
  check_header(text);
  try {
    (void)CheckpointManifest::from_json(text, "fuzz");
  } catch (const InputError&) {  // without a checksum
  }
}

const std::vector<std::string>& pieces() {
  static const std::vector<std::string> kPieces = {
      "{",
      "}",
      "[",
      "]",
      ",",
      ":",
      "\"",
      "\\",
      "null",
      "true",
      "-1",
      "0",
      "1e400",
      "0.5",
      "9223372036854775807",
      "9223372036854775808",
      "18446744073709551615",
      "18446744073709551616",
      "1125899906842624",
      "\"name\": \"a\",",
      "\"shape\": [],",
      "\"shape\": [1125899906842624, 1125899906842624],",
      "[0, 0, 0, 4, 0, 0],",
      "[0, 0, 2, 4, 0, 18446744073709551612],",
      "\"master\",",
      "\"data_offsets\": [0, 16],",
      "\"a\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [0, 16]},",
      "\"dtype\": \"F4\",",
      "\"__metadata__\": {\"format\": \"pt\"},",
      "\"0000000000000000\"",
      "\"../x\"",
      "\xFF",
      "\\u0000",
  };
  return kPieces;
}

}  // namespace zero::testing
