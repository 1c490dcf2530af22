#pragma once

#include <zero/accel/device.h>
#include <zero/nn/linear.h>

#include <string_view>

namespace zero::nn {

/// One place in a model where activations are dropped in training (phases kTrain and kRecompute).
/// Which ones depends on the seed, the global sample, the place and the element alone.
class DropoutSite {
 public:
  /// `rate`: share that is dropped, 0 ≤ rate < 1.
  DropoutSite(std::string_view name, float rate);

  /// For this pass; rate 0 in evaluation.
  [[nodiscard]] accel::Dropout in(const Execution& execution) const noexcept;
  /// Whether this pass drops anything here.
  [[nodiscard]] bool acts(const Execution& execution) const noexcept {
    return rate_ > 0.0F && execution.phase != Phase::kEval;
  }
  /// x [B, …] with elements dropped, in place. Nothing to do where acts() is false.
  void apply(TensorView x, Execution& execution) const;
  /// The gradient of what was dropped here, given that of the result: dy itself where nothing was,
  /// else workspace of the arena.
  [[nodiscard]] ConstTensorView backward(ConstTensorView dy, Execution& execution) const;

 private:
  float rate_;
  std::uint64_t place_;
};

/// y += projection(x) with elements of the product dropped; one rounding where nothing is dropped.
void project_onto(const Linear& projection,
                  ConstTensorView x,
                  const DropoutSite& site,
                  TensorView y,
                  Execution& execution);

}  // namespace zero::nn
