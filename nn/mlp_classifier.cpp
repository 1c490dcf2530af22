#include <zero/accel/arena.h>
#include <zero/accel/device.h>
#include <zero/nn/events.h>
#include <zero/nn/mlp_classifier.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace zero::nn {

MlpClassifier::MlpClassifier(const std::vector<std::int64_t>& sizes) : Trainable("") {
  if (sizes.size() < 2 || *std::min_element(sizes.begin(), sizes.end()) < 1) {
    throw InputError("a classifier needs at least two sizes, all positive", "MlpClassifier");
  }
  for (std::size_t layer = 0; layer + 1 < sizes.size(); ++layer) {
    layers_.push_back(std::make_unique<Linear>(
        fmt::format("layers.{}", layer),
        Linear::Options{.in = sizes[layer],
                        .out = sizes[layer + 1],
                        // Keeps the variance through ReLU; source: He et al. 2015.
                        .init_std = std::sqrt(2.0 / static_cast<double>(sizes[layer]))}));
    add_child(*layers_.back());
  }
}

void MlpClassifier::run_layers(Pending& pending, const HostTensor& features, Execution& execution) {
  accel::Arena& arena = execution.arena;
  const accel::Kernels& kernels = execution.device.kernels();
  const TensorView raw = arena.take(DType::kF32, features.shape);
  execution.device.upload(features.storage, raw, execution.stream);
  TensorView x = raw;
  for (const auto& layer : layers_) {
    during_forward(*layer, execution, [&] {
      const DType dtype = layer->parameters().front()->value.dtype;
      if (x.dtype != dtype) {  // the features, once
        const TensorView rounded = arena.take(dtype, x.shape);
        kernels.cast(x, rounded, execution.stream);
        x = rounded;
      }
      pending.inputs.push_back(x);
      const TensorView y = arena.take(dtype, Shape{pending.rows, layer->out()});
      if (layer == layers_.back()) {
        layer->forward(x, y, /*accumulate=*/false, execution);
      } else {
        const accel::Arena::Scope workspace(arena);
        const TensorView sum = arena.take(dtype, y.shape);
        layer->forward(x, sum, /*accumulate=*/false, execution);
        kernels.relu_forward(sum, y, execution.stream);
      }
      x = y;
    });
  }
  pending.logits = x;
}

void MlpClassifier::forward(const Batch& batch, TensorView loss, Execution& execution) {
  accel::Arena& arena = execution.arena;
  Pending pending{.mark = arena.mark(), .rows = batch.inputs.shape[0]};
  pending.targets = arena.take(DType::kI32, batch.targets.shape);
  execution.device.upload(batch.targets.storage, pending.targets, execution.stream);
  const auto classes = batch.targets.view().as<std::int32_t>();
  pending.counted = std::max<std::int64_t>(
      1, std::count_if(classes.begin(), classes.end(), [](std::int32_t c) { return c >= 0; }));
  run_layers(pending, batch.inputs, execution);
  {
    const accel::Arena::Scope workspace(arena);
    const TensorView losses = arena.take(DType::kF32, Shape{pending.rows});
    const accel::Kernels& kernels = execution.device.kernels();
    kernels.cross_entropy_forward(pending.logits, pending.targets, losses, execution.stream);
    kernels.mean(losses, static_cast<double>(pending.counted), loss, execution.stream);
  }
  if (execution.phase == Phase::kEval) {
    arena.release(pending.mark);
  } else {
    pending_.push_back(std::move(pending));
  }
}

void MlpClassifier::backward(float seed, Execution& execution) {
  if (pending_.empty()) {
    throw InputError("backward without a forward in training mode", "MlpClassifier::backward");
  }
  const Pending pending = std::move(pending_.back());
  pending_.pop_back();
  accel::Arena& arena = execution.arena;
  const accel::Kernels& kernels = execution.device.kernels();
  kernels.cross_entropy_backward({.seed = seed, .counted = pending.counted},
                                 pending.targets,
                                 pending.logits,
                                 execution.stream);
  TensorView dy = pending.logits;
  for (std::size_t layer = layers_.size(); layer-- > 0;) {
    const TensorView x = pending.inputs[layer];
    during_backward(*layers_[layer], execution, [&] {
      layers_[layer]->backward_parameters(x, dy, execution);
      if (layer > 0) {
        const TensorView dx = arena.take(x.dtype, x.shape);
        layers_[layer]->backward_input(dy, dx, execution);
        kernels.relu_backward(x, dx, dx, execution.stream);  // relu(z) > 0 where z > 0
        dy = dx;
      }
    });
  }
  arena.release(pending.mark);
}

Batch MlpClassifier::example_batch(std::int64_t micro_batch) const {
  const std::int64_t features = layers_.front()->in();
  const std::vector<float> zeros(static_cast<std::size_t>(micro_batch * features), 0.0F);
  const std::vector<std::int32_t> classes(static_cast<std::size_t>(micro_batch), 0);
  return {HostTensor::copy_of(std::span<const float>(zeros), Shape{micro_batch, features}),
          HostTensor::copy_of(std::span<const std::int32_t>(classes), Shape{micro_batch})};
}

void MlpClassifier::check_batch(const Batch& batch) const {
  const Shape& inputs = batch.inputs.shape;
  const std::int64_t features = layers_.front()->in();
  if (batch.inputs.dtype != DType::kF32 || inputs.rank() != 2 || inputs[0] < 1 ||
      inputs[1] != features) {
    throw InputError(
        fmt::format("inputs are {} {}", dtype_name(batch.inputs.dtype), inputs.to_string()),
        "batch of an MlpClassifier",
        fmt::format("give fp32 [B, {}]", features));
  }
  if (batch.targets.dtype != DType::kI32 || batch.targets.shape != Shape{inputs[0]}) {
    throw InputError(
        fmt::format(
            "targets are {} {}", dtype_name(batch.targets.dtype), batch.targets.shape.to_string()),
        "batch of an MlpClassifier",
        fmt::format("give int32 [{}]", inputs[0]));
  }
  const auto classes = batch.targets.view().as<std::int32_t>();
  const auto bad = std::find_if(classes.begin(), classes.end(), [&](std::int32_t c) {
    return c < -1 || c >= layers_.back()->out();
  });
  if (bad != classes.end()) {
    throw InputError(
        fmt::format("target {} of row {} is no class", *bad, bad - classes.begin()),
        "batch of an MlpClassifier",
        fmt::format("classes are 0 to {}, -1 is not counted", layers_.back()->out() - 1));
  }
}

}  // namespace zero::nn
