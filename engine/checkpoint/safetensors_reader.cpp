#include "engine/checkpoint/safetensors_header.h"
#include <zero/core/error.h>
#include <zero/core/tensor_view.h>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace zero {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

safetensors::Entries read_header(const File& file) {
  using safetensors::kPrefixBytes;
  const std::uint64_t file_bytes = file.size_bytes();
  const auto refuse = [&](const std::string& reason) {
    throw InputError("not a valid safetensors file: " + reason, file.path(), "write it anew");
  };
  if (file_bytes < kPrefixBytes) {
    refuse(fmt::format("it has {} bytes", file_bytes));
  }
  std::uint64_t header_bytes = 0;
  file.read_at(std::as_writable_bytes(std::span(&header_bytes, 1)), 0);
  if (header_bytes > safetensors::kLargestHeaderBytes || header_bytes > file_bytes - kPrefixBytes) {
    refuse(
        fmt::format("it claims a header of {} bytes, the file has {}", header_bytes, file_bytes));
  }
  std::string header(header_bytes, '\0');
  file.read_at(std::as_writable_bytes(std::span(header)), kPrefixBytes);
  return safetensors::parse_header(header, file_bytes - kPrefixBytes - header_bytes, file.path());
}

/// Reads elements of type T piece by piece and widens them.
template <class T>
void read_widened(const File& file, std::uint64_t offset, std::span<float> values) {
  std::array<T, 4096> piece{};
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), piece.size());
    const std::span<T> got(piece.data(), count);
    file.read_at(std::as_writable_bytes(got), offset);
    std::transform(got.begin(), got.end(), values.begin(), [](T x) { return to_float(x); });
    values = values.subspan(count);
    offset += count * sizeof(T);
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path)
    : file_(File::open_to_read(path)), entries_(read_header(file_)) {}

const SafetensorsEntry& SafetensorsReader::entry(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw InputError(fmt::format("no tensor \"{}\"", name), path());
  }
  return found->second;
}

void SafetensorsReader::read(std::string_view name,
                             std::int64_t begin,
                             std::span<float> values) const {
  const SafetensorsEntry& tensor = entry(name);
  const auto count = static_cast<std::int64_t>(values.size());
  ZERO_CHECK(begin >= 0 && count <= tensor.elems && begin <= tensor.elems - count,
             "read outside tensor " + std::string(name));
  const auto first = static_cast<std::uint64_t>(begin);
  if (tensor.dtype == "F32") {
    file_.read_at(std::as_writable_bytes(values), tensor.begin + first * sizeof(float));
  } else if (tensor.dtype == "F16") {
    read_widened<Float16>(file_, tensor.begin + first * sizeof(Float16), values);
  } else if (tensor.dtype == "BF16") {
    read_widened<BFloat16>(file_, tensor.begin + first * sizeof(BFloat16), values);
  } else {
    throw InputError(fmt::format("tensor \"{}\" has dtype {}", name, tensor.dtype),
                     path(),
                     "weights may be F32, F16 or BF16");
  }
}

}  // namespace zero
