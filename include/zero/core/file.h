#pragma once

#include <zero/core/unique_handle.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace zero {

/// An open file, read and written at positions: the one place where EINTR and short transfers are
/// dealt with.
///
/// Owns its descriptor. Every failure is an IoError that names the path and what the system said.
/// Thread: read_at and write_at of one file may run at the same time.
class File {
 public:
  File() noexcept = default;
  /// Opens an existing regular file. InputError if it does not exist or is something else.
  [[nodiscard]] static File open_to_read(const std::string& path);
  /// Opens an existing file. IoError.
  [[nodiscard]] static File open_to_write(const std::string& path);
  /// Creates a file that must not exist yet, for writing.
  [[nodiscard]] static File create(const std::string& path);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size_bytes() const;
  /// For calls that this class does not make.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  /// From now on transfers go around the page cache (O_DIRECT), if the file system can: whether it
  /// can. Memory, positions and lengths must then be multiples of the disk's blocks.
  [[nodiscard]] bool bypass_page_cache() const noexcept;
  /// Fills `into` from `offset`. IoError if the file ends before.
  void read_at(std::span<std::byte> into, std::uint64_t offset) const;
  void write_at(std::span<const std::byte> from, std::uint64_t offset) const;
  /// Makes the file `bytes` long and, where the file system can, reserves the space, so that a full
  /// disk is known before anything is written.
  void reserve(std::uint64_t bytes) const;
  /// Waits until data and size are on the disk.
  void sync() const;
  /// Closes it; IoError if that reports a lost write.
  void close();

 private:
  struct Traits {
    using Value = int;
    static constexpr int kNull = -1;
    static void close(int descriptor) noexcept;
  };
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  UniqueHandle<Traits> descriptor_;
};

/// Throws the IoError of a system call that failed with `error` (errno) on `path`.
[[noreturn]] void throw_io_error(const std::string& what, const std::string& path, int error);

/// Refuses a path at which write_file() could not leave a file: a folder that is not there or may
/// not be written, something else than a file in the way. InputError or IoError, which name
/// `option`.
void check_output_path(const std::string& path, const std::string& option);
/// The text becomes the file's whole content, or nothing changes: written beside it and renamed.
void write_file(const std::string& path, const std::string& text);

/// Gives `from` the name `to` in one step, whether or not there is a `to` already, and makes that
/// durable.
void replace_file(const std::string& from, const std::string& to);
/// The same for a folder; what was `to` is gone afterwards.
void replace_folder(const std::string& from, const std::string& to);

}  // namespace zero
