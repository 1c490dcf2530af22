#include <zero/accel/device.h>
#include <zero/nn/events.h>
#include <zero/nn/layernorm.h>

namespace zero::nn {

RowStatistics RowStatistics::take(std::int64_t rows, accel::Arena& arena) {
  RowStatistics statistics;
  statistics.mean = arena.take(DType::kF32, Shape{rows});
  statistics.rstd = arena.take(DType::kF32, Shape{rows});
  return statistics;
}

LayerNorm::LayerNorm(const std::string& name, std::int64_t width, float eps)
    : Module(name), width_(width), eps_(eps) {
  weight_ = add_parameter("weight", Shape{width}, Init::constant(1.0F));
  bias_ = add_parameter("bias", Shape{width}, Init::constant(0.0F));
}

void LayerNorm::forward(ConstTensorView x,
                        TensorView y,
                        const RowStatistics& statistics,
                        Execution& execution) const {
  const Shape rows{x.elems() / width_, width_};
  execution.device.kernels().layernorm_forward(x.reshape(rows),
                                               weight_->value,
                                               bias_->value,
                                               eps_,
                                               y.reshape(rows),
                                               statistics.mean,
                                               statistics.rstd,
                                               execution.stream);
}

void LayerNorm::backward(ConstTensorView dy,
                         ConstTensorView x,
                         const RowStatistics& statistics,
                         TensorView dx,
                         bool accumulate_dx,
                         Execution& execution) const {
  const Shape rows{x.elems() / width_, width_};
  const accel::Kernels& kernels = execution.device.kernels();
  // The kernel has one accumulate flag for both parameters; where they differ, the bias goes alone.
  const bool together = !weight_->grad || weight_->grad_accumulate == bias_->grad_accumulate;
  kernels.layernorm_backward(
      {.dy = dy.reshape(rows),
       .x = x.reshape(rows),
       .weight = weight_->value,
       .mean = statistics.mean,
       .rstd = statistics.rstd,
       .dx = dx.reshape(rows),
       .dweight = weight_->grad,
       .dbias = together ? bias_->grad : TensorView{},
       .accumulate_dx = accumulate_dx,
       .accumulate_dw = weight_->grad ? weight_->grad_accumulate : bias_->grad_accumulate},
      execution.stream);
  if (weight_->grad) {
    announce_gradient(*weight_, execution);
  }
  give_gradient(*bias_, execution, [&](TensorView grad, bool accumulate) {
    if (!together) {
      kernels.column_sum(dy.reshape(rows), grad, accumulate, execution.stream);
    }
  });
}

}  // namespace zero::nn
