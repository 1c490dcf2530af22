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

Coordinator::Coordinator(
    const StatePlan& plan, Module& model, UnitStore& store, Reducer& reducer, Timeline& timeline)
    : plan_(plan),
      store_(store),
      reducer_(reducer),
      unit_of_(plan.params.size()),
      uses_(plan.params.size()),
      timeline_(timeline) {
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
  traces_.begin(pass);
  latest_unit_ = -1;
  running_.clear();
  if (pass == Pass::kForward) {
    std::fill(uses_.begin(), uses_.end(), 0);
  }
  prefetch_ahead();
}

void Coordinator::end_pass() {
  traces_.end();
  store_.end_pass();
}

void Coordinator::use(const Binding& mine) {
  for (const int unit : mine.units) {
    follow_trace(unit);
    store_.get(unit);
  }
  prefetch_ahead();
}

void Coordinator::release(const Binding& mine) {
  for (const int unit : mine.units) {
    const auto distance =
        traces_.distance(unit, [this](int other) { return store_.partitioned_elems(other); });
    store_.release(unit,
                   plan_.max_reuse_elems > 0 && distance.value_or(0) <= plan_.max_reuse_elems);
  }
}

void Coordinator::follow_trace(int unit) {
  if (latest_unit_ == unit) {
    return;  // a child of the module that has just gathered it
  }
  latest_unit_ = unit;
  if (!traces_.visit(unit)) {
    store_.forget_prefetched();
  }
}

void Coordinator::prefetch_ahead() {
  std::int64_t budget = plan_.prefetch_elems;
  for (const int unit : traces_.ahead()) {
    if (budget <= 0 || !store_.can_gather(unit)) {
      return;
    }
    budget -= store_.partitioned_elems(unit);
    store_.gather_ahead(unit);  // an idle copy is kept from being evicted
  }
}

void Coordinator::begin_module(const Binding& mine, accel::Stream& stream) {
  if (!mine.units.empty()) {
    running_.push_back(accel::begin_span(timeline_, stream));
  }
}

void Coordinator::end_module(const Binding& mine, const std::string& name, accel::Stream& stream) {
  if (!mine.units.empty()) {
    accel::end_span(timeline_, stream, running_.back(), Activity::kModule, name);
    running_.pop_back();
  }
}

void Coordinator::before_forward(Module& module, Phase phase, accel::Stream& stream) {
  const Binding& mine = binding(module);
  use(mine);
  begin_module(mine, stream);
  if (phase == Phase::kTrain) {
    for (const std::size_t param : mine.params) {
      ++uses_[param];
    }
  }
}

void Coordinator::after_forward(Module& module, Phase phase, accel::Stream& stream) {
  const Binding& mine = binding(module);
  end_module(mine, phase == Phase::kRecompute ? module.name() + " again" : module.name(), stream);
  release(mine);
}

void Coordinator::before_backward(Module& module, accel::Stream& stream) {
  const Binding& mine = binding(module);
  use(mine);
  begin_module(mine, stream);
  for (const std::size_t param : mine.params) {
    reducer_.bind(param);
  }
}

void Coordinator::after_backward(Module& module, accel::Stream& stream) {
  const Binding& mine = binding(module);
  end_module(mine, module.name(), stream);
  for (const std::size_t param : mine.params) {
    store_.parameter(param).grad = {};
  }
  release(mine);
}

void Coordinator::gradient_ready(Parameter& parameter,
                                 TensorView gradient,
                                 GradientWrite write,
                                 accel::Stream& /*stream*/) {
  reducer_.gradient_ready(index_of_.at(&parameter), gradient, write);
}

}  // namespace zero
