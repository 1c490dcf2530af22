#include "engine/runtime/state_access.h"

#include <fmt/format.h>

#include <algorithm>

namespace zero {
namespace {

/// A parameter's place.
struct Place {
  int flat = 0;
  Range range;
};

Place find(const StatePlan& plan, std::string_view name, const char* where) {
  for (int flat = 0; flat < static_cast<int>(plan.flats.size()); ++flat) {
    for (const FlatParam& param : plan.flats[static_cast<std::size_t>(flat)].params) {
      if (plan.params[param.param].name == name) {
        return {flat, {param.offset, param.elems}};
      }
    }
  }
  throw InputError(
      fmt::format("the model has no parameter \"{}\"", name), where, "use the names of ParamInfo");
}

Place find_trainable(const StatePlan& plan, std::string_view name, const char* where) {
  const Place place = find(plan, name, where);
  if (!plan.flats[static_cast<std::size_t>(place.flat)].trainable) {
    throw InputError(fmt::format("parameter \"{}\" is frozen", name),
                     where,
                     "it has no gradient and no optimizer state");
  }
  return place;
}

StateRef find_state(const optim::UpdateRule& rule, std::string_view state, const char* where) {
  const std::vector<std::string> names = rule.states();
  const auto found = std::ranges::find(names, state);
  if (found == names.end()) {
    throw InputError(
        fmt::format("the optimizer keeps no state \"{}\"", state),
        where,
        names.empty() ? "it keeps none" : fmt::format("it keeps {}", fmt::join(names, ", ")));
  }
  return {StateRef::Kind::kOptimizer, static_cast<int>(found - names.begin())};
}

void check_size(const Place& place, std::span<const float> values, const char* where) {
  if (static_cast<std::int64_t>(values.size()) != place.range.count) {
    throw InputError(fmt::format("{} values for {} elements", values.size(), place.range.count),
                     where,
                     "give one value an element");
  }
}

std::vector<float> read_whole(EngineParts& parts, const Place& place, StateRef state) {
  std::vector<float> whole(static_cast<std::size_t>(place.range.count));
  StateAccess(parts).read(
      place.flat, state, place.range, true, [&](Range range, std::span<const float> values) {
        std::ranges::copy(values, whole.begin() + (range.begin - place.range.begin));
      });
  return whole;
}

/// Gradients can be looked at between the backward that ends a window and step().
void require_gradients(EngineParts& parts, const char* where) {
  if (!parts.reducer.gradients_ready()) {
    throw InputError("there are no reduced gradients now",
                     where,
                     "call it between the backward that ends an accumulation window and step()");
  }
  parts.reducer.finish_window(*parts.compute);
}

}  // namespace

std::vector<float> Engine::full_fp32_parameter(std::string_view name) {
  return read_whole(*parts_, find(parts_->plan, name, "Engine::full_fp32_parameter"), {});
}

void Engine::set_full_fp32_parameter(std::string_view name, std::span<const float> values) {
  constexpr const char* kWhere = "Engine::set_full_fp32_parameter";
  const Place place = find(parts_->plan, name, kWhere);
  check_size(place, values, kWhere);
  StateAccess(*parts_).write(place.flat, {}, place.range, values);
}

std::vector<float> Engine::full_gradient(std::string_view name) {
  constexpr const char* kWhere = "Engine::full_gradient";
  const Place place = find_trainable(parts_->plan, name, kWhere);
  require_gradients(*parts_, kWhere);
  std::vector<float> whole = read_whole(*parts_, place, {StateRef::Kind::kGradient});
  const auto factor = static_cast<float>(1.0 / parts_->scaler.scale());
  std::ranges::transform(whole, whole.begin(), [&](float value) { return value * factor; });
  return whole;
}

void Engine::set_full_gradient(std::string_view name, std::span<const float> values) {
  constexpr const char* kWhere = "Engine::set_full_gradient";
  const Place place = find_trainable(parts_->plan, name, kWhere);
  check_size(place, values, kWhere);
  require_gradients(*parts_, kWhere);
  std::vector<float> scaled(values.begin(), values.end());
  const auto factor = static_cast<float>(parts_->scaler.scale());
  std::ranges::transform(scaled, scaled.begin(), [&](float value) { return value * factor; });
  StateAccess access(*parts_);
  parts_->reducer.forget_squares();
  access.write(place.flat, {StateRef::Kind::kGradient}, place.range, scaled);
}

std::vector<std::string> Engine::optimizer_states() const {
  return parts_->rule->states();
}

std::vector<float> Engine::full_optimizer_state(std::string_view name, std::string_view state) {
  constexpr const char* kWhere = "Engine::full_optimizer_state";
  const Place place = find_trainable(parts_->plan, name, kWhere);
  return read_whole(*parts_, place, find_state(*parts_->rule, state, kWhere));
}

void Engine::set_full_optimizer_state(std::string_view name,
                                      std::string_view state,
                                      std::span<const float> values) {
  constexpr const char* kWhere = "Engine::set_full_optimizer_state";
  const Place place = find_trainable(parts_->plan, name, kWhere);
  check_size(place, values, kWhere);
  StateAccess(*parts_).write(
      place.flat, find_state(*parts_->rule, state, kWhere), place.range, values);
}

void Engine::gather(std::span<const std::string> names,
                    const std::function<void(std::vector<WholeParameter>&)>& body,
                    std::optional<int> modifier) {
  constexpr const char* kWhere = "Engine::gather";
  if (modifier && (*modifier < 0 || *modifier >= parts_->world.group.size())) {
    throw InputError(fmt::format("there is no rank {}", *modifier),
                     kWhere,
                     fmt::format("give one of 0 to {}", parts_->world.group.size() - 1));
  }
  std::vector<WholeParameter> whole;
  for (const std::string& name : names) {
    whole.push_back({name, full_fp32_parameter(name)});
  }
  body(whole);
  if (!modifier) {
    return;
  }
  StateAccess access(*parts_);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Place place = find(parts_->plan, names[i], kWhere);
    std::vector<float>& values = whole.at(i).values;
    check_size(place, values, kWhere);
    access.broadcast(values, *modifier);
    access.write(place.flat, {}, place.range, values);
  }
}

}  // namespace zero
