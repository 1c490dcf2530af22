#include <zero/accel/arena.h>
#include <zero/accel/device.h>
#include <zero/nn/mlp.h>

namespace zero::nn {

Mlp::Mlp(const std::string& name, const Options& options)
    : Module(name),
      inner_(options.inner),
      c_fc_(name + ".c_fc",
            {.in = options.width, .out = options.inner, .init_std = options.init_std}),
      c_proj_(name + ".c_proj",
              {.in = options.inner, .out = options.width, .init_std = options.output_init_std}),
      output_(name + ".dropout", options.residual_dropout) {
  add_child(c_fc_);
  add_child(c_proj_);
}

Mlp::Saved Mlp::take_saved(const TokenGrid& grid, DType dtype, accel::Arena& arena) const {
  return {arena.take(dtype, Shape{grid.batch, grid.tokens, inner_})};
}

void Mlp::recompute(ConstTensorView x, const Saved& saved, Execution& execution) const {
  c_fc_.forward(x, saved.hidden, /*accumulate=*/false, execution);
}

void Mlp::forward_onto(ConstTensorView x,
                       TensorView y,
                       const Saved& saved,
                       Execution& execution) const {
  recompute(x, saved, execution);
  const accel::Arena::Scope workspace(execution.arena);
  const TensorView active = execution.arena.take(y.dtype, saved.hidden.shape);
  execution.device.kernels().gelu_forward(saved.hidden, active, execution.stream);
  project_onto(c_proj_, active, output_, y, execution);
}

void Mlp::backward(const Recompute& input,
                   ConstTensorView dy,
                   TensorView dx,
                   const Saved& saved,
                   Execution& execution) const {
  const accel::Kernels& kernels = execution.device.kernels();
  const accel::Arena::Scope workspace(execution.arena);
  // One [M, F] buffer serves twice: gelu's output for c_proj's weight, then the gradient that
  // passes through.
  const TensorView dhidden = execution.arena.take(dx.dtype, saved.hidden.shape);
  kernels.gelu_forward(saved.hidden, dhidden, execution.stream);
  const ConstTensorView dproj = output_.backward(dy, execution);
  c_proj_.backward_parameters(dhidden, dproj, execution);
  c_proj_.backward_input(dproj, dhidden, execution);
  kernels.gelu_backward(saved.hidden, dhidden, dhidden, execution.stream);
  input(dx);
  c_fc_.backward_parameters(dx, dhidden, execution);
  c_fc_.backward_input(dhidden, dx, execution);
}

}  // namespace zero::nn
