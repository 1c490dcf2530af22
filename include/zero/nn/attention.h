#pragma once

#include <zero/nn/dropout.h>
#include <zero/nn/linear.h>

#include <functional>

namespace zero::nn {

/// Writes a module's input once more into the given view: backward recomputes what is cheap instead
/// of keeping it.
using Recompute = std::function<void(TensorView out)>;

/// Tokens of a micro-batch: B rows of T.
struct TokenGrid {
  std::int64_t batch = 0;   ///< B
  std::int64_t tokens = 0;  ///< T
  [[nodiscard]] std::int64_t rows() const noexcept { return batch * tokens; }
};

/// Causal self-attention with one projection for q, k, v and one for the output. Source: GPT-2
/// (Radford et al. 2019); the T × T scores never lie in memory.
///
/// x and y are [B, T, C]. Sends no events (see events.h).
class CausalSelfAttention : public Module {
 public:
  struct Options {
    std::int64_t width = 0;  ///< C
    std::int64_t heads = 0;  ///< H, divides C
    double init_std = 0.02;
    double output_init_std = 0.02;   ///< of c_proj.weight
    float attention_dropout = 0.0F;  ///< of the probabilities
    float residual_dropout = 0.0F;   ///< of the output
  };
  /// What backward needs.
  struct Saved {
    TensorView qkv;  ///< [B, T, 3C]
    TensorView out;  ///< [B, T, C], before the output projection
    TensorView lse;  ///< fp32 [B, H, T]
  };
  /// Declares `name`.c_attn.* and `name`.c_proj.*.
  CausalSelfAttention(const std::string& name, const Options& options);

  [[nodiscard]] Saved take_saved(const TokenGrid& grid, DType dtype, accel::Arena& arena) const;
  /// Adds attention(x) to y.
  void forward_onto(ConstTensorView x,
                    TensorView y,
                    const TokenGrid& grid,
                    const Saved& saved,
                    Execution& execution) const;
  /// dx from dy; `input` writes x again. dx may not be dy.
  void backward(const Recompute& input,
                ConstTensorView dy,
                TensorView dx,
                const TokenGrid& grid,
                const Saved& saved,
                Execution& execution) const;

 private:
  [[nodiscard]] accel::Attention shape(const TokenGrid& grid, const Execution& execution) const;

  std::int64_t width_;
  std::int64_t heads_;
  Linear c_attn_;
  Linear c_proj_;
  DropoutSite probabilities_;
  DropoutSite output_;
};

}  // namespace zero::nn
