#pragma once

#include <zero/accel/stream.h>
#include <zero/core/exact_sum.h>
#include <zero/core/tensor_view.h>

#include <cstdint>
#include <span>

namespace zero::accel {

/// C[m, n] = op(A)[m, k] · op(B)[k, n] (+ bias) (+ C), row-major, fp32 accumulation, one rounding
/// to C's dtype.
struct Gemm {
  ConstTensorView a;  ///< [m, k], or [k, m] with transpose_a
  ConstTensorView b;  ///< [k, n], or [n, k] with transpose_b
  TensorView c;       ///< [m, n]
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;    ///< add to what C holds
  ConstTensorView bias = {};  ///< [n], or empty
};

/// Causal self-attention of H heads over packed projections.
/// Which elements are dropped (set to 0; the others are divided by 1 − rate): a pure function of
/// stream, global sample and element. Source: Srivastava et al. 2014, in its inverted form.
struct Dropout {
  float rate = 0.0F;              ///< below 1; 0: none
  std::uint64_t stream = 0;       ///< of the seed and the place in the model
  std::int64_t first_sample = 0;  ///< global number of row 0
};

struct Attention {
  std::int64_t batch = 0;   ///< B
  std::int64_t tokens = 0;  ///< T
  std::int64_t heads = 0;   ///< H
  std::int64_t width = 0;   ///< C = H · head size; scores are scaled by 1/sqrt(C/H)
  Dropout dropout{};        ///< of the probabilities; the same in forward and backward
};

/// How gradients of one backward end up: mean over rows times seed.
struct CrossEntropy {
  float seed = 1.0F;  ///< multiplies the gradient: loss scale ÷ accumulation steps
  std::int64_t counted =
      0;  ///< number of rows that the mean is taken over (of the whole micro-batch)
};

/// Number of 64-bit limbs of an exact sum of squares or losses, see zero/core/exact_sum.h.
inline constexpr int kNormLimbs = exact_sum::kLimbs;

/// Scalars of one optimizer step, in device memory, written by `step_scalars`, read by the update
/// kernels.
struct StepScalars {
  float gradient_factor = 1.0F;  ///< unscale × clip, one factor for every gradient
  std::int32_t skip = 0;         ///< 1: not finite somewhere, change nothing
  double grad_norm = 0.0;        ///< before clipping, unscaled; NaN if not finite
  double loss = 0.0;             ///< mean over ranks and micro-steps
};

/// Hyper-parameters of one update of one segment (one parameter group).
struct AdamArgs {
  TensorView master;      ///< fp32 [n], updated in place
  TensorView exp_avg;     ///< fp32 [n]
  TensorView exp_avg_sq;  ///< fp32 [n]
  ConstTensorView grad;   ///< [n], accumulation dtype
  TensorView
      model_copy;  ///< [n] fp16/bf16: master rounded once; empty if the master is the parameter
  double lr = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = true;  ///< AdamW; false: L2, added to the gradient
  bool bias_correction = true;
  std::int64_t t = 1;  ///< count of applied steps, this one included
};

struct SgdArgs {
  TensorView master;           ///< fp32 [n]
  TensorView momentum_buffer;  ///< fp32 [n], empty if momentum is 0
  ConstTensorView grad;        ///< [n]
  TensorView model_copy;       ///< as in AdamArgs
  double lr = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  std::int64_t t =
      1;  ///< the first applied step (t = 1) sets the buffer to the gradient, as PyTorch does
};

struct LionArgs {
  TensorView master;      ///< fp32 [n]
  TensorView exp_avg;     ///< fp32 [n]
  ConstTensorView grad;   ///< [n]
  TensorView model_copy;  ///< as in AdamArgs
  double lr = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double weight_decay = 0.0;  ///< decoupled
};

struct AdagradArgs {
  TensorView master;      ///< fp32 [n]
  TensorView sum;         ///< fp32 [n]: squares of all gradients
  ConstTensorView grad;   ///< [n]
  TensorView model_copy;  ///< as in AdamArgs
  double lr = 0.0;
  double eps = 1e-10;
  double weight_decay = 0.0;  ///< L2, added to the gradient
};

/// The kernel table: every computation on device memory. One implementation a back end; enqueues on
/// `stream` and returns. Floating tensors may be fp32, fp16 or bf16 (all of one call the same
/// unless said); arithmetic is fp32. Results depend on shape, dtype and processor only, never on
/// addresses, timing or stage. Shapes are the caller's duty and checked (InternalError).
class Kernels {
 public:
  Kernels() = default;
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  Kernels(Kernels&&) = delete;
  Kernels& operator=(Kernels&&) = delete;
  virtual ~Kernels() = default;

  // --- linear algebra
  virtual void gemm(const Gemm& gemm, Stream& stream) const = 0;
  /// out[n] (+)= Σ_m x[m, n]: the bias gradient.
  virtual void column_sum(ConstTensorView x,
                          TensorView out,
                          bool accumulate,
                          Stream& stream) const = 0;

  // --- element-wise, any shape
  virtual void add(ConstTensorView a, ConstTensorView b, TensorView out, Stream& stream) const = 0;
  /// out = factor · x
  virtual void scale(ConstTensorView x, float factor, TensorView out, Stream& stream) const = 0;
  /// out = x with elements dropped; x is `samples` rows of equal length. out may be x. Backward is
  /// the same call on the gradient.
  virtual void dropout(ConstTensorView x,
                       const Dropout& dropout,
                       std::int64_t samples,
                       TensorView out,
                       Stream& stream) const = 0;
  /// Conversion between floating dtypes, one rounding.
  virtual void cast(ConstTensorView src, TensorView dst, Stream& stream) const = 0;
  /// dst (+)= src, dtypes may differ, sum in fp32, one rounding to dst's dtype.
  virtual void accumulate(ConstTensorView src,
                          TensorView dst,
                          bool overwrite,
                          Stream& stream) const = 0;
  virtual void relu_forward(ConstTensorView x, TensorView y, Stream& stream) const = 0;
  /// dx = dy where x > 0, else 0. dx may be dy.
  virtual void relu_backward(ConstTensorView x,
                             ConstTensorView dy,
                             TensorView dx,
                             Stream& stream) const = 0;
  /// GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/π)(x + 0.044715 x³))).
  virtual void gelu_forward(ConstTensorView x, TensorView y, Stream& stream) const = 0;
  /// dx may be dy.
  virtual void gelu_backward(ConstTensorView x,
                             ConstTensorView dy,
                             TensorView dx,
                             Stream& stream) const = 0;

  // --- layer normalisation over the last dimension (Ba et al. 2016): x [M, C], weight/bias [C],
  // mean/rstd fp32 [M]
  virtual void layernorm_forward(ConstTensorView x,
                                 ConstTensorView weight,
                                 ConstTensorView bias,
                                 float eps,
                                 TensorView y,
                                 TensorView mean,
                                 TensorView rstd,
                                 Stream& stream) const = 0;
  /// dx = (or += with accumulate_dx) gradient of x. dweight / dbias may be empty (frozen); else
  /// (+)= by accumulate_dw.
  struct LayerNormBackward {
    ConstTensorView dy, x, weight, mean, rstd;
    TensorView dx, dweight, dbias;
    bool accumulate_dx = false;
    bool accumulate_dw = false;
  };
  virtual void layernorm_backward(const LayerNormBackward& args, Stream& stream) const = 0;

  // --- embedding: tokens int32 [B, T], table [V, C], positions [>= T, C] or empty, out [B, T, C]
  /// A token outside [0, V) poisons the stream with an InputError.
  virtual void embedding_forward(ConstTensorView tokens,
                                 ConstTensorView table,
                                 ConstTensorView positions,
                                 TensorView out,
                                 Stream& stream) const = 0;
  /// dtable (+)= scatter of dout; dpositions (+)= sum over B (rows >= T are zero). Either may be
  /// empty.
  virtual void embedding_backward(ConstTensorView tokens,
                                  ConstTensorView dout,
                                  TensorView dtable,
                                  bool accumulate_table,
                                  TensorView dpositions,
                                  bool accumulate_positions,
                                  Stream& stream) const = 0;

  // --- causal attention (Dao et al. 2022): no T × T matrix in memory
  /// qkv [B, T, 3C] (q, k, v blocks of C, heads inside), out [B, T, C], lse fp32 [B, H, T].
  virtual void attention_forward(const Attention& shape,
                                 ConstTensorView qkv,
                                 TensorView out,
                                 TensorView lse,
                                 Stream& stream) const = 0;
  /// dqkv [B, T, 3C] from dout [B, T, C]; delta fp32 [B, H, T] is workspace.
  virtual void attention_backward(const Attention& shape,
                                  ConstTensorView qkv,
                                  ConstTensorView out,
                                  ConstTensorView lse,
                                  ConstTensorView dout,
                                  TensorView delta,
                                  TensorView dqkv,
                                  Stream& stream) const = 0;

  // --- cross entropy over logits [M, V] with targets int32 [M] (−1: not counted)
  /// losses fp32 [M]: −log softmax(logits)[target], 0 where not counted. A target >= V poisons the
  /// stream.
  virtual void cross_entropy_forward(ConstTensorView logits,
                                     ConstTensorView targets,
                                     TensorView losses,
                                     Stream& stream) const = 0;
  /// logits become their gradient in place: (softmax − one-hot) · seed ÷ counted; 0 in rows not
  /// counted.
  virtual void cross_entropy_backward(const CrossEntropy& args,
                                      ConstTensorView targets,
                                      TensorView logits,
                                      Stream& stream) const = 0;
  /// out[0] = Σ values ÷ divisor; fp32, fixed order, fp64 accumulation.
  virtual void mean(ConstTensorView values,
                    double divisor,
                    TensorView out,
                    Stream& stream) const = 0;
  /// out[row] = index of the largest of logits[row]; the lowest index wins a tie. int32 [M].
  virtual void argmax(ConstTensorView logits, TensorView out, Stream& stream) const = 0;

  // --- optimizer step, over flat slices whose length is a multiple of 64
  /// Adds the exact sum of squares of x into limbs (int64 [kNormLimbs + 1]): blocks of 64 elements,
  /// each in fp64 with a fixed tree, then order-free integers. Element kNormLimbs counts blocks
  /// that are not finite.
  virtual void sum_of_squares(ConstTensorView x, TensorView limbs, Stream& stream) const = 0;
  /// Adds the fp32 scalar x[0], exactly, into limbs (int64 [kNormLimbs + 1]), with the same flag.
  virtual void sum_exactly(ConstTensorView x, TensorView limbs, Stream& stream) const = 0;
  /// From the all-reduced limbs (int64 [2, kNormLimbs + 1]: squares, losses): norm, factor, skip
  /// flag and mean loss.
  struct StepDecision {
    double loss_scale = 1.0;    ///< S: the gradients are S times too large
    double clip = 0.0;          ///< gradient_clipping; 0 = off
    double loss_divisor = 1.0;  ///< ranks × micro-steps
    bool check_overflow = true;
  };
  virtual void step_scalars(const StepDecision& decision,
                            ConstTensorView limbs,
                            TensorView scalars,
                            Stream& stream) const = 0;
  /// Update of one segment, in one pass with unscale, clip and cast. Does nothing if scalars say
  /// skip. scalars: uint8 [sizeof(StepScalars)].
  virtual void adam(const AdamArgs& args, ConstTensorView scalars, Stream& stream) const = 0;
  virtual void sgd(const SgdArgs& args, ConstTensorView scalars, Stream& stream) const = 0;
  virtual void lion(const LionArgs& args, ConstTensorView scalars, Stream& stream) const = 0;
  virtual void adagrad(const AdagradArgs& args, ConstTensorView scalars, Stream& stream) const = 0;
};

}  // namespace zero::accel
