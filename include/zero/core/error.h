#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace zero {

/// Exit status of a program that ends by an error (contract, docs/ERRORS.md).
enum class ExitCode : int { kBadInput = 2, kEnvironment = 3, kPeer = 4, kInternal = 70 };

/// Base of everything the engine throws. `what()` is one line: "WHAT, WHERE, WHAT TO DO" (empty
/// parts left out).
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string_view what, std::string_view where, std::string_view todo);
  [[nodiscard]] ExitCode exit_code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

#define ZERO_DEFINE_ERROR(Name, code)                                                             \
  class Name : public Error {                                                                     \
   public:                                                                                        \
    explicit Name(std::string_view what, std::string_view where = {}, std::string_view todo = {}) \
        : Error(code, what, where, todo) {}                                                       \
  }

/// A ds_config that cannot be used (names key, value and what is allowed).
ZERO_DEFINE_ERROR(ConfigError, ExitCode::kBadInput);
/// Wrong arguments, files or call order by the user.
ZERO_DEFINE_ERROR(InputError, ExitCode::kBadInput);
/// Memory, disk space or another resource of this machine does not suffice.
ZERO_DEFINE_ERROR(ResourceError, ExitCode::kEnvironment);
/// The device is missing or reported a failure.
ZERO_DEFINE_ERROR(DeviceError, ExitCode::kEnvironment);
/// A system call on a file failed.
ZERO_DEFINE_ERROR(IoError, ExitCode::kEnvironment);
/// Another rank failed, disagreed or did not arrive in time.
ZERO_DEFINE_ERROR(PeerError, ExitCode::kPeer);
/// A broken invariant of the engine itself: a bug, never the user's fault.
ZERO_DEFINE_ERROR(InternalError, ExitCode::kInternal);
#undef ZERO_DEFINE_ERROR

/// Throws InternalError naming the condition and the place. Called by ZERO_CHECK only.
[[noreturn]] void check_failed(const char* condition,
                               const std::string& message,
                               const char* file,
                               int line);

}  // namespace zero

/// Verifies an invariant, in release builds too. `message` is any expression convertible to
/// std::string.
#define ZERO_CHECK(condition, message)                                 \
  do {                                                                 \
    if (!(condition)) {                                                \
      ::zero::check_failed(#condition, (message), __FILE__, __LINE__); \
    }                                                                  \
  } while (false)
