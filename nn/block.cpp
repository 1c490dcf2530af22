#include <zero/accel/device.h>
#include <zero/nn/block.h>

namespace zero::nn {

Block::Block(const std::string& name, const Options& options)
    : Module(name),
      ln_1_(name + ".ln_1", options.width, options.layer_norm_eps),
      attention_(name + ".attn",
                 {.width = options.width,
                  .heads = options.heads,
                  .init_std = options.init_std,
                  .output_init_std = options.output_init_std,
                  .attention_dropout = options.attention_dropout,
                  .residual_dropout = options.residual_dropout}),
      ln_2_(name + ".ln_2", options.width, options.layer_norm_eps),
      mlp_(name + ".mlp",
           {.width = options.width,
            .inner = options.inner,
            .init_std = options.init_std,
            .output_init_std = options.output_init_std,
            .residual_dropout = options.residual_dropout}) {
  set_block();
  add_child(ln_1_);
  add_child(attention_);
  add_child(ln_2_);
  add_child(mlp_);
}

Block::Saved Block::forward(ConstTensorView x,
                            TensorView y,
                            const TokenGrid& grid,
                            Execution& execution) const {
  return run(x, y, grid, execution);
}

Block::Saved Block::recompute(ConstTensorView x,
                              const TokenGrid& grid,
                              Execution& execution) const {
  return run(x, {}, grid, execution);
}

Block::Saved Block::run(ConstTensorView x,
                        TensorView y,
                        const TokenGrid& grid,
                        Execution& execution) const {
  accel::Arena& arena = execution.arena;
  Saved saved;
  saved.x = x;
  saved.ln_1 = RowStatistics::take(grid.rows(), arena);
  saved.attention = attention_.take_saved(grid, x.dtype, arena);
  saved.mid = arena.take(x.dtype, x.shape);
  saved.ln_2 = RowStatistics::take(grid.rows(), arena);
  saved.mlp = mlp_.take_saved(grid, x.dtype, arena);

  {
    const accel::Arena::Scope workspace(arena);
    const TensorView normed = arena.take(x.dtype, x.shape);
    ln_1_.forward(x, normed, saved.ln_1, execution);
    execution.device.copy(x, saved.mid, execution.stream);
    attention_.forward_onto(normed, saved.mid, grid, saved.attention, execution);
  }
  const accel::Arena::Scope workspace(arena);
  const TensorView normed = arena.take(x.dtype, x.shape);
  ln_2_.forward(saved.mid, normed, saved.ln_2, execution);
  if (!y) {
    mlp_.recompute(normed, saved.mlp, execution);
    return saved;
  }
  execution.device.copy(saved.mid, y, execution.stream);
  mlp_.forward_onto(normed, y, saved.mlp, execution);
  return saved;
}

void Block::backward(const Saved& saved,
                     TensorView gradient,
                     const TokenGrid& grid,
                     Execution& execution) const {
  // Each half adds its own path to the residual gradient, which passes through unchanged.
  const accel::Arena::Scope workspace(execution.arena);
  const TensorView dnormed = execution.arena.take(gradient.dtype, gradient.shape);
  mlp_.backward([&](TensorView out) { ln_2_.forward(saved.mid, out, saved.ln_2, execution); },
                gradient,
                dnormed,
                saved.mlp,
                execution);
  ln_2_.backward(dnormed, saved.mid, saved.ln_2, gradient, /*accumulate_dx=*/true, execution);
  attention_.backward([&](TensorView out) { ln_1_.forward(saved.x, out, saved.ln_1, execution); },
                      gradient,
                      dnormed,
                      grid,
                      saved.attention,
                      execution);
  ln_1_.backward(dnormed, saved.x, saved.ln_1, gradient, /*accumulate_dx=*/true, execution);
}

}  // namespace zero::nn
