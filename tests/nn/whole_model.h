#pragma once

#include <zero/accel/arena.h>
#include <zero/accel/device.h>
#include <zero/core/module_events.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace zero::support {

/// The plainest answer to a module's events: every parameter and gradient whole on the device.
///
/// Values and gradients are bound only while a module may use them, so a layer that keeps one
/// longer fails. Broken event order throws InternalError.
class WholeEvents final : public ModuleEvents {
 public:
  /// Parameters are allocated in `dtype` and uninitialised.
  WholeEvents(Module& root, accel::Device& device, DType dtype);

  void before_forward(Module& module, Phase phase, accel::Stream& stream) override;
  void after_forward(Module& module, Phase phase, accel::Stream& stream) override;
  void before_backward(Module& module, accel::Stream& stream) override;
  void after_backward(Module& module, accel::Stream& stream) override;
  void gradient_ready(Parameter& parameter,
                      TensorView gradient,
                      GradientWrite write,
                      accel::Stream& stream) override;

  /// Gradients that arrive from now on are overwritten, not added to.
  void begin_step() { written_.clear(); }
  /// No gradient is asked for this parameter any more.
  void freeze(const std::string& name) { frozen_.insert(name); }
  [[nodiscard]] TensorView value(const std::string& name) {
    return state(name).value.view(dtype_, state(name).info.shape);
  }
  [[nodiscard]] TensorView grad(const std::string& name) {
    return state(name).grad.view(dtype_, state(name).info.shape);
  }
  /// Called at each gradient_ready, if set.
  std::function<void(const std::string& name, TensorView gradient)> on_gradient;

 private:
  struct State {
    ParamInfo info;
    accel::Buffer value;
    accel::Buffer grad;
  };
  State& state(const std::string& name) { return states_.at(name); }
  static std::vector<std::shared_ptr<Parameter>> touched(Module& module);
  [[nodiscard]] bool is_recomputed(const Module& module, Phase phase) const;
  void bind(Module& module, bool with_grad);
  void unbind(Module& module);

  DType dtype_;
  std::map<std::string, State> states_;
  std::set<std::string> written_;
  std::set<std::string> frozen_;
  std::vector<Module*> open_;
  std::set<const Module*> backward_;  // those in their backward
};

/// A device with one stream, one arena, and a module's parameters on it.
class WholeModel {
 public:
  explicit WholeModel(Module& root,
                      DType dtype = DType::kF32,
                      std::size_t arena_bytes = 64u << 20u);

  [[nodiscard]] Execution execution(Phase phase) {
    return {*device, *stream, arena, events, phase};
  }
  /// Sets every parameter by its Init.
  void initialize(std::uint64_t seed);
  /// Sets every parameter to bell-shaped numbers of this standard deviation (norm weights around
  /// 1).
  void randomize(std::uint64_t seed, double std);

  [[nodiscard]] std::vector<float> read(ConstTensorView device_view);
  void write(const std::vector<float>& values, TensorView device_view);
  [[nodiscard]] accel::Buffer allocate(DType dtype, const Shape& shape);

  [[nodiscard]] std::vector<float> value(const std::string& name) {
    return read(events.value(name));
  }
  void set_value(const std::string& name, const std::vector<float>& v) {
    write(v, events.value(name));
  }
  [[nodiscard]] std::vector<float> grad(const std::string& name) { return read(events.grad(name)); }

  [[nodiscard]] float train_forward(Trainable& model, const Batch& batch);
  [[nodiscard]] float evaluate(Trainable& model, const Batch& batch);
  void backward(Trainable& model, float seed = 1.0F);
  /// Root of the sum of squares of all gradients, in double.
  [[nodiscard]] double gradient_norm();

  Module& root;
  RankContext context;
  std::unique_ptr<accel::Device> device;
  std::unique_ptr<accel::Stream> stream;
  accel::Buffer arena_memory;
  accel::Arena arena;
  WholeEvents events;
  std::vector<ParamInfo> params;

 private:
  float loss_of(Trainable& model, const Batch& batch, Phase phase);
};

/// Bell-shaped test values, the same for the same name.
[[nodiscard]] std::vector<float> noise(const std::string& name,
                                       std::int64_t count,
                                       double std = 1.0);
[[nodiscard]] double dot(const std::vector<float>& a, const std::vector<float>& b);
[[nodiscard]] HostTensor int_tensor(const std::vector<std::int32_t>& values, const Shape& shape);

}  // namespace zero::support
