#include "engine/runtime/parts.h"
#include <zero/accel/host_stash.h>

#include <fmt/format.h>

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

ActivationProfile measure_pass(DType dtype,
                               bool stash,
                               accel::Device& device,
                               Phase phase,
                               const std::function<void(Execution&)>& pass) {
  const std::unique_ptr<accel::Stream> nothing = device.make_null_stream();
  accel::Arena counter;
  accel::HostStash host_counter;
  DryRunEvents events(dtype);
  Execution execution{device, *nothing, counter, events, phase};
  execution.stash = stash ? &host_counter : nullptr;
  pass(execution);
  return {.activation_bytes = static_cast<std::int64_t>(counter.peak_bytes()),
          .stashed_bytes = static_cast<std::int64_t>(host_counter.peak_bytes()),
          .scratch_bytes = static_cast<std::int64_t>(nothing->scratch_bytes())};
}

std::string shape_key(const Batch& batch) {
  return batch.inputs.shape.to_string() + std::string(dtype_name(batch.inputs.dtype)) +
         batch.targets.shape.to_string();
}

ActivationProfile profile_activations(
    Trainable& model, const Batch& batch, DType dtype, bool stash, accel::Device& device) {
  const BuffersOnNothing buffers(model);
  return measure_pass(dtype, stash, device, Phase::kTrain, [&](Execution& execution) {
    std::array<std::byte, 64> nowhere{};
    model.forward(batch, {nowhere.data(), DType::kF32, Shape{1}}, execution);
    model.backward(1.0F, execution);
  });
}

namespace {

/// Makes the modules that the file names blocks. Blocks of the model's own hold what is below them
/// together anyway.
void mark_leaf_modules(Module& model, const config::LeafModule& leaf) {
  const std::vector<Module*> modules = modules_of(model);
  const auto mark = [&](const char* key, const std::string& text, auto matches) {
    bool found = false;
    for (Module* module : modules) {
      if (!module->name().empty() && matches(module->name())) {
        module->set_block();
        found = true;
      }
    }
    if (!found) {
      throw ConfigError(fmt::format("no module has a name that matches \"{}\"", text),
                        fmt::format("ds_config: zero_optimization.leaf_module.{}", key),
                        "write a module's whole name, or its end under name_suffixes");
    }
  };
  for (const std::string& name : leaf.names) {
    mark("names", name, [&](const std::string& module) { return module == name; });
  }
  for (const std::string& suffix : leaf.name_suffixes) {
    mark("name_suffixes", suffix, [&](const std::string& module) {
      return module.ends_with(suffix);
    });
  }
}

}  // namespace

StatePlan plan_training(Trainable& model,
                        const config::Config& config,
                        int ranks,
                        accel::Device& device,
                        const PlanOptions& options) {
  mark_leaf_modules(model, config.zero_optimization.leaf_module);
  const config::ActivationCheckpointing& keys = config.activation_checkpointing;
  const bool obeyed = model.recompute_activations(
      keys.enabled ? std::optional(keys.number_checkpoints) : std::nullopt);
  const bool stash = obeyed && keys.cpu_checkpointing;
  const ActivationProfile profile =
      profile_activations(model,
                          model.example_batch(config.train_micro_batch_size_per_gpu),
                          config.model_dtype(),
                          stash,
                          device);
  StatePlan plan = make_plan(model, config, profile, ranks, options);
  plan.recompute = keys.enabled && obeyed;
  plan.stash_activations = stash;
  return plan;
}

}  // namespace zero
