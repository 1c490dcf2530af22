#pragma once

#include <zero/core/module.h>

#include <cstdint>
#include <memory>
#include <string>

namespace zero::nn {

/// y = x · W + b with W [in, out] (HuggingFace's Conv1D layout) and b [out], if there is one.
///
/// x is [..., in], y is [..., out]; all of the parameters' dtype. Sends no events (see events.h).
class Linear : public Module {
 public:
  struct Options {
    std::int64_t in = 0;
    std::int64_t out = 0;
    double init_std = 0.02;  ///< of the weight; the bias starts at 0
    bool bias = true;
  };
  /// Declares `name`.weight and `name`.bias.
  Linear(const std::string& name, const Options& options);

  [[nodiscard]] std::int64_t in() const noexcept { return in_; }
  [[nodiscard]] std::int64_t out() const noexcept { return out_; }

  /// Writes y, or adds to it: the residual stream takes a layer's output that way, with one
  /// rounding.
  void forward(ConstTensorView x, TensorView y, bool accumulate, Execution& execution) const;
  /// Gradients of W (xᵀ · dy) and b (column sums of dy).
  void backward_parameters(ConstTensorView x, ConstTensorView dy, Execution& execution) const;
  /// dx = dy · Wᵀ.
  void backward_input(ConstTensorView dy, TensorView dx, Execution& execution) const;

 private:
  std::int64_t in_;
  std::int64_t out_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;  // nullptr: none
};

}  // namespace zero::nn
