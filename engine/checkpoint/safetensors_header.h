#pragma once

#include <zero/engine/safetensors.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace zero::safetensors {

/// Header lengths above this are refused, by the format.
inline constexpr std::uint64_t kLargestHeaderBytes = 100'000'000;
/// Bytes of the length field in front of the header.
inline constexpr std::uint64_t kPrefixBytes = 8;

using Entries = std::map<std::string, SafetensorsEntry, std::less<>>;

/// Checks every rule that a header can break and gives its tensors, their offsets counted from the
/// file's start.
///
/// `header`: the JSON text; `data_bytes`: bytes of the file behind it; `path` names the file in
/// InputErrors.
[[nodiscard]] Entries parse_header(std::string_view header,
                                   std::uint64_t data_bytes,
                                   const std::string& path);

/// The format's code for a dtype that the writer writes.
[[nodiscard]] const char* dtype_code(DType dtype);
/// A shape as the header writes it.
[[nodiscard]] std::vector<std::int64_t> dims_of(const Shape& shape);

}  // namespace zero::safetensors
