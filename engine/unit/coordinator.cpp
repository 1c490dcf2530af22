#include "engine/unit/coordinator.h"

#include <algorithm>

namespace zero {
namespace {

void add_unique(std::vector<int>& units, int unit) {
  if (std::find(units.begin(), units.end(), unit) == units.end()) {
    units.push_back(unit);
  }
}

}  // namespace

Coordinator::Coordinator(const StatePlan& plan, Module& model, UnitStore& store, Reducer& reducer)
    : plan_(plan),
      store_(store),
      reducer_(reducer),
      unit_of_(plan.params.size()),
      uses_(plan.params.size()) {
  for (const auto& parameter : parameters_of(model)) {
    index_of_.emplace(parameter.get(), index_of_.size());
  }
  for (const Flat& flat : plan_.flats) {
    for (const FlatParam& param : flat.params) {
      unit_of_[param.param] = flat.unit;
    }
  }
  bind_module(model, false);
}

void Coordinator::bind_module(Module& module, bool in_block) {
  Binding& mine = bindings_[&module];
  if (!in_block) {
    for (const Module* below :
         module.is_block() ? modules_of(module) : std::vector<Module*>{&module}) {
      for (const auto& parameter : below->parameters()) {
        mine.params.push_back(index_of_.at(parameter.get()));
        add_unique(mine.units, unit_of_[mine.params.back()]);
      }
    }
  }
  for (Module* child : module.children()) {
    bind_module(*child, in_block || module.is_block());
  }
}

const Coordinator::Binding& Coordinator::binding(const Module& module) const {
  const auto found = bindings_.find(&module);
  if (found == bindings_.end()) {
    throw InputError(
        "an event names module \"" + module.name() + "\", which is not below the model",
        "model",
        "add it with add_child() before initialize()");
  }
  return found->second;
}

void Coordinator::begin_pass(Pass pass) {
  pass_ = pass;
  cursor_ = 0;
  visited_.clear();
  on_trace_ = traces_.at(static_cast<std::size_t>(pass)).complete;
  if (pass == Pass::kForward) {
    std::fill(uses_.begin(), uses_.end(), 0);
  }
  prefetch_ahead();
}

void Coordinator::end_pass() {
  Trace& trace = traces_.at(static_cast<std::size_t>(pass_));
  if (!trace.complete || !on_trace_ || cursor_ != trace.units.size()) {
    trace.units = visited_;
    trace.complete = true;
  }
  store_.end_pass();
}

void Coordinator::use(const Binding& mine) {
  for (const int unit : mine.units) {
    follow_trace(unit);
    store_.get(unit);
  }
  prefetch_ahead();
}

void Coordinator::follow_trace(int unit) {
  if (!visited_.empty() && visited_.back() == unit) {
    return;  // a child of the module that has just gathered it
  }
  visited_.push_back(unit);
  const Trace& trace = traces_.at(static_cast<std::size_t>(pass_));
  if (on_trace_ && cursor_ < trace.units.size() && trace.units[cursor_] == unit) {
    ++cursor_;
  } else {
    on_trace_ = false;  // the rest of this pass is gathered on demand
    store_.forget_prefetched();
  }
}

void Coordinator::prefetch_ahead() {
  const Trace& trace = traces_.at(static_cast<std::size_t>(pass_));
  std::int64_t budget = plan_.prefetch_elems;
  for (std::size_t next = cursor_; on_trace_ && next < trace.units.size(); ++next) {
    const int unit = trace.units[next];
    for (const int flat : plan_.units[static_cast<std::size_t>(unit)].flats) {
      budget -=
          store_.is_gathered(unit) ? 0 : plan_.flats[static_cast<std::size_t>(flat)].padded_elems;
    }
    if (budget < 0 || !store_.can_gather(unit)) {
      return;
    }
    store_.gather(unit);  // an idle copy is kept from being evicted
  }
}

void Coordinator::before_forward(Module& module, Phase phase, accel::Stream& /*stream*/) {
  const Binding& mine = binding(module);
  use(mine);
  if (phase == Phase::kTrain) {
    for (const std::size_t param : mine.params) {
      ++uses_[param];
    }
  }
}

void Coordinator::after_forward(Module& module, Phase /*phase*/, accel::Stream& /*stream*/) {
  for (const int unit : binding(module).units) {
    store_.release(unit);
  }
}

void Coordinator::before_backward(Module& module, accel::Stream& /*stream*/) {
  const Binding& mine = binding(module);
  use(mine);
  for (const std::size_t param : mine.params) {
    reducer_.bind(param);
  }
}

void Coordinator::after_backward(Module& module, accel::Stream& /*stream*/) {
  const Binding& mine = binding(module);
  for (const std::size_t param : mine.params) {
    store_.parameter(param).grad = {};
  }
  for (const int unit : mine.units) {
    store_.release(unit);
  }
}

void Coordinator::gradient_ready(Parameter& parameter,
                                 TensorView gradient,
                                 GradientWrite write,
                                 accel::Stream& /*stream*/) {
  reducer_.gradient_ready(index_of_.at(&parameter), gradient, write);
}

}  // namespace zero
