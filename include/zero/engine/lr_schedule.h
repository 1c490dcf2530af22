#pragma once

#include <zero/config/config.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace zero {

/// A learning-rate schedule: a pure function of the number of applied updates (ds_config block
/// `scheduler`).
///
/// Update number k (from 1) runs with index i = k − 2; index −1 is what holds before the schedule's
/// first step. Skipped updates and micro-steps do not advance it, whatever the number of ranks.
/// Source: docs/CONFIG.md, scheduler.
class LrSchedule {
 public:
  LrSchedule() = default;
  LrSchedule(const LrSchedule&) = delete;
  LrSchedule& operator=(const LrSchedule&) = delete;
  LrSchedule(LrSchedule&&) = delete;
  LrSchedule& operator=(LrSchedule&&) = delete;
  virtual ~LrSchedule() = default;

  /// Learning rate of parameter group `group`, whose own rate is `base_lr`.
  [[nodiscard]] virtual double lr(std::int64_t index, std::size_t group, double base_lr) const = 0;
  /// Adam's betas, where the schedule moves them (OneCycle).
  struct Betas {
    double beta1;
    double beta2;
  };
  [[nodiscard]] virtual std::optional<Betas> betas(std::int64_t /*index*/) const {
    return std::nullopt;
  }
};

/// The schedule that the block describes. ConfigError, naming the parameter, for an unknown type or
/// parameter, a missing one or a value out of range; nullptr without a block (constant rate).
[[nodiscard]] std::unique_ptr<LrSchedule> make_lr_schedule(
    const std::optional<config::SchedulerConfig>& config);

}  // namespace zero
