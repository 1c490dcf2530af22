#include "engine/checkpoint/streamed_file.h"

#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace zero {
namespace {

/// Memory, positions and lengths of direct writes are multiples of it.
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kBlockBytes = CheckpointManifest::kBlockBytes;

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

StreamedFile::StreamedFile(const std::string& path, std::uint64_t bytes)
    : bytes_(bytes),
      file_(File::create(path)),
      capacity_(round_up(std::min<std::uint64_t>(bytes + kPageBytes, kBufferBytes))) {
  for (auto& buffer : buffers_) {
    buffer.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, capacity_)));
    ZERO_CHECK(buffer != nullptr, "no memory for a file's buffer");
  }
  file_.reserve(bytes);
  if (File direct = File::open_to_write(path); direct.bypass_page_cache()) {
    direct_ = std::move(direct);
  }
}

void StreamedFile::write_at(std::span<const std::byte> from, std::uint64_t offset) {
  add_to_sums(from, offset);
  if (offset != run_.base + run_.end) {
    hand_over();
    const std::size_t begin = offset % kPageBytes;
    run_ = {begin, begin, offset - begin};
  }
  while (!from.empty()) {
    const std::size_t count = std::min(from.size(), capacity_ - run_.end);
    std::memcpy(buffers_[filling_].get() + run_.end, from.data(), count);
    run_.end += count;
    from = from.subspan(count);
    if (run_.end == capacity_) {
      hand_over();
    }
  }
}

void StreamedFile::finish() {
  hand_over();
  if (writing_.valid()) {
    writing_.get();
  }
  file_.sync();
  if (direct_) {
    direct_->close();
  }
  file_.close();
}

std::optional<std::vector<std::uint64_t>> StreamedFile::block_sums() const {
  if (summed_ != bytes_) {
    return std::nullopt;
  }
  std::vector<std::uint64_t> sums = sums_;
  if (!block_.empty()) {
    sums.push_back(XXH64(block_.data(), block_.size(), 0));
  }
  return sums;
}

void StreamedFile::add_to_sums(std::span<const std::byte> from, std::uint64_t offset) {
  if (offset != summed_) {
    return;  // out of order: there will be no sums
  }
  summed_ += from.size();
  while (!from.empty()) {
    if (block_.empty() && from.size() >= kBlockBytes) {
      sums_.push_back(XXH64(from.data(), kBlockBytes, 0));
      from = from.subspan(kBlockBytes);
      continue;
    }
    const std::size_t count = std::min(from.size(), kBlockBytes - block_.size());
    block_.insert(block_.end(), from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count));
    from = from.subspan(count);
    if (block_.size() == kBlockBytes) {
      sums_.push_back(XXH64(block_.data(), kBlockBytes, 0));
      block_.clear();
    }
  }
}

void StreamedFile::hand_over() {
  if (writing_.valid()) {
    writing_.get();  // its buffer is the next to be filled
  }
  if (run_.end > run_.begin) {
    writing_ =
        std::async(std::launch::async,
                   [this, buffer = buffers_[filling_].get(), run = run_] { put(buffer, run); });
    filling_ = 1 - filling_;
  }
  // Only a buffer that is not full can end inside a page, and then another run begins.
  run_ = {0, 0, run_.base + run_.end};
}

/// Whole pages go around the page cache; the rest of a page shares none with them.
void StreamedFile::put(const std::byte* buffer, Run run) const {
  const auto write = [&](const File& file, std::size_t begin, std::size_t end) {
    file.write_at({buffer + begin, end - begin}, run.base + begin);
  };
  const std::size_t begin = round_up(run.begin);
  const std::size_t end = run.end / kPageBytes * kPageBytes;
  if (!direct_ || begin >= end) {
    write(file_, run.begin, run.end);
    return;
  }
  if (run.begin < begin) {
    write(file_, run.begin, begin);
  }
  write(*direct_, begin, end);
  if (end < run.end) {
    write(file_, end, run.end);
  }
}

}  // namespace zero
