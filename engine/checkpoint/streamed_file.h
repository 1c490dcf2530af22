#pragma once

#include <zero/core/file.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zero {

/// A new file that is written at the speed of the disk: what is contiguous is gathered in two
/// buffers, of which one is filled while the other goes to the disk, around the page cache where
/// the file system can.
///
/// Bytes may come in any order, each once. An error of a write is thrown by a later call. Thread:
/// one at a time. The destructor waits for the write in flight.
class StreamedFile {
 public:
  /// Bytes of a buffer; of two in all.
  static constexpr std::size_t kBufferBytes = std::size_t{8} << 20;

  /// Creates the file, `bytes` long. IoError.
  StreamedFile(const std::string& path, std::uint64_t bytes);

  void write_at(std::span<const std::byte> from, std::uint64_t offset);
  /// Brings everything to the disk and closes the file.
  void finish();
  /// XXH64 of each CheckpointManifest::kBlockBytes of what was written, if that was from the start
  /// to the end in order.
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> block_sums() const;

 private:
  /// Part [begin, end) of a buffer whose first byte belongs at `base` in the file, a whole page.
  struct Run {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::uint64_t base = 0;
  };
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  void add_to_sums(std::span<const std::byte> from, std::uint64_t offset);
  /// Starts to write what is in the buffer, and goes on with the other one.
  void hand_over();
  void put(const std::byte* buffer, Run run) const;

  std::uint64_t bytes_;
  File file_;
  std::optional<File> direct_;  ///< the same file, around the page cache
  std::size_t capacity_;
  std::array<std::unique_ptr<std::byte, Free>, 2> buffers_;
  std::size_t filling_ = 0;
  Run run_;
  std::uint64_t summed_ = 0;  ///< bytes from the start that the sums count
  std::vector<std::uint64_t> sums_;
  std::vector<std::byte> block_;  ///< the last one, while it is not whole
  std::future<void> writing_;     ///< last: its end is waited for before anything goes
};

}  // namespace zero
