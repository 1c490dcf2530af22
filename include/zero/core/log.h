#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace zero {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kError };

/// Writes lines "time level rank module: text" to standard error. Any thread may call.
///
/// Rank 0 says what is equal on all ranks: call `info` on rank 0 only, `warn` where the fault is.
class Log {
 public:
  Log(int rank, LogLevel threshold) noexcept : rank_(rank), threshold_(threshold) {}
  [[nodiscard]] bool enabled(LogLevel level) const noexcept { return level >= threshold_; }
  void write(LogLevel level, std::string_view module, std::string_view text);

 private:
  int rank_;
  LogLevel threshold_;
};

}  // namespace zero

/// ZERO_LOG(log, kWarn, "comm", "rank {} is late", rank): formats only if the level is enabled.
#define ZERO_LOG(log, level, module, ...)                                       \
  do {                                                                          \
    if ((log).enabled(::zero::LogLevel::level)) {                               \
      (log).write(::zero::LogLevel::level, module, ::fmt::format(__VA_ARGS__)); \
    }                                                                           \
  } while (false)
