#include "engine/unit/unit_store.h"

#include <zero/accel/timing.h>

#include <fmt/format.h>

#include <algorithm>

namespace zero {
namespace {

TensorView part(const accel::Buffer& buffer, DType dtype, Range range, std::int64_t first) {
  const auto elems = static_cast<std::int64_t>(buffer.bytes() / dtype_size(dtype));
  return buffer.view(dtype, Shape{elems}).slice(range.begin - first, range.count);
}

}  // namespace

Range intersect(Range a, Range b) noexcept {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<std::int64_t>(0, std::min(a.begin + a.count, b.begin + b.count) - begin)};
}

UnitStore::UnitStore(const StatePlan& plan,
                     std::vector<std::shared_ptr<Parameter>> parameters,
                     World& world,
                     const ShardGroups& groups,
                     Streams streams)
    : plan_(plan),
      parameters_(std::move(parameters)),
      world_(world),
      groups_(groups),
      streams_(streams),
      states_(plan.flats.size()),
      users_(plan.units.size()),
      slots_(
          world.device, world.context, plan.gather_classes, plan.model_dtype, Category::kGathered) {
  for (int flat = 0; flat < static_cast<int>(plan_.flats.size()); ++flat) {
    allocate(flat);
  }
}

void UnitStore::allocate(int flat) {
  const Flat& layout = flat_plan(flat);
  const auto make = [&](const Placement& placement, DType dtype, Category category) {
    const std::int64_t elems = placement.partitioned ? layout.slice_elems : layout.padded_elems;
    accel::Buffer buffer = world_.device.allocate(
        static_cast<std::size_t>(elems) * dtype_size(dtype), category, space_of(placement.home));
    world_.device.zero(buffer.view(dtype, Shape{elems}), streams_.compute);
    return buffer;
  };
  FlatState& mine = state(flat);
  mine.parameters = make(layout.parameters, plan_.model_dtype, Category::kParameters);
  if (layout.parameters.partitioned && groups_.node() != nullptr) {
    mine.secondary = world_.device.allocate(
        static_cast<std::size_t>(node_slice(flat).count) * dtype_size(plan_.model_dtype),
        Category::kParameters);
  }
  if (!layout.trainable) {
    return;
  }
  mine.gradients = make(layout.gradients, plan_.accumulation_dtype, Category::kGradients);
  if (plan_.separate_master) {
    mine.master = make(layout.state, DType::kF32, Category::kMaster);
  }
  for (int moment = 0; moment < plan_.moments; ++moment) {
    mine.moments.push_back(make(layout.state, DType::kF32, Category::kMoments));
  }
}

void UnitStore::initialize_values(const InitialValues& values) {
  for (int flat = 0; flat < static_cast<int>(plan_.flats.size()); ++flat) {
    fill(flat, values);
    state(flat).updated = streams_.compute.record();
    state(flat).ready = state(flat).updated;
  }
  streams_.compute.synchronize();
}

void UnitStore::fill(int flat, const InitialValues& values) {
  const Flat& layout = flat_plan(flat);
  const Range held =
      layout.parameters.partitioned ? own_slice(flat) : Range{0, layout.padded_elems};
  const Range mastered = plan_.separate_master && layout.trainable ? owned(flat) : Range{0, 0};
  for (const FlatParam& param : layout.params) {
    const std::int64_t end = std::min(param.offset + param.elems, held.begin + held.count);
    for (std::int64_t at = std::max(param.offset, held.begin); at < end; at += plan_.fill_elems) {
      const std::int64_t count = std::min(plan_.fill_elems, end - at);
      auto storage =
          std::shared_ptr<std::byte[]>(new std::byte[static_cast<std::size_t>(count) * 4]);
      const TensorView host{storage.get(), DType::kF32, Shape{count}};
      values(parameters_[param.param]->info, at - param.offset, host.as<float>());
      accel::Buffer scratch = world_.device.allocate(host.bytes(), Category::kStaging);
      const TensorView fp32 = scratch.view(DType::kF32, Shape{count});
      world_.device.upload(storage, fp32, streams_.compute);
      if (layout.parameters.home == Home::kDevice) {
        world_.device.kernels().cast(fp32, parameters(flat, {at, count}), streams_.compute);
      } else {
        world_.device.kernels(MemorySpace::kHost)
            .cast(host, parameters(flat, {at, count}), streams_.compute);
      }
      const std::int64_t first = std::max(at, mastered.begin);
      const std::int64_t last = std::min(at + count, mastered.begin + mastered.count);
      if (first < last) {
        world_.device.copy(fp32.slice(first - at, last - first),
                           master(flat, {first, last - first}),
                           streams_.compute);
      }
      streams_.compute.synchronize();  // the scratch buffer is freed here
    }
  }
}

Range UnitStore::own_slice(int flat) const {
  const Flat& layout = flat_plan(flat);
  return {groups_.shards().rank() * layout.slice_elems, layout.slice_elems};
}

Range UnitStore::node_slice(int flat) const {
  const std::int64_t elems = flat_plan(flat).padded_elems / plan_.node_ranks;
  return {groups_.node()->rank() * elems, elems};
}

Range UnitStore::owned(int flat) const {
  const Flat& layout = flat_plan(flat);
  return layout.state.partitioned ? own_slice(flat) : Range{0, layout.padded_elems};
}

TensorView UnitStore::parameters(int flat, Range range) const {
  const std::int64_t first = flat_plan(flat).parameters.partitioned ? own_slice(flat).begin : 0;
  return part(state(flat).parameters, plan_.model_dtype, range, first);
}

TensorView UnitStore::gradients(int flat, Range range) const {
  const std::int64_t first = flat_plan(flat).gradients.partitioned ? own_slice(flat).begin : 0;
  return part(state(flat).gradients, plan_.accumulation_dtype, range, first);
}

TensorView UnitStore::master(int flat, Range range) const {
  if (!plan_.separate_master || !flat_plan(flat).trainable) {
    return parameters(flat, range);
  }
  return part(state(flat).master, DType::kF32, range, owned(flat).begin);
}

TensorView UnitStore::moment(int flat, int index, Range range) const {
  return part(state(flat).moments.at(static_cast<std::size_t>(index)),
              DType::kF32,
              range,
              owned(flat).begin);
}

TensorView UnitStore::whole(int flat) const {
  const Flat& layout = flat_plan(flat);
  const Shape shape{layout.padded_elems};
  if (!layout.parameters.partitioned) {
    return state(flat).parameters.view(plan_.model_dtype, shape);
  }
  ZERO_CHECK(state(flat).slot != nullptr, "a unit is used that is not gathered");
  return state(flat).slot->buffer.view(plan_.model_dtype, shape);
}

std::int64_t UnitStore::partitioned_elems(int unit) const {
  std::int64_t elems = 0;
  for (const int flat : plan_.units.at(static_cast<std::size_t>(unit)).flats) {
    elems += flat_plan(flat).parameters.partitioned ? flat_plan(flat).padded_elems : 0;
  }
  return elems;
}

std::int64_t UnitStore::held_elems_with(int unit) const {
  std::int64_t held = 0;
  for (std::size_t flat = 0; flat < states_.size(); ++flat) {
    const bool mine = plan_.flats[flat].unit == unit && plan_.flats[flat].parameters.partitioned;
    const bool in_use = states_[flat].slot != nullptr && states_[flat].slot->in_use;
    held += mine || in_use ? plan_.flats[flat].padded_elems : 0;
  }
  return held;
}

bool UnitStore::can_gather(int unit) const {
  const auto& flats = plan_.units.at(static_cast<std::size_t>(unit)).flats;
  return held_elems_with(unit) <= plan_.max_live_elems &&
         std::all_of(flats.begin(), flats.end(), [&](int flat) {
           return !flat_plan(flat).parameters.partitioned || state(flat).slot != nullptr ||
                  slots_.has_free(flat_plan(flat).gather_class);
         });
}

void UnitStore::evict_idle_until_fits(std::int64_t elems) {
  while (statistics_.live_elems + elems > plan_.max_live_elems) {
    FlatState* oldest = nullptr;
    for (FlatState& other : states_) {
      if (other.slot != nullptr && !other.slot->in_use &&
          (oldest == nullptr || other.slot->age < oldest->slot->age)) {
        oldest = &other;
      }
    }
    ZERO_CHECK(oldest != nullptr, "no idle unit is left to evict");
    drop(static_cast<int>(oldest - states_.data()), oldest->slot->free);
  }
}

void UnitStore::take_slot(int flat) {
  const std::int64_t elems = flat_plan(flat).padded_elems;
  int evicted = -1;
  Slot& slot = slots_.acquire(flat_plan(flat).gather_class, flat, evicted);
  if (evicted >= 0) {
    lose_slot(evicted);
  }
  evict_idle_until_fits(elems);
  state(flat).slot = &slot;
  statistics_.live_elems += elems;
  statistics_.peak_live_elems = std::max(statistics_.peak_live_elems, statistics_.live_elems);
}

void UnitStore::lose_slot(int flat) {
  state(flat).slot = nullptr;
  statistics_.live_elems -= flat_plan(flat).padded_elems;
}

bool UnitStore::gather(int unit) {
  if (held_elems_with(unit) > plan_.max_live_elems) {
    throw InputError(
        fmt::format("the model uses {} gathered elements at once", held_elems_with(unit)),
        "zero_optimization.stage3_max_live_parameters",
        fmt::format("raise it: it is {}", plan_.max_live_elems));
  }
  std::vector<int> from_world;
  std::vector<int> from_node;
  for (const int flat : plan_.units.at(static_cast<std::size_t>(unit)).flats) {
    FlatState& mine = state(flat);
    if (!flat_plan(flat).parameters.partitioned) {
      continue;
    }
    if (mine.slot != nullptr) {
      mine.slot->in_use = true;
      continue;
    }
    take_slot(flat);
    streams_.comm.wait(
        mine.slot->free);  // write-after-read: kernels that still read what the slot held
    streams_.comm.wait(mine.updated);  // read-after-write: the update of this rank's slice
    (mine.secondary_true ? from_node : from_world).push_back(flat);
  }
  gather_from_world(from_world);
  gather_from_node(from_node);
  return !from_world.empty() || !from_node.empty();
}

void UnitStore::gather_from_world(const std::vector<int>& flats) {
  if (flats.empty()) {
    return;
  }
  std::vector<comm::SlicedView> views;
  for (const int flat : flats) {
    const Range slice = own_slice(flat);
    world_.device.copy(
        parameters(flat, slice), whole(flat).slice(slice.begin, slice.count), streams_.comm);
    views.push_back({whole(flat), 0, slice.count});
  }
  const accel::Event ready = gather_views(groups_.shards(), views, flats.front());
  for (const int flat : flats) {
    FlatState& mine = state(flat);
    mine.ready = ready;
    if (mine.secondary) {
      const Range part = node_slice(flat);
      world_.device.copy(whole(flat).slice(part.begin, part.count),
                         mine.secondary.view(plan_.model_dtype, Shape{part.count}),
                         streams_.comm);
      mine.secondary_true = true;
    }
  }
}

accel::Event UnitStore::gather_views(comm::Group& group,
                                     const std::vector<comm::SlicedView>& views,
                                     int flat) {
  Timeline& timeline = world_.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, streams_.comm);
  group.about(unit_name(flat));
  accel::Event ready = group.all_gather_in_place(views, streams_.comm);
  std::int64_t bytes = 0;
  for (const comm::SlicedView& view : views) {
    bytes +=
        (group.size() - 1) * view.count * static_cast<std::int64_t>(dtype_size(view.buffer.dtype));
  }
  accel::end_span(timeline, streams_.comm, start, Activity::kGather, unit_name(flat), bytes);
  return ready;
}

void UnitStore::gather_from_node(const std::vector<int>& flats) {
  if (flats.empty()) {
    return;
  }
  std::vector<comm::SlicedView> views;
  for (const int flat : flats) {
    const Range part = node_slice(flat);
    world_.device.copy(state(flat).secondary.view(plan_.model_dtype, Shape{part.count}),
                       whole(flat).slice(part.begin, part.count),
                       streams_.comm);
    views.push_back({whole(flat), 0, part.count});
  }
  const accel::Event ready = gather_views(*groups_.node(), views, flats.front());
  for (const int flat : flats) {
    state(flat).ready = ready;
  }
}

void UnitStore::get(int unit) {
  statistics_.on_demand += gather(unit);
  const Unit& mine = plan_.units.at(static_cast<std::size_t>(unit));
  Timeline& timeline = world_.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, streams_.compute);
  for (const int flat : mine.flats) {
    streams_.compute.wait(
        state(flat).ready);  // read-after-write: the all-gather into the whole copy
    bind(flat, true);
  }
  accel::end_span(timeline, streams_.compute, start, Activity::kStall, mine.name);
  ++users_[static_cast<std::size_t>(unit)];
}

void UnitStore::release(int unit, bool keep) {
  int& users = users_.at(static_cast<std::size_t>(unit));
  ZERO_CHECK(users > 0, "a unit is released that nobody uses");
  if (--users > 0) {
    return;
  }
  // A shared unit has a slot of its own and will be used again in this pass: it stays until the end
  // of the pass.
  const bool stays = keep || plan_.units[static_cast<std::size_t>(unit)].shared;
  const accel::Event last_use = streams_.compute.record();
  for (const int flat : plan_.units[static_cast<std::size_t>(unit)].flats) {
    bind(flat, false);
    if (state(flat).slot != nullptr) {
      slots_.release(*state(flat).slot, last_use, !stays);
      if (!stays) {
        lose_slot(flat);
      }
    }
  }
}

void UnitStore::bind(int flat, bool values) {
  const TensorView memory = values ? whole(flat) : TensorView{};
  for (const FlatParam& param : flat_plan(flat).params) {
    Parameter& parameter = *parameters_[param.param];
    parameter.value = values ? memory.slice(param.offset, param.elems).reshape(parameter.info.shape)
                             : TensorView{};
  }
}

void UnitStore::drop(int flat, accel::Event free) {
  if (state(flat).slot != nullptr) {
    slots_.release(*state(flat).slot, std::move(free), true);
    lose_slot(flat);
  }
}

void UnitStore::forget_prefetched() {
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    for (const int flat : plan_.units[unit].flats) {
      Slot* slot = state(flat).slot;
      if (slot != nullptr && slot->in_use && users_[unit] == 0) {
        slots_.release(*slot, state(flat).ready, false);
      }
    }
  }
}

void UnitStore::end_pass() {
  forget_prefetched();
  for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
    ZERO_CHECK(users_[unit] == 0,
               "unit " + plan_.units[unit].name + " is still in use after a pass");
    for (const int flat : plan_.units[unit].flats) {
      if (state(flat).slot != nullptr && plan_.max_reuse_elems == 0) {
        drop(flat, state(flat).slot->free);
      }
    }
  }
}

void UnitStore::wrote(int flat) {
  FlatState& mine = state(flat);
  mine.updated = streams_.compute.record();
  mine.ready = mine.updated;
  mine.secondary_true = false;
  if (mine.slot != nullptr) {
    drop(flat, mine.slot->free);  // the gathered copy is stale
  }
}

void UnitStore::publish(int flat) {
  const Flat& layout = flat_plan(flat);
  wrote(flat);
  if (layout.parameters.partitioned) {
    return;
  }
  FlatState& mine = state(flat);
  if (!layout.state.partitioned) {
    return;  // every rank has updated the whole
  }
  streams_.comm.wait(mine.updated);  // read-after-write: this rank's slice
  const std::int64_t limit =
      std::max(kAlignElems, plan_.gather_bucket_elems / plan_.shards / kAlignElems * kAlignElems);
  for (std::int64_t begin = 0; begin < layout.slice_elems; begin += limit) {
    const comm::SlicedView view{whole(flat), begin, std::min(limit, layout.slice_elems - begin)};
    mine.ready = gather_views(groups_.shards(), {view}, flat);
  }
}

}  // namespace zero
