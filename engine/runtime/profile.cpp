#include "engine/runtime/parts.h"

#include <array>

namespace zero {
namespace {

/// Events of a pass on nothing: parameters get addresses that are never read.
class DryRunEvents final : public ModuleEvents {
 public:
  explicit DryRunEvents(DType dtype) : dtype_(dtype) {}

  void before_forward(Module& module, Phase /*phase*/, accel::Stream& /*stream*/) override {
    bind(module, false);
  }
  void after_forward(Module& /*module*/, Phase /*phase*/, accel::Stream& /*stream*/) override {}
  void before_backward(Module& module, accel::Stream& /*stream*/) override { bind(module, true); }
  void after_backward(Module& /*module*/, accel::Stream& /*stream*/) override {}
  void gradient_ready(Parameter& /*parameter*/,
                      TensorView /*gradient*/,
                      GradientWrite /*write*/,
                      accel::Stream& /*stream*/) override {}

 private:
  void bind(Module& module, bool gradients) {
    for (const auto& parameter : touched(module)) {
      parameter->value = {nowhere_.data(), dtype_, parameter->info.shape};
      parameter->grad = gradients && parameter->info.trainable ? parameter->value : TensorView{};
    }
  }
  static std::vector<std::shared_ptr<Parameter>> touched(Module& module) {
    return module.is_block() ? parameters_of(module) : module.parameters();
  }

  DType dtype_;
  std::array<std::byte, 64> nowhere_{};
};

/// Gives buffers that no engine has bound yet an address that is never read.
class BuffersOnNothing {
 public:
  explicit BuffersOnNothing(Module& model) {
    for (const auto& buffer : buffers_of(model)) {
      if (!buffer->value) {
        buffer->value = {nowhere_.data(), DType::kF32, buffer->shape};
        bound_.push_back(buffer);
      }
    }
  }
  BuffersOnNothing(const BuffersOnNothing&) = delete;
  BuffersOnNothing& operator=(const BuffersOnNothing&) = delete;
  BuffersOnNothing(BuffersOnNothing&&) = delete;
  BuffersOnNothing& operator=(BuffersOnNothing&&) = delete;
  ~BuffersOnNothing() {
    for (const auto& buffer : bound_) {
      buffer->value = {};
    }
  }

 private:
  std::vector<std::shared_ptr<ModuleBuffer>> bound_;
  std::array<std::byte, 64> nowhere_{};
};

}  // namespace

std::int64_t measure_pass(DType dtype,
                          accel::Device& device,
                          Phase phase,
                          const std::function<void(Execution&)>& pass) {
  const std::unique_ptr<accel::Stream> nothing = device.make_null_stream();
  accel::Arena counter;
  DryRunEvents events(dtype);
  Execution execution{device, *nothing, counter, events, phase};
  pass(execution);
  return static_cast<std::int64_t>(counter.peak_bytes());
}

std::string shape_key(const Batch& batch) {
  return batch.inputs.shape.to_string() + std::string(dtype_name(batch.inputs.dtype)) +
         batch.targets.shape.to_string();
}

ActivationProfile profile_activations(Trainable& model,
                                      const Batch& batch,
                                      DType dtype,
                                      accel::Device& device) {
  const BuffersOnNothing buffers(model);
  ActivationProfile profile;
  profile.activation_bytes = measure_pass(dtype, device, Phase::kTrain, [&](Execution& execution) {
    std::array<std::byte, 64> nowhere{};
    model.forward(batch, {nowhere.data(), DType::kF32, Shape{1}}, execution);
    model.backward(1.0F, execution);
  });
  return profile;
}

StatePlan plan_training(Trainable& model,
                        const config::Config& config,
                        int ranks,
                        accel::Device& device,
                        const PlanOptions& options) {
  const config::ActivationCheckpointing& keys = config.activation_checkpointing;
  const bool obeyed = model.recompute_activations(
      keys.enabled ? std::optional(keys.number_checkpoints) : std::nullopt);
  const ActivationProfile profile =
      profile_activations(model,
                          model.example_batch(config.train_micro_batch_size_per_gpu),
                          config.model_dtype(),
                          device);
  StatePlan plan = make_plan(model, config, profile, ranks, options);
  plan.recompute = keys.enabled && obeyed;
  return plan;
}

}  // namespace zero
