#include <zero/core/env.h>
#include <zero/core/error.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sched.h>

namespace zero {
namespace {

/// The variable's text, or nothing. Read once at start, before any thread of ours exists.
std::string variable(const char* name) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before threads start
  return text == nullptr ? std::string() : std::string(text);
}

double number(const char* name, const std::string& text, double minimum) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(value) || value < minimum) {
    throw InputError(fmt::format("{}=\"{}\" is not a number of at least {}", name, text, minimum),
                     "environment",
                     "unset it or give a number");
  }
  return value;
}

LogLevel level(const std::string& text) {
  if (text == "debug") {
    return LogLevel::kDebug;
  }
  if (text == "info") {
    return LogLevel::kInfo;
  }
  if (text == "warn") {
    return LogLevel::kWarn;
  }
  if (text == "error") {
    return LogLevel::kError;
  }
  throw InputError(fmt::format("ZERO_LOG_LEVEL=\"{}\" is unknown", text),
                   "environment",
                   "use debug, info, warn or error");
}

/// CPU quota of the control group in cores, or a large number where there is none.
double cgroup_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) {
    return 1e9;
  }
  return std::strtod(quota.c_str(), nullptr) / period;
}

}  // namespace

Env Env::from_process() {
  Env env;
  if (const std::string text = variable("ZERO_LOG_LEVEL"); !text.empty()) {
    env.log_level = level(text);
  }
  if (const std::string text = variable("ZERO_TIMEOUT"); !text.empty()) {
    env.timeout_s = number("ZERO_TIMEOUT", text, 0.001);
  }
  if (const std::string text = variable("ZERO_THREADS"); !text.empty()) {
    env.threads = static_cast<int>(number("ZERO_THREADS", text, 1));
  }
  return env;
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(
      1, static_cast<int>(std::min(static_cast<double>(affinity), std::ceil(cgroup_quota()))));
}

int threads_per_rank(int requested, int local_ranks) {
  return requested > 0 ? requested : std::max(1, available_cores() / std::max(1, local_ranks));
}

}  // namespace zero
