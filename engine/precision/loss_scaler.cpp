#include <zero/engine/loss_scaler.h>

#include <algorithm>
#include <cmath>

namespace zero {

LossScaler::LossScaler(const config::Fp16Config& config)
    : config_(config), dynamic_(config.enabled && config.loss_scale == 0.0) {
  if (config.enabled) {
    state_.scale = dynamic_ ? std::ldexp(1.0, config.initial_scale_power) : config.loss_scale;
  }
  state_.hysteresis_left = config.hysteresis;
}

LossScaler::Change LossScaler::update(bool overflowed) noexcept {
  const Change change = !dynamic_ ? Change::kNone : overflowed ? overflow() : good_step();
  ++state_.steps;
  return change;
}

LossScaler::Change LossScaler::overflow() noexcept {
  state_.last_overflow_step = state_.steps;
  if (config_.hysteresis != 1 && state_.hysteresis_left != 1) {
    --state_.hysteresis_left;
    return Change::kHysteresis;
  }
  if (state_.scale == config_.min_loss_scale) {
    return Change::kAtMinimum;
  }
  state_.scale = std::max(state_.scale / 2.0, config_.min_loss_scale);
  return Change::kHalved;
}

LossScaler::Change LossScaler::good_step() noexcept {
  if (config_.consecutive_hysteresis) {
    state_.hysteresis_left = config_.hysteresis;
  }
  const std::int64_t since = state_.steps - state_.last_overflow_step - 1;
  if (since <= 0 || since % config_.loss_scale_window != 0) {
    return Change::kNone;
  }
  state_.scale *= 2.0;
  state_.hysteresis_left = config_.hysteresis;
  return Change::kDoubled;
}

}  // namespace zero
