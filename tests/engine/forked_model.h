#pragma once

#include <zero/accel/arena.h>
#include <zero/accel/device.h>
#include <zero/nn/events.h>
#include <zero/nn/linear.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

namespace zero::testing {

/// Logits of one of two heads on a common trunk: the first target says which, so that micro-batches
/// use different layers. With `heads_are_blocks` each head is a unit of its own, as experts are;
/// the module "heads" stands around them. Keeps a buffer with the latest training loss.
class ForkedModel final : public Trainable {
 public:
  static constexpr std::int64_t kFeatures = 6;
  static constexpr std::int64_t kWidth = 70;
  static constexpr std::int64_t kClasses = 3;

  explicit ForkedModel(float first_seen = 0.0F, bool heads_are_blocks = false) : Trainable("") {
    latest_ = add_buffer("latest", Shape{1}, Init::constant(first_seen));
    add_child(trunk_);
    add_child(fork_);
    for (nn::Linear& head : fork_.heads) {
      if (heads_are_blocks) {
        head.set_block();
      }
    }
  }

  void forward(const Batch& batch, TensorView loss, Execution& execution) override {
    accel::Arena& arena = execution.arena;
    const accel::Kernels& kernels = execution.device.kernels();
    Pending pending{.mark = arena.mark(), .head = head_of(batch), .rows = batch.inputs.shape[0]};
    pending.targets = arena.take(DType::kI32, batch.targets.shape);
    execution.device.upload(batch.targets.storage, pending.targets, execution.stream);
    pending.x = arena.take(DType::kF32, batch.inputs.shape);
    execution.device.upload(batch.inputs.storage, pending.x, execution.stream);
    nn::during_forward(trunk_, execution, [&] {
      pending.hidden = arena.take(DType::kF32, Shape{pending.rows, kWidth});
      trunk_.forward(pending.x, pending.hidden, /*accumulate=*/false, execution);
    });
    nn::Linear& head = fork_.heads[pending.head];
    nn::during_forward(fork_, execution, [&] {
      nn::during_forward(head, execution, [&] {
        pending.logits = arena.take(DType::kF32, Shape{pending.rows, kClasses});
        head.forward(pending.hidden, pending.logits, /*accumulate=*/false, execution);
      });
    });
    const TensorView losses = arena.take(DType::kF32, Shape{pending.rows});
    kernels.cross_entropy_forward(pending.logits, pending.targets, losses, execution.stream);
    kernels.mean(losses, static_cast<double>(pending.rows), loss, execution.stream);
    if (execution.phase == Phase::kEval) {
      arena.release(pending.mark);
      return;
    }
    execution.device.copy(loss, latest_->value, execution.stream);
    pending_.push_back(pending);
  }

  void backward(float seed, Execution& execution) override {
    const Pending pending = pending_.back();
    pending_.pop_back();
    execution.device.kernels().cross_entropy_backward(
        {.seed = seed, .counted = pending.rows}, pending.targets, pending.logits, execution.stream);
    const TensorView dhidden = execution.arena.take(DType::kF32, pending.hidden.shape);
    nn::Linear& head = fork_.heads[pending.head];
    nn::during_backward(fork_, execution, [&] {
      nn::during_backward(head, execution, [&] {
        head.backward_parameters(pending.hidden, pending.logits, execution);
        head.backward_input(pending.logits, dhidden, execution);
      });
    });
    nn::during_backward(
        trunk_, execution, [&] { trunk_.backward_parameters(pending.x, dhidden, execution); });
    execution.arena.release(pending.mark);
  }

  [[nodiscard]] Batch example_batch(std::int64_t micro_batch) const override {
    return batch(0, micro_batch, 0);
  }
  void check_batch(const Batch& /*batch*/) const override {}

  /// `rows` samples from number `first` on, for one of the heads.
  [[nodiscard]] static Batch batch(std::int64_t first, std::int64_t rows, std::int32_t head) {
    std::vector<float> inputs;
    std::vector<std::int32_t> targets = {head};
    for (std::int64_t at = first * kFeatures; at < (first + rows) * kFeatures; ++at) {
      inputs.push_back(static_cast<float>(at * at % 13) / 13.0F - 0.4F);
    }
    for (std::int64_t row = 1; row < rows; ++row) {
      targets.push_back(static_cast<std::int32_t>((first + row) % kClasses));
    }
    return {HostTensor::copy_of(std::span<const float>(inputs), Shape{rows, kFeatures}),
            HostTensor::copy_of(std::span<const std::int32_t>(targets), Shape{rows})};
  }

 private:
  struct Fork final : Module {
    Fork() : Module("heads") {
      for (nn::Linear& head : heads) {
        add_child(head);
      }
    }
    std::array<nn::Linear, 2> heads = {
        nn::Linear{"heads.0", {.in = kWidth, .out = kClasses, .init_std = 0.3}},
        nn::Linear{"heads.1", {.in = kWidth, .out = kClasses, .init_std = 0.3}}};
  };
  struct Pending {
    std::size_t mark = 0;
    std::size_t head = 0;
    std::int64_t rows = 0;
    TensorView targets{};
    TensorView x{};
    TensorView hidden{};
    TensorView logits{};
  };

  static std::size_t head_of(const Batch& batch) {
    return batch.targets.view().as<std::int32_t>()[0] == 0 ? 0 : 1;
  }

  nn::Linear trunk_{"trunk", {.in = kFeatures, .out = kWidth, .init_std = 0.3}};
  Fork fork_;
  std::shared_ptr<ModuleBuffer> latest_;
  std::vector<Pending> pending_;
};

}  // namespace zero::testing
