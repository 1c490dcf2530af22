#pragma once

#include "engine/unit/reducer.h"
#include "engine/unit/trace.h"
#include "engine/unit/unit_store.h"
#include <zero/accel/timing.h>
#include <zero/core/module_events.h>

#include <unordered_map>
#include <vector>

namespace zero {

/// Turns the events of a running model into gathers, releases and gradients, and gathers ahead
/// along the trace.
class Coordinator final : public ModuleEvents {
 public:
  Coordinator(
      const StatePlan& plan, Module& model, UnitStore& store, Reducer& reducer, Timeline& timeline);

  void begin_pass(Pass pass);
  void end_pass();
  /// How often each parameter was used in the forward pass in work; taken by the engine for its
  /// backward.
  [[nodiscard]] const std::vector<int>& uses() const noexcept { return uses_; }

  void before_forward(Module& module, Phase phase, accel::Stream& stream) override;
  void after_forward(Module& module, Phase phase, accel::Stream& stream) override;
  void before_backward(Module& module, accel::Stream& stream) override;
  void after_backward(Module& module, accel::Stream& stream) override;
  void gradient_ready(Parameter& parameter,
                      TensorView gradient,
                      GradientWrite write,
                      accel::Stream& stream) override;

 private:
  /// What a module touches: its own parameters, or those of everything below a block. A module
  /// inside a block touches nothing by itself: the block stands for it, and each module below a
  /// block counts as used once.
  struct Binding {
    std::vector<int> units{};
    std::vector<std::size_t> params{};  ///< one entry for each module that uses it
  };
  [[nodiscard]] const Binding& binding(const Module& module) const;
  void bind_module(Module& module, bool in_block);
  void use(const Binding& binding);
  void release(const Binding& binding);
  void follow_trace(int unit);
  void prefetch_ahead();

  const StatePlan& plan_;
  UnitStore& store_;
  Reducer& reducer_;
  std::unordered_map<const Parameter*, std::size_t> index_of_;
  std::unordered_map<const Module*, Binding> bindings_;
  std::vector<int> unit_of_;  // by parameter
  std::vector<int> uses_;     // by parameter
  /// A module's part of a pass in the timeline, on the stream that runs it.
  void begin_module(const Binding& binding, accel::Stream& stream);
  void end_module(const Binding& binding, const std::string& name, accel::Stream& stream);
  Timeline& timeline_;
  std::vector<accel::SpanStart> running_;  // modules in work, outermost first
  TraceBook traces_;
  int latest_unit_ = -1;  // visited last in this pass
};

}  // namespace zero
