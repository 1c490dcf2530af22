#pragma once

#include <atomic>
#include <functional>

namespace zero::support {

/// Makes one file call of this process fail, as a disk would. For programs that link
/// zero_test_file_faults: it stands between them and pread, pwrite, fsync, ftruncate, fallocate,
/// rename and renameat2.
///
/// One at a time; calls may come from any thread.
class FileFault {
 public:
  /// Of pread alone, or of all that change something.
  enum class Calls { kRead, kChange };
  /// What the hook may answer beside an errno.
  static constexpr int kGoOn = 0;
  static constexpr int kHalf = -1;  ///< pread and pwrite move half of the bytes

  /// `hook` answers the call number `nth` of its kind, counted from 0.
  FileFault(Calls calls, int nth, std::function<int()> hook);
  FileFault(const FileFault&) = delete;
  FileFault& operator=(const FileFault&) = delete;
  FileFault(FileFault&&) = delete;
  FileFault& operator=(FileFault&&) = delete;
  ~FileFault();

  /// Whether there was such a call.
  [[nodiscard]] bool struck() const noexcept { return left_ < 0; }
  /// For the calls: the hook's answer if it is its turn, else kGoOn.
  [[nodiscard]] static int answer(Calls calls);

 private:
  Calls calls_;
  std::atomic<int> left_;
  std::function<int()> hook_;
};

}  // namespace zero::support
