#include "engine/unit/reducer.h"

#include <zero/accel/timing.h>

#include <algorithm>
#include <utility>

namespace zero {

Reducer::Reducer(const StatePlan& plan,
                 UnitStore& store,
                 World& world,
                 const ShardGroups& groups,
                 Streams streams)
    : plan_(plan),
      store_(store),
      world_(world),
      groups_(groups),
      streams_(streams),
      slots_(
          world.device, world.context, plan.gradient_classes, plan.model_dtype, Category::kBuckets),
      transport_(world.device,
                 world.context,
                 plan.transport_classes,
                 plan.communication_dtype,
                 Category::kBuckets),
      flats_(plan.flats.size()),
      params_(plan.params.size()) {
  for (int flat = 0; flat < static_cast<int>(plan_.flats.size()); ++flat) {
    for (const FlatParam& place : flat_plan(flat).params) {
      params_[place.param].flat = flat;
      params_[place.param].place = &place;
    }
  }
  const LandingTiles& landing = plan_.landing;
  if (landing.count == 0) {
    return;
  }
  for (int tile = 0; tile < landing.count; ++tile) {
    tiles_.push_back(
        {world_.device.allocate(
             static_cast<std::size_t>(landing.bytes), Category::kPinned, MemorySpace::kHost),
         {}});
  }
  to_host_ = world_.device.make_stream("gradients to host");
  host_sums_ = world_.device.make_stream("gradients on host");
  host_squares_ = world_.device.allocate(
      (accel::kNormLimbs + 1) * sizeof(std::int64_t), Category::kOther, MemorySpace::kHost);
  world_.device.zero(host_row(), *host_sums_);
}

TensorView Reducer::host_row() const {
  return host_squares_.view(DType::kI64, Shape{accel::kNormLimbs + 1});
}

void Reducer::sum_squares(int flat, Range range, accel::Stream& stream) {
  const TensorView sums = store_.gradients(flat, range);
  if (host_sums_ == nullptr) {
    world_.device.kernels().sum_of_squares(sums, squares_, stream);
    return;
  }
  if (&stream != host_sums_.get()) {
    host_sums_->wait(stream.record());
  }
  world_.device.kernels(MemorySpace::kHost).sum_of_squares(sums, host_row(), *host_sums_);
}

void Reducer::publish_squares(accel::Stream& stream) {
  if (host_sums_ == nullptr) {
    return;  // summed where they are wanted; finish_window() has waited for it
  }
  host_sums_->wait(stream.record());  // write-after-write: the row
  world_.device.copy(host_row(), squares_, *host_sums_);
  world_.device.zero(host_row(), *host_sums_);
  stream.wait(host_sums_->record());  // read-after-write: the row
}

void Reducer::begin_micro_step(const std::vector<int>& uses, bool boundary) {
  forget_squares();
  boundary_ = boundary;
  reduce_now_ = boundary || !plan_.reduce_at_boundary;
  next_bucket_ = 0;
  for (FlatProgress& flat : flats_) {
    flat = FlatProgress{};
  }
  for (const Bucket& bucket : plan_.buckets) {
    for (const BucketPiece& piece : bucket) {
      ++progress(piece.flat).pieces_left;
    }
  }
  for (std::size_t param = 0; param < params_.size(); ++param) {
    params_[param].uses = uses[param];
    params_[param].contributions = 0;
    if (uses[param] > 0) {
      ++progress(params_[param].flat).incomplete;
    }
  }
}

TensorView Reducer::target(int flat) {
  if (flat_plan(flat).gradient_class < 0) {
    return store_.gradients(flat, {0, flat_plan(flat).padded_elems});
  }
  acquire_slot(flat);
  return progress(flat).slot->buffer.view(plan_.model_dtype, Shape{flat_plan(flat).padded_elems});
}

void Reducer::acquire_slot(int flat) {
  if (progress(flat).slot != nullptr) {
    return;
  }
  int evicted = -1;
  Slot& slot = slots_.acquire(flat_plan(flat).gradient_class, flat, evicted);
  progress(flat).slot = &slot;
  streams_.compute.wait(slot.free);  // write-after-read: the reduction of what was in the slot
  // Padding must be zero: it takes part in sums and updates.
  const TensorView whole = slot.buffer.view(plan_.model_dtype, Shape{flat_plan(flat).padded_elems});
  std::int64_t end = 0;
  const auto zero_up_to = [&](std::int64_t begin) {
    if (begin > end) {
      world_.device.zero(whole.slice(end, begin - end), streams_.compute);
    }
  };
  for (const FlatParam& param : flat_plan(flat).params) {
    zero_up_to(param.offset);
    end = param.offset + param.elems;
  }
  zero_up_to(whole.elems());
}

void Reducer::bind(std::size_t param) {
  const ParamProgress& mine = params_.at(param);
  Parameter& parameter = store_.parameter(param);
  if (!flat_plan(mine.flat).trainable) {
    parameter.grad = {};
    return;
  }
  parameter.grad =
      target(mine.flat).slice(mine.place->offset, mine.place->elems).reshape(parameter.info.shape);
  const bool in_place = flat_plan(mine.flat).gradient_class < 0;
  parameter.grad_accumulate = (in_place ? mine.window : mine.contributions) > 0;
}

void Reducer::gradient_ready(std::size_t param, TensorView gradient, GradientWrite write) {
  ParamProgress& mine = params_.at(param);
  Parameter& parameter = store_.parameter(param);
  ZERO_CHECK(parameter.grad && !progress(mine.flat).complete,
             "gradient of " + parameter.info.name + " arrives unasked");
  if (gradient.data != parameter.grad.data) {
    const bool overwrite = write == GradientWrite::kWritten && !parameter.grad_accumulate;
    world_.device.kernels().accumulate(gradient, parameter.grad, overwrite, streams_.compute);
  }
  ++mine.contributions;
  ++mine.window;
  parameter.grad_accumulate = true;
  if (mine.contributions == mine.uses && --progress(mine.flat).incomplete == 0) {
    complete(mine.flat);
    launch_ready();
  }
}

void Reducer::complete(int flat) {
  FlatProgress& mine = progress(flat);
  const bool last_chance = flat_plan(flat).gradient_class >= 0 || reduce_now_;
  if (last_chance) {
    zero_missing(flat);
  }
  if (mine.slot != nullptr && !flat_plan(flat).gradients.partitioned) {
    fold_locally(flat);
  }
  mine.complete = true;
}

void Reducer::zero_missing(int flat) {
  const bool in_place = flat_plan(flat).gradient_class < 0;
  const TensorView whole = target(flat);
  for (const FlatParam& place : flat_plan(flat).params) {
    ParamProgress& param = params_[place.param];
    if ((in_place ? param.window : param.contributions) == 0) {
      world_.device.zero(whole.slice(place.offset, place.elems), streams_.compute);
    }
  }
}

void Reducer::fold_locally(int flat) {
  FlatProgress& mine = progress(flat);
  const std::int64_t elems = flat_plan(flat).padded_elems;
  world_.device.kernels().accumulate(
      target(flat), store_.gradients(flat, {0, elems}), micro_steps_ == 0, streams_.compute);
  slots_.release(*mine.slot, streams_.compute.record(), true);
  mine.slot = nullptr;
}

void Reducer::launch_ready() {
  for (; reduce_now_ && next_bucket_ < plan_.buckets.size(); ++next_bucket_) {
    const Bucket& bucket = plan_.buckets[next_bucket_];
    for (const BucketPiece& piece : bucket) {
      if (!progress(piece.flat).complete && progress(piece.flat).incomplete == 0) {
        complete(piece.flat);  // used by nobody in this micro-step
      }
      if (!progress(piece.flat).complete) {
        return;
      }
    }
    launch(bucket);
  }
}

TensorView Reducer::outgoing(int flat) {
  const Flat& layout = flat_plan(flat);
  const TensorView source = layout.gradients.partitioned
                                ? target(flat)
                                : store_.gradients(flat, {0, layout.padded_elems});
  if (layout.transport_class < 0) {
    return source;
  }
  FlatProgress& mine = progress(flat);
  const bool is_new = mine.transport == nullptr;
  if (is_new) {
    int evicted = -1;
    mine.transport = &transport_.acquire(layout.transport_class, flat, evicted);
    streams_.comm.wait(mine.transport->free);  // write-after-read: what was exchanged in it before
  }
  const TensorView copy =
      mine.transport->buffer.view(plan_.communication_dtype, Shape{layout.padded_elems});
  if (is_new) {
    world_.device.kernels().cast(source, copy, streams_.comm);
  }
  return copy;
}

std::vector<Range> Reducer::ranges(const BucketPiece& piece, bool all_slices) const {
  if (!all_slices) {
    return {{store_.own_slice(piece.flat).begin + piece.begin, piece.count}};
  }
  std::vector<Range> all;
  for (int slice = 0; slice < plan_.shards; ++slice) {
    all.push_back({slice * flat_plan(piece.flat).slice_elems + piece.begin, piece.count});
  }
  return all;
}

void Reducer::scale(const Bucket& bucket, double factor, bool all_slices) {
  for (const BucketPiece& piece : bucket) {
    for (const Range& range : ranges(piece, all_slices)) {
      const TensorView part = outgoing(piece.flat).slice(range.begin, range.count);
      world_.device.kernels().scale(part, static_cast<float>(factor), part, streams_.comm);
    }
  }
}

void Reducer::launch(const Bucket& bucket) {
  streams_.comm.wait(streams_.compute.record());  // read-after-write: backward's last contribution
  Timeline& timeline = world_.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, streams_.comm);
  const bool plain = plan_.factor_before_reduction == 1.0 && plan_.factor_after_reduction == 1.0;
  const comm::ReduceOp op = plain ? comm::ReduceOp::kMean : comm::ReduceOp::kSum;
  if (!plain) {
    scale(bucket, plan_.factor_before_reduction, true);
  }
  const std::string& unit = store_.unit_name(bucket.front().flat);
  groups_.shards().about(unit);
  if (plan_.all_reduce) {
    std::vector<TensorView> pieces;
    for (const BucketPiece& piece : bucket) {
      for (const Range& range : ranges(piece, true)) {
        pieces.push_back(outgoing(piece.flat).slice(range.begin, range.count));
      }
    }
    (void)groups_.shards().all_reduce_in_place(pieces, op, streams_.comm);
  } else {
    std::vector<comm::SlicedView> slices;
    std::vector<TensorView> own;
    for (const BucketPiece& piece : bucket) {
      slices.push_back({outgoing(piece.flat), piece.begin, piece.count});
      const Range range = ranges(piece, false).front();
      own.push_back(outgoing(piece.flat).slice(range.begin, range.count));
    }
    (void)groups_.shards().reduce_scatter_in_place(slices, op, streams_.comm);
    if (groups_.replicas() != nullptr) {
      groups_.replicas()->about(unit);
      (void)groups_.replicas()->all_reduce_in_place(own, op, streams_.comm);
    }
  }
  if (!plain) {
    scale(bucket, plan_.factor_after_reduction, plan_.all_reduce);
  }
  std::int64_t bytes = 0;
  for (const BucketPiece& piece : bucket) {
    bytes += (plan_.shards - 1) * piece.count *
             static_cast<std::int64_t>(dtype_size(plan_.communication_dtype)) *
             (plan_.all_reduce ? 2 : 1);
  }
  accel::end_span(timeline, streams_.comm, start, Activity::kReduce, unit, bytes);
  land(bucket);
}

void Reducer::land(const Bucket& bucket) {
  for (const BucketPiece& piece : bucket) {
    const Flat& layout = flat_plan(piece.flat);
    if (!layout.gradients.partitioned && layout.transport_class < 0) {
      continue;  // reduced where it lies
    }
    const bool overwrite = !layout.gradients.partitioned || micro_steps_ == 0;
    for (const Range& range : ranges(piece, plan_.all_reduce)) {
      const TensorView reduced = outgoing(piece.flat).slice(range.begin, range.count);
      if (layout.gradients.home == Home::kDevice) {
        world_.device.kernels().accumulate(
            reduced, store_.gradients(piece.flat, range), overwrite, streams_.comm);
      } else {
        land_on_host(reduced, piece.flat, range, overwrite);
      }
    }
  }
  accel::Stream& last = host_sums_ == nullptr ? streams_.comm : *host_sums_;
  if (boundary_ && store_.counts()) {
    for (const BucketPiece& piece : bucket) {
      sum_squares(piece.flat, ranges(piece, false).front(), last);
    }
  }
  const accel::Event landed = last.record();
  if (!plan_.overlap) {
    streams_.compute.wait(landed);  // no hazard: overlap_comm is off
  }
  for (const BucketPiece& piece : bucket) {
    FlatProgress& mine = progress(piece.flat);
    if (--mine.pieces_left > 0) {
      continue;
    }
    mine.reduced = landed;
    if (mine.slot != nullptr) {
      slots_.release(*mine.slot, landed, true);
      mine.slot = nullptr;
    }
    if (mine.transport != nullptr) {
      transport_.release(*mine.transport, landed, true);
      mine.transport = nullptr;
    }
  }
}

void Reducer::land_on_host(ConstTensorView reduced, int flat, Range range, bool overwrite) {
  const accel::Kernels& host = world_.device.kernels(MemorySpace::kHost);
  const TensorView sums = store_.gradients(flat, range);
  Timeline& timeline = world_.context.timeline;
  to_host_->wait(streams_.comm.record());  // read-after-write: the reduced values
  for (std::int64_t begin = 0; begin < range.count; begin += plan_.landing.elems) {
    const std::int64_t count = std::min(plan_.landing.elems, range.count - begin);
    Tile& tile = tiles_[next_tile_++ % tiles_.size()];
    const TensorView staged = tile.buffer.view(reduced.dtype, Shape{count});
    to_host_->wait(tile.added);  // write-after-read: what the tile held before
    const accel::SpanStart start = accel::begin_span(timeline, *to_host_);
    world_.device.copy(reduced.slice(begin, count), staged, *to_host_);
    accel::end_span(timeline,
                    *to_host_,
                    start,
                    Activity::kCopy,
                    store_.unit_name(flat),
                    static_cast<std::int64_t>(staged.bytes()));
    host_sums_->wait(to_host_->record());  // read-after-write: the tile
    host.accumulate(staged, sums.slice(begin, count), overwrite, *host_sums_);
    tile.added = host_sums_->record();
  }
}

void Reducer::finish_micro_step() {
  for (int flat = 0; flat < static_cast<int>(flats_.size()); ++flat) {
    if (flat_plan(flat).trainable && !progress(flat).complete) {
      progress(flat).incomplete = 0;  // what a forward promised and backward did not send is zero
      if (!reduce_now_) {
        complete(flat);
      }
    }
  }
  // Completes the rest in launch order, so that no more slots are held than planned.
  launch_ready();
  ZERO_CHECK(!reduce_now_ || next_bucket_ == plan_.buckets.size(), "a bucket was left behind");
  squares_summed_ = boundary_;
  ++micro_steps_;
}

void Reducer::forget_squares() {
  if (std::exchange(squares_summed_, false)) {
    if (host_sums_ != nullptr) {
      world_.device.zero(host_row(), *host_sums_);
      return;
    }
    world_.device.zero(squares_, streams_.comm);
    streams_.compute.wait(streams_.comm.record());  // write-after-write: a sum on that stream
  }
}

void Reducer::finish_window(accel::Stream& stream) {
  if (plan_.reduce_at_boundary && next_bucket_ == 0 && !plan_.buckets.empty()) {
    // The boundary was decided after backward: reduce the local sums now.
    reduce_now_ = true;
    boundary_ = true;
    for (int flat = 0; flat < static_cast<int>(flats_.size()); ++flat) {
      if (flat_plan(flat).trainable && flat_plan(flat).gradient_class < 0) {
        zero_missing(flat);
      }
    }
    launch_ready();
    squares_summed_ = true;
  }
  Timeline& timeline = world_.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, stream);
  for (const FlatProgress& flat : flats_) {
    stream.wait(flat.reduced);  // read-after-write: the sums at their home
  }
  accel::end_span(timeline, stream, start, Activity::kStall, "wait for reductions");
}

void Reducer::begin_window() {
  micro_steps_ = 0;
  next_bucket_ = 0;
  squares_summed_ = false;
  boundary_ = false;
  for (ParamProgress& param : params_) {
    param.window = 0;
  }
}

}  // namespace zero
