#include <zero/accel/device.h>
#include <zero/nn/events.h>
#include <zero/nn/linear.h>

namespace zero::nn {
namespace {

/// x [..., width] as [M, width].
template <class View>
View as_rows(View x, std::int64_t width) {
  ZERO_CHECK(x.elems() % width == 0, "rows of another width");
  return x.reshape(Shape{x.elems() / width, width});
}

}  // namespace

Linear::Linear(const std::string& name, const Options& options)
    : Module(name), in_(options.in), out_(options.out) {
  weight_ = add_parameter("weight", Shape{in_, out_}, Init::normal(options.init_std));
  if (options.bias) {
    bias_ = add_parameter("bias", Shape{out_}, Init::constant(0.0F));
  }
}

void Linear::forward(ConstTensorView x, TensorView y, bool accumulate, Execution& execution) const {
  execution.device.kernels().gemm({.a = as_rows(x, in_),
                                   .b = weight_->value,
                                   .c = as_rows(y, out_),
                                   .accumulate = accumulate,
                                   .bias = bias_ ? bias_->value : TensorView{}},
                                  execution.stream);
}

void Linear::backward_parameters(ConstTensorView x,
                                 ConstTensorView dy,
                                 Execution& execution) const {
  const accel::Kernels& kernels = execution.device.kernels();
  give_gradient(*weight_, execution, [&](TensorView grad, bool accumulate) {
    kernels.gemm({.a = as_rows(x, in_),
                  .b = as_rows(dy, out_),
                  .c = grad,
                  .transpose_a = true,
                  .accumulate = accumulate},
                 execution.stream);
  });
  if (bias_) {
    give_gradient(*bias_, execution, [&](TensorView grad, bool accumulate) {
      kernels.column_sum(as_rows(dy, out_), grad, accumulate, execution.stream);
    });
  }
}

void Linear::backward_input(ConstTensorView dy, TensorView dx, Execution& execution) const {
  execution.device.kernels().gemm(
      {.a = as_rows(dy, out_), .b = weight_->value, .c = as_rows(dx, in_), .transpose_b = true},
      execution.stream);
}

}  // namespace zero::nn
