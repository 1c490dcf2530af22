#pragma once

#include <zero/config/config.h>

#include <cstdint>

namespace zero {

/// The loss scale of fp16 training and how it reacts to overflows (Micikevicius et al. 2018,
/// section 3.2; ds_config block `fp16`). The same state machine for every ZeRO stage; equal on all
/// ranks because its input is.
///
/// Source of the rules: DeepSpeed's dynamic scaler of stages 1 to 3. One difference, stated in
/// docs/NUMERICS.md: the update of a step is unscaled by the scale that multiplied its loss, also
/// when the scale grows on that step.
class LossScaler {
 public:
  /// What a checkpoint has to keep.
  struct State {
    double scale = 1.0;
    std::int64_t steps = 0;  ///< boundary steps seen
    std::int64_t last_overflow_step = -1;
    std::int64_t hysteresis_left = 1;
    friend bool operator==(const State&, const State&) = default;
  };
  /// How an update changed the scale.
  enum class Change : std::uint8_t { kNone, kHysteresis, kHalved, kAtMinimum, kDoubled };

  /// fp32 and bf16 (fp16 not enabled): scale 1, for ever. loss_scale > 0: static.
  explicit LossScaler(const config::Fp16Config& config);

  [[nodiscard]] double scale() const noexcept { return state_.scale; }
  [[nodiscard]] bool dynamic() const noexcept { return dynamic_; }
  /// Takes one boundary step into account, after it has used scale(). kAtMinimum: an overflow at
  /// the smallest scale, which cannot be lowered; the caller decides how many of these it
  /// tolerates.
  Change update(bool overflow) noexcept;
  [[nodiscard]] const State& state() const noexcept { return state_; }
  void restore(const State& state) noexcept { state_ = state; }

 private:
  Change overflow() noexcept;
  Change good_step() noexcept;

  config::Fp16Config config_;
  bool dynamic_ = false;
  State state_;
};

}  // namespace zero
