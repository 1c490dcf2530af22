#include <zero/accel/arena.h>
#include <zero/core/rng.h>
#include <zero/nn/dropout.h>

namespace zero::nn {

DropoutSite::DropoutSite(std::string_view name, float rate) : rate_(rate), place_(fnv1a64(name)) {
  if (!(rate >= 0.0F && rate < 1.0F)) {
    throw InputError("a dropout rate is not in [0, 1)", std::string(name), "give a share below 1");
  }
}

accel::Dropout DropoutSite::in(const Execution& execution) const noexcept {
  return {acts(execution) ? rate_ : 0.0F,
          splitmix64_at(place_, execution.random.seed),
          execution.random.first_sample};
}

void DropoutSite::apply(TensorView x, Execution& execution) const {
  if (acts(execution)) {
    execution.device.kernels().dropout(x, in(execution), x.shape[0], x, execution.stream);
  }
}

ConstTensorView DropoutSite::backward(ConstTensorView dy, Execution& execution) const {
  if (!acts(execution)) {
    return dy;
  }
  const TensorView dropped = execution.arena.take(dy.dtype, dy.shape);
  execution.device.kernels().dropout(dy, in(execution), dy.shape[0], dropped, execution.stream);
  return dropped;
}

void project_onto(const Linear& projection,
                  ConstTensorView x,
                  const DropoutSite& site,
                  TensorView y,
                  Execution& execution) {
  if (!site.acts(execution)) {
    projection.forward(x, y, /*accumulate=*/true, execution);
    return;
  }
  const accel::Arena::Scope workspace(execution.arena);
  const TensorView product = execution.arena.take(y.dtype, y.shape);
  projection.forward(x, product, /*accumulate=*/false, execution);
  site.apply(product, execution);
  execution.device.kernels().add(y, product, y, execution.stream);
}

}  // namespace zero::nn
