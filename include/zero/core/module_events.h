#pragma once

#include <zero/core/module.h>

namespace zero {

/// How a gradient arrived in its view.
enum class GradientWrite : std::uint8_t { kWritten, kAccumulated };

/// What a front end (our nn, a libtorch module, a binding) tells the engine while it runs a model.
///
/// Thread: the thread that runs the model. Order: before_forward … after_forward nest like the
/// modules; backward visits modules in reverse. A module that is recomputed sends its forward
/// events (phase kRecompute) before its backward events or inside them. Every call may enqueue work
/// on `stream` and on streams of the engine's own.
class ModuleEvents {
 public:
  ModuleEvents() = default;
  ModuleEvents(const ModuleEvents&) = delete;
  ModuleEvents& operator=(const ModuleEvents&) = delete;
  ModuleEvents(ModuleEvents&&) = delete;
  ModuleEvents& operator=(ModuleEvents&&) = delete;
  virtual ~ModuleEvents() = default;

  /// Binds `value` of every parameter of `module` (a block: of everything below it).
  virtual void before_forward(Module& module, Phase phase, accel::Stream& stream) = 0;
  virtual void after_forward(Module& module, Phase phase, accel::Stream& stream) = 0;
  /// Binds `value`, `grad` and `grad_accumulate`.
  virtual void before_backward(Module& module, accel::Stream& stream) = 0;
  virtual void after_backward(Module& module, accel::Stream& stream) = 0;
  /// One contribution to the gradient of `parameter` has been enqueued on `stream`. `gradient` is
  /// parameter.grad, or memory of the front end's own, which is copied (kWritten) or added
  /// (kAccumulated) before the call returns to it.
  virtual void gradient_ready(Parameter& parameter,
                              TensorView gradient,
                              GradientWrite write,
                              accel::Stream& stream) = 0;
};

}  // namespace zero
