#include "engine/runtime/state_access.h"

#include <algorithm>

namespace zero {
namespace {

/// Elements that travel at a time: bounds the memory that access to whole parameters takes.
constexpr std::int64_t kChunkElems = 1 << 20;

/// Calls body(part) for consecutive parts of a range.
template <class Body>
void in_chunks(Range range, Body body) {
  for (std::int64_t done = 0; done < range.count; done += kChunkElems) {
    body(Range{range.begin + done, std::min(kChunkElems, range.count - done)});
  }
}

}  // namespace

std::vector<StateRef> states_of(const Flat& flat, int optimizer_states) {
  std::vector<StateRef> states = {{StateRef::Kind::kMaster}};
  for (int index = 0; flat.trainable && index < optimizer_states; ++index) {
    states.push_back({StateRef::Kind::kOptimizer, index});
  }
  return states;
}

std::vector<FlatPart> parts_in(const Flat& flat, Range range) {
  std::vector<FlatPart> parts;
  for (const FlatParam& place : flat.params) {
    const Range part = intersect(range, {place.offset, place.elems});
    if (part.count > 0) {
      parts.push_back({&place, part});
    }
  }
  return parts;
}

StateAccess::StateAccess(EngineParts& parts, accel::Stream& reads)
    : parts_(parts),
      reads_(reads),
      device_(parts.world.device.allocate(kChunkElems * sizeof(float), Category::kStaging)),
      host_(parts.world.device.allocate(
          kChunkElems * sizeof(float), Category::kStaging, MemorySpace::kHost)) {
  parts.synchronize();
}

bool StateAccess::is_cut(int flat, StateRef state) const {
  const Flat& layout = parts_.plan.flats.at(static_cast<std::size_t>(flat));
  if (state.kind == StateRef::Kind::kGradient) {
    // After an all-reduce every rank has the whole sum; else its slice is true, whatever it keeps.
    return !parts_.plan.all_reduce;
  }
  return layout.trainable ? layout.state.partitioned : layout.parameters.partitioned;
}

Range StateAccess::held(int flat, StateRef state) const {
  return is_cut(flat, state)
             ? parts_.store.own_slice(flat)
             : Range{0, parts_.plan.flats.at(static_cast<std::size_t>(flat)).padded_elems};
}

TensorView StateAccess::view(int flat, StateRef state, Range range) const {
  switch (state.kind) {
    case StateRef::Kind::kGradient:
      return parts_.store.gradients(flat, range);
    case StateRef::Kind::kOptimizer:
      return parts_.store.moment(flat, state.index, range);
    case StateRef::Kind::kMaster:
      break;
  }
  return parts_.store.master(flat, range);
}

MemorySpace StateAccess::space(int flat, StateRef state) const {
  const Flat& layout = parts_.plan.flats.at(static_cast<std::size_t>(flat));
  if (state.kind == StateRef::Kind::kGradient) {
    return space_of(layout.gradients.home);
  }
  const bool is_parameter =
      state.kind == StateRef::Kind::kMaster && (!parts_.plan.separate_master || !layout.trainable);
  return space_of(is_parameter ? layout.parameters.home : layout.state.home);
}

TensorView StateAccess::device(std::int64_t count) const {
  return device_.view(DType::kF32, Shape{kChunkElems}).slice(0, count);
}

TensorView StateAccess::host(std::int64_t count) const {
  return host_.view(DType::kF32, Shape{kChunkElems}).slice(0, count);
}

void StateAccess::read(int flat, StateRef state, Range wanted, bool everywhere, const Take& take) {
  const Flat& layout = parts_.plan.flats.at(static_cast<std::size_t>(flat));
  const bool cut = is_cut(flat, state);
  const std::int64_t part = cut ? layout.slice_elems : layout.padded_elems;
  for (int owner = 0; owner < (cut ? parts_.plan.shards : 1); ++owner) {
    in_chunks(intersect(wanted, {owner * part, part}), [&](Range range) {
      if (fetch(flat, state, range, cut ? owner : parts_.world.group.rank(), everywhere)) {
        take(range, std::span<const float>(host(range.count).as<float>()));
      }
    });
  }
}

void StateAccess::read_own(int flat, StateRef state, Range wanted, const Take& take) {
  in_chunks(wanted, [&](Range range) {
    if (read_home(flat, state, range, reads_) == MemorySpace::kDevice) {
      parts_.world.device.copy(device(range.count), host(range.count), reads_);
    }
    reads_.synchronize();
    take(range, std::span<const float>(host(range.count).as<float>()));
  });
}

Range StateAccess::kept(int flat, StateRef state) const {
  const Flat& layout = parts_.plan.flats.at(static_cast<std::size_t>(flat));
  return state.kind == StateRef::Kind::kMaster && !layout.parameters.partitioned
             ? Range{0, layout.padded_elems}
             : held(flat, state);
}

MemorySpace StateAccess::read_home(int flat, StateRef state, Range range, accel::Stream& stream) {
  const MemorySpace home = space(flat, state);
  const TensorView fp32 = home == MemorySpace::kDevice ? device(range.count) : host(range.count);
  parts_.world.device.kernels(home).cast(view(flat, state, range), fp32, stream);
  return home;
}

bool StateAccess::fetch(int flat, StateRef state, Range range, int owner, bool everywhere) {
  comm::Group& group = parts_.world.group;
  accel::Stream& stream = reads_;
  const TensorView chunk = device(range.count);
  if (group.rank() == owner) {
    if (read_home(flat, state, range, stream) == MemorySpace::kHost) {
      parts_.world.device.copy(host(range.count), chunk, stream);
    }
  }
  const bool cut = is_cut(flat, state);
  if (cut && everywhere) {
    (void)group.broadcast(chunk, owner, stream, comm::Payload::kControl);
  } else if (cut && owner != 0 && group.rank() == owner) {
    (void)group.send(chunk, 0, stream);
  } else if (cut && owner != 0 && group.rank() == 0) {
    (void)group.recv(chunk, owner, stream);
  }
  const bool wanted_here = everywhere || group.rank() == 0;
  if (wanted_here) {
    parts_.world.device.copy(chunk, host(range.count), stream);
  }
  stream.synchronize();
  return wanted_here;
}

void StateAccess::write(int flat, StateRef state, Range range, std::span<const float> values) {
  const Flat& layout = parts_.plan.flats.at(static_cast<std::size_t>(flat));
  parts_.wait_staged(flat);
  store(range, values, held(flat, state), space(flat, state), [&](Range part) {
    return view(flat, state, part);
  });
  if (state.kind != StateRef::Kind::kMaster) {
    return;
  }
  if (parts_.plan.separate_master || !layout.parameters.partitioned) {
    store(range, values, kept(flat, state), space_of(layout.parameters.home), [&](Range part) {
      return parts_.store.parameters(flat, part);
    });
  }
  parts_.store.wrote(flat);
}

void StateAccess::store(Range range,
                        std::span<const float> values,
                        Range place,
                        MemorySpace space,
                        const std::function<TensorView(Range)>& view_of_range) {
  accel::Stream& stream = *parts_.compute;
  in_chunks(intersect(range, place), [&](Range part) {
    const auto first = static_cast<std::size_t>(part.begin - range.begin);
    std::ranges::copy(values.subspan(first, static_cast<std::size_t>(part.count)),
                      host(part.count).as<float>().begin());
    TensorView fp32 = host(part.count);
    if (space == MemorySpace::kDevice) {
      fp32 = device(part.count);
      parts_.world.device.copy(host(part.count), fp32, stream);
    }
    parts_.world.device.kernels(space).cast(fp32, view_of_range(part), stream);
    stream.synchronize();  // the buffers are used again
  });
}

void StateAccess::broadcast(std::span<float> values, int root) {
  accel::Stream& stream = *parts_.comm;
  in_chunks({0, static_cast<std::int64_t>(values.size())}, [&](Range part) {
    const auto mine =
        values.subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.count));
    std::ranges::copy(mine, host(part.count).as<float>().begin());
    parts_.world.device.copy(host(part.count), device(part.count), stream);
    (void)parts_.world.group.broadcast(device(part.count), root, stream, comm::Payload::kControl);
    parts_.world.device.copy(device(part.count), host(part.count), stream);
    stream.synchronize();
    std::ranges::copy(host(part.count).as<float>(), mine.begin());
  });
}

}  // namespace zero
