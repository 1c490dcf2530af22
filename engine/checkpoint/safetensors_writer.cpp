#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/streamed_file.h"
#include <zero/core/error.h>
#include <zero/core/tensor_view.h>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <unistd.h>

namespace zero {
namespace {

/// A name beside `path` that no other writer uses.
std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter = 0;
  return fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter.fetch_add(1));
}

/// Order of the format's own writers: wide elements first, so that each tensor is aligned; then by
/// name.
int dtype_rank(DType dtype) {
  return dtype == DType::kF32 ? 2 : dtype == DType::kBF16 ? 1 : 0;
}

template <class T>
void write_rounded(StreamedFile& file, std::uint64_t offset, std::span<const float> values) {
  std::array<T, 4096> piece{};
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), piece.size());
    std::transform(values.begin(),
                   values.begin() + static_cast<std::ptrdiff_t>(count),
                   piece.begin(),
                   [](float x) { return from_float<T>(x); });
    file.write_at(std::as_bytes(std::span<const T>(piece.data(), count)), offset);
    values = values.subspan(count);
    offset += count * sizeof(T);
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<Tensor> tensors, Order order)
    : path_(std::move(path)), temporary_(temporary_name(path_)) {
  if (order == Order::kFormat) {
    std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
      return a.dtype != b.dtype ? dtype_rank(a.dtype) > dtype_rank(b.dtype) : a.name < b.name;
    });
  }
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    const std::uint64_t end =
        bytes + static_cast<std::uint64_t>(tensor.shape.elems()) * dtype_size(tensor.dtype);
    nlohmann::ordered_json& entry = header[tensor.name];
    ZERO_CHECK(entry.is_null(), "tensor " + tensor.name + " is given twice");
    entry["dtype"] = safetensors::dtype_code(tensor.dtype);
    entry["shape"] = safetensors::dims_of(tensor.shape);
    entry["data_offsets"] = {bytes, end};
    places_[tensor.name] = {.dtype = tensor.dtype, .elems = tensor.shape.elems(), .begin = bytes};
    bytes = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t header_bytes = text.size();
  const std::uint64_t data_begin = safetensors::kPrefixBytes + header_bytes;
  for (auto& [name, place] : places_) {
    place.begin += data_begin;
  }
  try {
    file_ = std::make_unique<StreamedFile>(temporary_, data_begin + bytes);
    file_->write_at(std::as_bytes(std::span(&header_bytes, 1)), 0);
    file_->write_at(std::as_bytes(std::span(text)), safetensors::kPrefixBytes);
  } catch (...) {
    ::unlink(temporary_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!finished_) {
    ::unlink(temporary_.c_str());
  }
}

void SafetensorsWriter::write(std::string_view name,
                              std::int64_t begin,
                              std::span<const float> values) {
  const auto found = places_.find(name);
  ZERO_CHECK(found != places_.end(), "no tensor " + std::string(name) + " was announced");
  Place& place = found->second;
  const auto count = static_cast<std::int64_t>(values.size());
  ZERO_CHECK(begin >= 0 && count <= place.elems && begin <= place.elems - count,
             "write outside tensor " + std::string(name));
  const std::uint64_t offset =
      place.begin + static_cast<std::uint64_t>(begin) * dtype_size(place.dtype);
  switch (place.dtype) {
    case DType::kF16:
      write_rounded<Float16>(*file_, offset, values);
      break;
    case DType::kBF16:
      write_rounded<BFloat16>(*file_, offset, values);
      break;
    default:
      file_->write_at(std::as_bytes(values), offset);
  }
  place.written += count;
}

std::optional<std::vector<std::uint64_t>> SafetensorsWriter::block_sums() const {
  return file_->block_sums();
}

void SafetensorsWriter::finish() {
  for (const auto& [name, place] : places_) {
    ZERO_CHECK(
        place.written == place.elems,
        fmt::format("{} of {} elements of {} were written", place.written, place.elems, name));
  }
  file_->finish();
  replace_file(temporary_, path_);
  finished_ = true;
}

}  // namespace zero
