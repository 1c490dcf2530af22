#include "engine/unit/state_mover.h"

#include <zero/accel/timing.h>

#include <algorithm>

namespace zero {

StateMover::StateMover(const StatePlan& plan,
                       UnitStore& store,
                       World& world,
                       accel::Stream& compute)
    : plan_(plan), store_(store), world_(world), compute_(compute) {
  const UpdateTiles& tiles = plan_.tiles;
  const bool on_host = tiles.space == MemorySpace::kHost;
  if (on_host) {
    update_ = world_.device.make_stream("update");
    host_scalars_ =
        world_.device.allocate(sizeof(accel::StepScalars), Category::kOther, MemorySpace::kHost);
  }
  if (tiles.count == 0) {
    return;
  }
  const auto elems = static_cast<std::size_t>(tiles.elems);
  const std::size_t bytes = elems * ((tiles.gradients ? dtype_size(plan_.accumulation_dtype) : 0) +
                                     (tiles.parameters ? dtype_size(plan_.model_dtype) : 0));
  for (int tile = 0; tile < tiles.count; ++tile) {
    ring_.push_back({world_.device.allocate(
                         bytes, on_host ? Category::kPinned : Category::kStaging, tiles.space),
                     {}});
  }
  bring_ = world_.device.make_stream("to update");
  take_back_ = world_.device.make_stream("from update");
}

void StateMover::begin_step(ConstTensorView scalars) {
  scalars_ = scalars;
  const accel::Event ready = compute_.record();
  if (!ring_.empty()) {
    bring_->wait(ready);      // read-after-write: the reduced gradients
    take_back_->wait(ready);  // write-after-read: whoever still reads the old parameters
  }
  if (update_ != nullptr) {
    const TensorView on_host = host_scalars_.view(DType::kU8, scalars.shape);
    update_->wait(ready);  // read-after-write: scalars and gradients
    world_.device.copy(scalars, on_host, *update_);
    scalars_ = on_host;
  }
}

Range StateMover::first_tile(Range range) const {
  return {range.begin,
          plan_.tiles.count == 0 ? range.count : std::min(range.count, plan_.tiles.elems)};
}

TensorView StateMover::gradient_part(Range tile) {
  return current().buffer.view(plan_.accumulation_dtype, Shape{tile.count});
}

TensorView StateMover::parameter_part(Range tile) {
  const std::size_t first = plan_.tiles.gradients ? static_cast<std::size_t>(plan_.tiles.elems) *
                                                        dtype_size(plan_.accumulation_dtype)
                                                  : 0;
  return {current().buffer.data() + first, plan_.model_dtype, Shape{tile.count}};
}

void StateMover::copy(int flat, ConstTensorView src, TensorView dst, accel::Stream& stream) {
  Timeline& timeline = world_.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, stream);
  world_.device.copy(src, dst, stream);
  accel::end_span(timeline,
                  stream,
                  start,
                  Activity::kCopy,
                  store_.unit_name(flat),
                  static_cast<std::int64_t>(dst.bytes()));
}

UpdateSite StateMover::open(int flat, Range tile) {
  const Flat& layout = plan_.flats[static_cast<std::size_t>(flat)];
  const Home home = layout.state.home;
  accel::Stream& stream = home == Home::kDevice ? compute_ : *update_;
  UpdateSite site{
      world_.device.kernels(space_of(home)), stream, scalars_, store_.gradients(flat, tile), {}};
  if (!ring_.empty()) {
    bring_->wait(current().taken_back);  // write-after-read: what the buffer held before
    stream.wait(current().taken_back);
  }
  if (layout.gradients.home != home) {
    copy(flat, store_.gradients(flat, tile), gradient_part(tile), *bring_);
    stream.wait(bring_->record());  // read-after-write: the gradient
    site.gradient = gradient_part(tile);
  }
  if (plan_.model_dtype != DType::kF32) {
    site.model_copy =
        layout.parameters.home == home ? store_.parameters(flat, tile) : parameter_part(tile);
  }
  return site;
}

void StateMover::close(int flat, Range tile) {
  if (ring_.empty()) {
    return;
  }
  const Flat& layout = plan_.flats[static_cast<std::size_t>(flat)];
  accel::Stream& stream = layout.state.home == Home::kDevice ? compute_ : *update_;
  take_back_->wait(stream.record());  // read-after-write: the updated tile
  if (plan_.model_dtype == DType::kF32 && plan_.separate_master) {
    copy(flat, store_.master(flat, tile), store_.parameters(flat, tile), *take_back_);
  } else if (plan_.model_dtype != DType::kF32 && layout.parameters.home != layout.state.home) {
    copy(flat, parameter_part(tile), store_.parameters(flat, tile), *take_back_);
  }
  current().taken_back = take_back_->record();
  ++closed_;
}

void StateMover::finish_flat() {
  if (closed_ > 0) {
    const Tile& last = ring_[(closed_ - 1) % ring_.size()];
    compute_.wait(last.taken_back);  // read-after-write: the updated parameters
  } else if (update_ != nullptr) {
    compute_.wait(update_->record());  // the same, where they live on the host
  }
}

}  // namespace zero
