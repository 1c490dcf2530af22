#pragma once

#include "engine/accel/cpu/host_memory.h"
#include "engine/accel/cpu/loops.h"
#include <zero/accel/device.h>
#include <zero/accel/kernels.h>

namespace zero::accel {

/// The kernels of the CPU, by subject: gemm_*.cpp, elementwise.cpp, layernorm.cpp, embedding.cpp,
/// attention.cpp, cross_entropy.cpp, optimizer.cpp. Each call checks shapes, then enqueues a loop.
class CpuKernels final : public Kernels {
 public:
  explicit CpuKernels(Device& device) : device_(device) {}

  void gemm(const Gemm& gemm, Stream& stream) const override;
  void column_sum(ConstTensorView x,
                  TensorView out,
                  bool accumulate,
                  Stream& stream) const override;
  void add(ConstTensorView a, ConstTensorView b, TensorView out, Stream& stream) const override;
  void scale(ConstTensorView x, float factor, TensorView out, Stream& stream) const override;
  void dropout(ConstTensorView x,
               const Dropout& dropout,
               std::int64_t samples,
               TensorView out,
               Stream& stream) const override;
  void cast(ConstTensorView src, TensorView dst, Stream& stream) const override;
  void accumulate(ConstTensorView src,
                  TensorView dst,
                  bool overwrite,
                  Stream& stream) const override;
  void relu_forward(ConstTensorView x, TensorView y, Stream& stream) const override;
  void relu_backward(ConstTensorView x,
                     ConstTensorView dy,
                     TensorView dx,
                     Stream& stream) const override;
  void gelu_forward(ConstTensorView x, TensorView y, Stream& stream) const override;
  void gelu_backward(ConstTensorView x,
                     ConstTensorView dy,
                     TensorView dx,
                     Stream& stream) const override;
  void layernorm_forward(ConstTensorView x,
                         ConstTensorView weight,
                         ConstTensorView bias,
                         float eps,
                         TensorView y,
                         TensorView mean,
                         TensorView rstd,
                         Stream& stream) const override;
  void layernorm_backward(const LayerNormBackward& args, Stream& stream) const override;
  void embedding_forward(ConstTensorView tokens,
                         ConstTensorView table,
                         ConstTensorView positions,
                         TensorView out,
                         Stream& stream) const override;
  void embedding_backward(ConstTensorView tokens,
                          ConstTensorView dout,
                          TensorView dtable,
                          bool accumulate_table,
                          TensorView dpositions,
                          bool accumulate_positions,
                          Stream& stream) const override;
  void attention_forward(const Attention& shape,
                         ConstTensorView qkv,
                         TensorView out,
                         TensorView lse,
                         Stream& stream) const override;
  void attention_backward(const Attention& shape,
                          ConstTensorView qkv,
                          ConstTensorView out,
                          ConstTensorView lse,
                          ConstTensorView dout,
                          TensorView delta,
                          TensorView dqkv,
                          Stream& stream) const override;
  void cross_entropy_forward(ConstTensorView logits,
                             ConstTensorView targets,
                             TensorView losses,
                             Stream& stream) const override;
  void cross_entropy_backward(const CrossEntropy& args,
                              ConstTensorView targets,
                              TensorView logits,
                              Stream& stream) const override;
  void mean(ConstTensorView values, double divisor, TensorView out, Stream& stream) const override;
  void argmax(ConstTensorView logits, TensorView out, Stream& stream) const override;
  void sum_of_squares(ConstTensorView x, TensorView limbs, Stream& stream) const override;
  void sum_exactly(ConstTensorView x, TensorView limbs, Stream& stream) const override;
  void step_scalars(const StepDecision& decision,
                    ConstTensorView limbs,
                    TensorView scalars,
                    Stream& stream) const override;
  void adam(const AdamArgs& args, ConstTensorView scalars, Stream& stream) const override;
  void sgd(const SgdArgs& args, ConstTensorView scalars, Stream& stream) const override;
  void lion(const LionArgs& args, ConstTensorView scalars, Stream& stream) const override;
  void adagrad(const AdagradArgs& args, ConstTensorView scalars, Stream& stream) const override;

 private:
  [[nodiscard]] int threads() const { return device_.threads(); }
  Device& device_;
};

}  // namespace zero::accel
