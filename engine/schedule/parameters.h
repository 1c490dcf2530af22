#pragma once

#include <zero/config/config.h>
#include <zero/core/error.h>

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace zero::schedule {

/// Reads the parameters of a scheduler block by name; finish() refuses those that nobody has read.
class Parameters {
 public:
  explicit Parameters(const config::SchedulerConfig& config) : config_(config) {}

  /// One value, or one for each parameter group.
  [[nodiscard]] std::vector<double> list(const std::string& name, std::vector<double> fallback) {
    const config::SchedulerConfig::Param* param = find(name);
    if (param == nullptr) {
      return fallback;
    }
    if (param->values.empty()) {
      fail(name, "is not a number", "give a number");
    }
    return param->values;
  }
  [[nodiscard]] double number(const std::string& name, double fallback) {
    return list(name, {fallback}).front();
  }
  [[nodiscard]] double required(const std::string& name) {
    if (find(name) == nullptr) {
      fail(name, "is missing", "add it");
    }
    return number(name, 0.0);
  }
  [[nodiscard]] std::vector<double> required_list(const std::string& name) {
    (void)required(name);
    return list(name, {});
  }
  /// A whole number of at least `minimum`.
  [[nodiscard]] double count(const std::string& name, double fallback, double minimum) {
    const double value = number(name, fallback);
    if (value < minimum || value != std::floor(value)) {
      fail(name,
           fmt::format("is {}", value),
           fmt::format("give a whole number of at least {}", minimum));
    }
    return value;
  }
  [[nodiscard]] std::string word(const std::string& name, const std::string& fallback) {
    const config::SchedulerConfig::Param* param = find(name);
    return param == nullptr || param->text.empty() ? fallback : param->text;
  }
  void finish() const {
    for (const config::SchedulerConfig::Param& param : config_.params) {
      if (known_.count(param.name) == 0) {
        fail(param.name, fmt::format("is no parameter of {}", config_.type), "remove it");
      }
    }
  }

 private:
  [[nodiscard]] const config::SchedulerConfig::Param* find(const std::string& name) {
    known_.insert(name);
    for (const config::SchedulerConfig::Param& param : config_.params) {
      if (param.name == name && (!param.values.empty() || !param.text.empty())) {
        return &param;
      }
    }
    return nullptr;
  }
  [[noreturn]] void fail(const std::string& name,
                         const std::string& what,
                         const std::string& todo) const {
    throw ConfigError(fmt::format("scheduler.params.{} {}", name, what), config_.type, todo);
  }

  const config::SchedulerConfig& config_;
  std::set<std::string> known_;
};

/// The value of a group: its own, or the one for all.
[[nodiscard]] inline double of_group(const std::vector<double>& values, std::size_t group) {
  return values.size() == 1 ? values.front() : values.at(group);
}

}  // namespace zero::schedule
