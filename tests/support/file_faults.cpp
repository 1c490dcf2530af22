#include "support/file_faults.h"

#include <cerrno>
#include <cstdio>
#include <sys/types.h>
#include <unistd.h>

namespace zero::support {
namespace {

std::atomic<FileFault*> active{nullptr};

/// Calls `real(bytes)` unless the fault says otherwise.
template <class Real>
auto call(FileFault::Calls calls, std::size_t bytes, Real real) -> decltype(real(bytes)) {
  const int answer = FileFault::answer(calls);
  if (answer > 0) {
    errno = answer;
    return -1;
  }
  return real(answer == FileFault::kHalf && bytes > 1 ? bytes / 2 : bytes);
}

}  // namespace

FileFault::FileFault(Calls calls, int nth, std::function<int()> hook)
    : calls_(calls), left_(nth), hook_(std::move(hook)) {
  active = this;
}

FileFault::~FileFault() {
  active = nullptr;
}

int FileFault::answer(Calls calls) {
  FileFault* fault = active;
  return fault != nullptr && fault->calls_ == calls && fault->left_.fetch_sub(1) == 0
             ? fault->hook_()
             : kGoOn;
}

}  // namespace zero::support

using zero::support::call;
using Calls = zero::support::FileFault::Calls;

// The linker's --wrap leads calls of NAME to __wrap_NAME and calls of __real_NAME to NAME.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

ssize_t __real_pread(int file, void* into, std::size_t bytes, off_t offset);
ssize_t __real_pwrite(int file, const void* from, std::size_t bytes, off_t offset);
int __real_fsync(int file);
int __real_ftruncate(int file, off_t bytes);
int __real_fallocate(int file, int mode, off_t offset, off_t bytes);
int __real_rename(const char* from, const char* to);
int __real_renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags);

ssize_t __wrap_pread(int file, void* into, std::size_t bytes, off_t offset) {
  return call(Calls::kRead, bytes, [&](std::size_t some) {
    return __real_pread(file, into, some, offset);
  });
}

ssize_t __wrap_pwrite(int file, const void* from, std::size_t bytes, off_t offset) {
  return call(Calls::kChange, bytes, [&](std::size_t some) {
    return __real_pwrite(file, from, some, offset);
  });
}

int __wrap_fsync(int file) {
  return call(Calls::kChange, 0, [&](std::size_t /*none*/) { return __real_fsync(file); });
}

int __wrap_ftruncate(int file, off_t bytes) {
  return call(
      Calls::kChange, 0, [&](std::size_t /*none*/) { return __real_ftruncate(file, bytes); });
}

int __wrap_fallocate(int file, int mode, off_t offset, off_t bytes) {
  return call(Calls::kChange, 0, [&](std::size_t /*none*/) {
    return __real_fallocate(file, mode, offset, bytes);
  });
}

int __wrap_rename(const char* from, const char* to) {
  return call(Calls::kChange, 0, [&](std::size_t /*none*/) { return __real_rename(from, to); });
}

int __wrap_renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
  return call(Calls::kChange, 0, [&](std::size_t /*none*/) {
    return __real_renameat2(from_dir, from, to_dir, to, flags);
  });
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
