#pragma once

#include <zero/nn/attention.h>

namespace zero::nn {

/// y = gelu(x · W₁ + b₁) · W₂ + b₂, the feed-forward half of a transformer block, GELU in its tanh
/// form.
///
/// x and y are [B, T, C]. Sends no events (see events.h).
class Mlp : public Module {
 public:
  struct Options {
    std::int64_t width = 0;  ///< C
    std::int64_t inner = 0;  ///< F
    double init_std = 0.02;
    double output_init_std = 0.02;  ///< of c_proj.weight
    float residual_dropout = 0.0F;  ///< of the output
  };
  /// What backward needs; gelu's output is computed again.
  struct Saved {
    TensorView hidden;  ///< [B, T, F], before gelu
  };
  /// Declares `name`.c_fc.* and `name`.c_proj.*.
  Mlp(const std::string& name, const Options& options);

  [[nodiscard]] Saved take_saved(const TokenGrid& grid, DType dtype, accel::Arena& arena) const;
  /// Adds mlp(x) to y.
  void forward_onto(ConstTensorView x,
                    TensorView y,
                    const Saved& saved,
                    Execution& execution) const;
  /// What forward_onto(x, …) saves, alone.
  void recompute(ConstTensorView x, const Saved& saved, Execution& execution) const;
  /// dx from dy; `input` writes x again. dx may not be dy.
  void backward(const Recompute& input,
                ConstTensorView dy,
                TensorView dx,
                const Saved& saved,
                Execution& execution) const;

 private:
  std::int64_t inner_;
  Linear c_fc_;
  Linear c_proj_;
  DropoutSite output_;
};

}  // namespace zero::nn
