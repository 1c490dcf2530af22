#include <zero/core/error.h>
#include <zero/core/file.h>

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace zero {
namespace {

/// Linux moves at most this much in one call.
constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;

/// Calls until it is not interrupted.
template <class Call>
auto retry(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) {
      return result;
    }
  }
}

}  // namespace

void throw_io_error(const std::string& what, const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw IoError(fmt::format("{}: {}", what, std::generic_category().message(error)),
                path,
                full ? "make room or choose another folder" : "");
}

void File::Traits::close(int descriptor) noexcept {
  ::close(descriptor);
}

File File::open_to_read(const std::string& path) {
  // Non-blocking, so that a named pipe is seen below instead of waited for.
  const int descriptor =
      retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw InputError("no such file", path);
    }
    throw_io_error("cannot open to read", path, errno);
  }
  File file(path, descriptor);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    throw_io_error("cannot ask for the size", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw InputError("not a regular file", path);
  }
  return file;
}

File File::open_to_write(const std::string& path) {
  const int descriptor = retry([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); });
  if (descriptor < 0) {
    throw_io_error("cannot open to write", path, errno);
  }
  return {path, descriptor};
}

File File::create(const std::string& path) {
  const int descriptor = retry(
      [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode_t{0666}); });
  if (descriptor < 0) {
    throw_io_error("cannot create", path, errno);
  }
  return {path, descriptor};
}

std::uint64_t File::size_bytes() const {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) {
    throw_io_error("cannot ask for the size", path_, errno);
  }
  return static_cast<std::uint64_t>(status.st_size);
}

bool File::bypass_page_cache() const noexcept {
  const int flags = ::fcntl(descriptor_.get(), F_GETFL);
  return flags >= 0 && ::fcntl(descriptor_.get(), F_SETFL, flags | O_DIRECT) == 0;
}

void File::read_at(std::span<std::byte> into, std::uint64_t offset) const {
  while (!into.empty()) {
    const ssize_t got = retry([&] {
      return ::pread(descriptor_.get(),
                     into.data(),
                     std::min(into.size(), kLargestTransfer),
                     static_cast<off_t>(offset));
    });
    if (got < 0) {
      throw_io_error(fmt::format("cannot read {} bytes at {}", into.size(), offset), path_, errno);
    }
    if (got == 0) {
      throw IoError(fmt::format("the file ends at {}, {} bytes too early", offset, into.size()),
                    path_,
                    "it was cut while in use, or is still being written");
    }
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void File::write_at(std::span<const std::byte> from, std::uint64_t offset) const {
  while (!from.empty()) {
    const ssize_t done = retry([&] {
      return ::pwrite(descriptor_.get(),
                      from.data(),
                      std::min(from.size(), kLargestTransfer),
                      static_cast<off_t>(offset));
    });
    if (done <= 0) {
      throw_io_error(fmt::format("cannot write {} bytes at {}", from.size(), offset),
                     path_,
                     done == 0 ? ENOSPC : errno);
    }
    from = from.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
}

void File::reserve(std::uint64_t bytes) const {
  const auto length = static_cast<off_t>(bytes);
  if (retry([&] { return ::ftruncate(descriptor_.get(), length); }) != 0) {
    throw_io_error(fmt::format("cannot make the file {} bytes long", bytes), path_, errno);
  }
  if (bytes > 0 && retry([&] { return ::fallocate(descriptor_.get(), 0, 0, length); }) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS) {
    throw_io_error(fmt::format("cannot reserve the {} bytes needed", bytes), path_, errno);
  }
}

void File::sync() const {
  if (retry([&] { return ::fsync(descriptor_.get()); }) != 0) {
    throw_io_error("cannot bring the file to the disk", path_, errno);
  }
}

void File::close() {
  // Linux frees the descriptor even when close reports an error, EINTR included.
  if (const int descriptor = descriptor_.release();
      descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) {
    throw_io_error("cannot close", path_, errno);
  }
}

namespace {

/// Makes the names in the folder of `path` durable.
void sync_folder_of(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) {
    folder = ".";
  }
  const int descriptor =
      retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) {
    throw_io_error("cannot open the folder", folder.string(), errno);
  }
  const int failed = ::fsync(descriptor) != 0 ? errno : 0;
  ::close(descriptor);
  if (failed != 0 && failed != EINVAL) {  // some file systems cannot sync a folder
    throw_io_error("cannot bring the folder to the disk", folder.string(), failed);
  }
}

}  // namespace

void replace_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw_io_error("cannot rename " + from, to, errno);
  }
  sync_folder_of(to);
}

namespace {

/// On a file system that cannot exchange two folders: for a moment there is no `to`.
void exchange_by_names(const std::string& from, const std::string& to) {
  const std::string aside = from + ".replaced.partial";
  const bool there = std::rename(to.c_str(), aside.c_str()) == 0;
  if (!there && errno != ENOENT) {
    throw_io_error("cannot rename " + to, aside, errno);
  }
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    if (there) {
      (void)std::rename(aside.c_str(), to.c_str());
    }
    throw_io_error("cannot rename " + from, to, error);
  }
  sync_folder_of(to);
  std::error_code ignored;
  std::filesystem::remove_all(aside, ignored);
}

}  // namespace

void replace_folder(const std::string& from, const std::string& to) {
  sync_folder_of(from + "/.");  // the names in it
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder_of(to);
    std::error_code error;
    std::filesystem::remove_all(from, error);  // what `to` was
    return;
  }
  if (errno == EINVAL || errno == ENOSYS) {
    exchange_by_names(from, to);
  } else if (errno == ENOENT) {
    replace_file(from, to);  // there is no `to`
  } else {
    throw_io_error("cannot rename " + from, to, errno);
  }
}

void check_output_path(const std::string& path, const std::string& option) {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::absolute(path, ignored).parent_path();
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw InputError("the folder does not exist", fmt::format("{} {}", option, path), "create it");
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    throw IoError("the folder cannot be written",
                  fmt::format("{} {}", option, path),
                  "choose another or change its rights");
  }
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    throw InputError("the path is no regular file",
                     fmt::format("{} {}", option, path),
                     "give the name of a file");
  }
}

void write_file(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  try {
    File file = File::create(temporary);
    file.write_at(std::as_bytes(std::span(text)), 0);
    file.sync();
    file.close();
    replace_file(temporary, path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

}  // namespace zero
