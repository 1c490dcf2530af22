#include <zero/accel/arena.h>
#include <zero/accel/device.h>
#include <zero/nn/attention.h>

namespace zero::nn {

CausalSelfAttention::CausalSelfAttention(const std::string& name, const Options& options)
    : Module(name),
      width_(options.width),
      heads_(options.heads),
      c_attn_(name + ".c_attn",
              {.in = options.width, .out = 3 * options.width, .init_std = options.init_std}),
      c_proj_(name + ".c_proj",
              {.in = options.width, .out = options.width, .init_std = options.output_init_std}),
      probabilities_(name + ".attn_dropout", options.attention_dropout),
      output_(name + ".resid_dropout", options.residual_dropout) {
  add_child(c_attn_);
  add_child(c_proj_);
}

CausalSelfAttention::Saved CausalSelfAttention::take_saved(const TokenGrid& grid,
                                                           DType dtype,
                                                           accel::Arena& arena) const {
  Saved saved;
  saved.qkv = arena.take(dtype, Shape{grid.batch, grid.tokens, 3 * width_});
  saved.out = arena.take(dtype, Shape{grid.batch, grid.tokens, width_});
  saved.lse = arena.take(DType::kF32, Shape{grid.batch, heads_, grid.tokens});
  return saved;
}

accel::Attention CausalSelfAttention::shape(const TokenGrid& grid,
                                            const Execution& execution) const {
  return {.batch = grid.batch,
          .tokens = grid.tokens,
          .heads = heads_,
          .width = width_,
          .dropout = probabilities_.in(execution)};
}

void CausalSelfAttention::forward_onto(ConstTensorView x,
                                       TensorView y,
                                       const TokenGrid& grid,
                                       const Saved& saved,
                                       Execution& execution) const {
  c_attn_.forward(x, saved.qkv, /*accumulate=*/false, execution);
  execution.device.kernels().attention_forward(
      shape(grid, execution), saved.qkv, saved.out, saved.lse, execution.stream);
  project_onto(c_proj_, saved.out, output_, y, execution);
}

void CausalSelfAttention::backward(const Recompute& input,
                                   ConstTensorView dy,
                                   TensorView dx,
                                   const TokenGrid& grid,
                                   const Saved& saved,
                                   Execution& execution) const {
  const accel::Arena::Scope workspace(execution.arena);
  const ConstTensorView dproj = output_.backward(dy, execution);
  c_proj_.backward_parameters(saved.out, dproj, execution);
  // dx serves three times: gradient of the attention's output, then x again, then its own purpose.
  c_proj_.backward_input(dproj, dx, execution);
  const TensorView dqkv = execution.arena.take(dx.dtype, saved.qkv.shape);
  const TensorView delta = execution.arena.take(DType::kF32, saved.lse.shape);
  execution.device.kernels().attention_backward(
      shape(grid, execution), saved.qkv, saved.out, saved.lse, dx, delta, dqkv, execution.stream);
  input(dx);
  c_attn_.backward_parameters(dx, dqkv, execution);
  c_attn_.backward_input(dqkv, dx, execution);
}

}  // namespace zero::nn
