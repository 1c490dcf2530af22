#pragma once

#include <zero/nn/attention.h>
#include <zero/nn/layernorm.h>
#include <zero/nn/mlp.h>

namespace zero::nn {

/// A pre-normalisation transformer block: mid = x + attention(ln_1(x)), y = mid + mlp(ln_2(mid)).
///
/// The unit of gathering and reduction: before_* and after_* are sent for the block alone, and
/// stand for all layers in it. Whoever runs it sends them.
class Block : public Module {
 public:
  struct Options {
    std::int64_t width = 0;
    std::int64_t heads = 0;
    std::int64_t inner = 0;
    float layer_norm_eps = 1e-5F;
    double init_std = 0.02;
    double output_init_std = 0.02;  ///< of both c_proj.weight: 0.02 / sqrt(2 · layers) in GPT-2
    float attention_dropout = 0.0F;
    float residual_dropout = 0.0F;
  };
  /// What backward needs, besides x: 6C + F elements and 4 + H fp32 numbers a token.
  struct Saved {
    ConstTensorView x;
    RowStatistics ln_1;
    CausalSelfAttention::Saved attention;
    TensorView mid;  ///< [B, T, C]
    RowStatistics ln_2;
    Mlp::Saved mlp;
  };
  Block(const std::string& name, const Options& options);

  /// y [B, T, C] from x [B, T, C]; the result refers to x and to memory taken from the arena.
  [[nodiscard]] Saved forward(ConstTensorView x,
                              TensorView y,
                              const TokenGrid& grid,
                              Execution& execution) const;
  /// What forward(x) saved, without its output.
  [[nodiscard]] Saved recompute(ConstTensorView x,
                                const TokenGrid& grid,
                                Execution& execution) const;
  /// `gradient` [B, T, C]: the residual stream's, of y on entry, of x on return.
  void backward(const Saved& saved,
                TensorView gradient,
                const TokenGrid& grid,
                Execution& execution) const;

 private:
  /// Everything up to the hidden layer of the MLP; with `y` all of it.
  [[nodiscard]] Saved run(ConstTensorView x,
                          TensorView y,
                          const TokenGrid& grid,
                          Execution& execution) const;

  LayerNorm ln_1_;
  CausalSelfAttention attention_;
  LayerNorm ln_2_;
  Mlp mlp_;
};

}  // namespace zero::nn
