#pragma once

#include <zero/core/log.h>

namespace zero {

/// Every environment variable that the engine reads, with its default.
struct Env {
  LogLevel log_level = LogLevel::kWarn;  ///< ZERO_LOG_LEVEL = debug|info|warn|error
  double timeout_s =
      600.0;        ///< ZERO_TIMEOUT: seconds until a rank that does not arrive is an error
  int threads = 0;  ///< ZERO_THREADS: compute threads a rank; 0 = cores available ÷ local ranks

  /// Reads the variables; a value that makes no sense is an InputError naming the variable.
  [[nodiscard]] static Env from_process();
};

/// Cores that this process may use: affinity mask and cgroup quota, at least 1.
[[nodiscard]] int available_cores();

/// Compute threads of a rank: `requested` (or ZERO_THREADS) if positive, else max(1,
/// available_cores() ÷ local ranks).
[[nodiscard]] int threads_per_rank(int requested, int local_ranks);

}  // namespace zero
