#include "engine/runtime/parts.h"
#include <zero/accel/timing.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace zero {

void Engine::step() {
  EngineParts& parts = *parts_;
  if (!parts.backward_done) {
    throw InputError(
        "step without a backward", "Engine::step", "call forward, backward and step in this order");
  }
  if (parts.local_only) {
    throw InputError("step inside no_sync", "Engine::step", "end the no_sync scope first");
  }
  parts.backward_done = false;
  const bool boundary = parts.at_boundary();
  ++parts.micro_steps;
  if (!boundary) {
    return;
  }
  Timeline& timeline = parts.world.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, *parts.compute);
  parts.reducer.finish_window(*parts.compute);
  parts.reduce_scalars();
  parts.update_parameters();
  accel::end_span(timeline, *parts.compute, start, Activity::kStep, "step");
  parts.sample_counters();
  parts.reducer.begin_window();
  ++parts.global_steps;
  parts.boundary_micro_steps = parts.micro_steps;
  parts.boundary_samples = parts.training_samples;
}

void EngineParts::forget_window() {
  reducer.begin_window();
  world.device.zero(limb_view(), *compute);
  window_micro_steps = 0;
  backward_done = false;
}

/// Norm, finite flag and loss of all ranks in one small integer all-reduce; the decision stays on
/// the device.
void EngineParts::reduce_scalars() {
  const accel::Kernels& kernels = world.device.kernels();
  // The squares were summed as the gradients landed, unless the boundary was decided after that.
  for (int flat = 0;
       flat < static_cast<int>(plan.flats.size()) && store.counts() && !reducer.squares_summed();
       ++flat) {
    if (plan.flats[static_cast<std::size_t>(flat)].trainable) {
      reducer.sum_squares(flat, store.own_slice(flat), *compute);
    }
  }
  reducer.publish_squares(*compute);
  comm->wait(compute->record());  // read-after-write: the limbs
  const TensorView all = limb_view();
  Timeline& timeline = world.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, *comm);
  const char* purpose = "norm, loss and finite flag";
  const comm::About about(world.group, purpose);
  const accel::Event agreed = world.group.all_reduce_in_place(
      {&all, 1}, comm::ReduceOp::kSum, *comm, comm::Payload::kControl);
  accel::end_span(
      timeline, *comm, start, Activity::kControl, purpose, static_cast<std::int64_t>(all.bytes()));
  const accel::SpanStart stall = accel::begin_span(timeline, *compute);
  compute->wait(agreed);
  accel::end_span(timeline, *compute, stall, Activity::kStall, "wait for the norm");
  accel::Kernels::StepDecision decision;
  decision.loss_scale = scaler.scale();
  decision.check_overflow = !config.bf16_enabled || config.bf16_check_grad_overflow;
  decision.clip = config.gradient_clipping;
  decision.loss_divisor =
      static_cast<double>(world.group.size()) * static_cast<double>(window_micro_steps);
  kernels.step_scalars(decision, all, scalar_view(), *compute);
  world.device.zero(all, *compute);

  PendingStep step;
  step.result.step = global_steps + 1;
  step.result.lr = hyper_now().back().lr;
  step.result.loss_scale = scaler.scale();
  if (spare_scalars.empty()) {
    spare_scalars.push_back(
        world.device.allocate(sizeof(accel::StepScalars), Category::kOther, MemorySpace::kHost));
  }
  step.host_scalars = std::move(spare_scalars.back());
  spare_scalars.pop_back();
  world.device.copy(
      scalar_view(), step.host_scalars.view(DType::kU8, scalar_view().shape), *compute);
  step.ready = compute->record();
  pending.push_back(std::move(step));
  window_micro_steps = 0;
}

std::vector<optim::Hyper> EngineParts::hyper_now() const {
  std::vector<optim::Hyper> hyper = groups;
  for (std::size_t group = 0; schedule != nullptr && group < hyper.size(); ++group) {
    hyper[group].lr = schedule->lr(applied_steps - 1, group, groups[group].lr);
    hyper[group].betas = schedule->betas(applied_steps - 1);
  }
  return hyper;
}

void EngineParts::update_parameters() {
  const std::vector<optim::Hyper> hyper = hyper_now();
  const std::int64_t t = applied_steps + 1;
  if (plan.tiles.count > 0) {
    settle(true);  // a skipped step leaves nothing in the tiles that could be taken back
    if (latest.skipped) {
      return;
    }
  }
  std::vector<int> flats;
  for (int flat = 0; flat < static_cast<int>(plan.flats.size()); ++flat) {
    if (plan.flats[static_cast<std::size_t>(flat)].trainable) {
      flats.push_back(flat);
      store.before_update(flat);
    }
  }
  mover.begin_step(scalar_view());
  for (const int flat : flats) {
    wait_staged(flat);
    update_flat(flat, hyper, t);
    mover.finish_flat();
    store.publish(flat);
  }
}

/// Updates this rank's part of a flat: one call for each run of parameters of one group. The
/// padding between them is zero in every state and stays zero under every rule.
void EngineParts::update_flat(int flat, const std::vector<optim::Hyper>& hyper, std::int64_t t) {
  const Flat& layout = plan.flats[static_cast<std::size_t>(flat)];
  const Range owned = store.owned(flat);
  for (std::size_t first = 0; first < layout.params.size();) {
    const int group = plan.params[layout.params[first].param].group;
    std::size_t last = first + 1;
    while (last < layout.params.size() && plan.params[layout.params[last].param].group == group) {
      ++last;
    }
    const std::int64_t begin = layout.params[first].offset;
    const std::int64_t end =
        last < layout.params.size() ? layout.params[last].offset : layout.padded_elems;
    update_range(
        flat, intersect(owned, {begin, end - begin}), hyper[static_cast<std::size_t>(group)], t);
    first = last;
  }
}

void EngineParts::update_range(int flat, Range range, const optim::Hyper& hyper, std::int64_t t) {
  while (range.count > 0) {
    const Range tile = mover.first_tile(range);
    const UpdateSite site = mover.open(flat, tile);
    optim::Segment segment{store.master(flat, tile), {}, site.gradient, site.model_copy};
    for (int moment = 0; moment < plan.moments; ++moment) {
      segment.moments.push_back(store.moment(flat, moment, tile));
    }
    rule->update(segment, hyper, t, site.scalars, site.kernels, site.stream);
    mover.close(flat, tile);
    range = {tile.begin + tile.count, range.count - tile.count};
  }
}

void EngineParts::settle(bool wait) {
  while (!pending.empty() && (wait || pending.front().ready.ready())) {
    PendingStep step = std::move(pending.front());
    pending.pop_front();
    step.ready.wait();
    accel::StepScalars decided;
    std::memcpy(&decided, step.host_scalars.data(), sizeof(decided));
    spare_scalars.push_back(std::move(step.host_scalars));
    step.result.loss = decided.loss;
    step.result.grad_norm = decided.grad_norm;
    step.result.skipped = decided.skip != 0;
    take_over(step.result);
  }
}

void EngineParts::take_over(const StepResult& result) {
  latest = result;
  results.push_back(result);
  const LossScaler::Change change = scaler.update(result.skipped);
  skipped_steps += result.skipped ? 1 : 0;
  report_step(result);
  if (!result.skipped) {
    ++applied_steps;
    skipped_in_a_row = 0;
    return;
  }
  ++skipped_in_a_row;
  report_skip(result, change);
  if (skipped_in_a_row >= max_skipped_in_a_row) {
    const std::string bad = first_bad_gradient();
    throw InputError(
        fmt::format("{} steps in a row were not finite, the latest {} at loss scale {}",
                    skipped_in_a_row,
                    result.step,
                    result.loss_scale),
        bad.empty() ? "gradients of other ranks" : "first in the gradient of " + bad,
        "look at the data and the learning rate, or train in bf16");
  }
}

void EngineParts::report_skip(const StepResult& result, LossScaler::Change change) {
  constexpr std::int64_t kAlways = 5;
  constexpr std::int64_t kThen = 100;
  if (skipped_steps > kAlways && skipped_steps % kThen != 0) {
    return;
  }
  std::string scale;
  if (change == LossScaler::Change::kHysteresis) {
    scale = fmt::format(" but hysteresis is {}. Reducing hysteresis to {}",
                        scaler.state().hysteresis_left + 1,
                        scaler.state().hysteresis_left);
  } else if (scaler.dynamic()) {
    scale = fmt::format(", reducing to {}", scaler.scale());
  }
  const std::string bad = first_bad_gradient();
  if (world.context.rank == 0 || !bad.empty()) {
    ZERO_LOG(world.context.log,
             kWarn,
             "precision",
             "OVERFLOW! Rank {} Skipping step {}. Attempted loss scale: {}{}{}",
             world.context.rank,
             result.step,
             result.loss_scale,
             scale,
             bad.empty() ? "" : "; first in the gradient of " + bad);
  }
}

std::string EngineParts::first_bad_gradient() {
  const TensorView row = limb_row(0);
  accel::Buffer host = world.device.allocate(row.bytes(), Category::kOther, MemorySpace::kHost);
  const TensorView host_row = host.view(DType::kI64, row.shape);
  std::string bad;
  for (int flat = 0; flat < static_cast<int>(plan.flats.size()) && bad.empty(); ++flat) {
    const Flat& layout = plan.flats[static_cast<std::size_t>(flat)];
    const Range slice = store.own_slice(flat);
    for (const FlatParam& param : layout.params) {
      const std::int64_t begin = std::max(slice.begin, param.offset);
      const std::int64_t end = std::min(slice.begin + slice.count, param.offset + param.elems);
      if (!layout.trainable || begin >= end || !bad.empty()) {
        continue;
      }
      const std::int64_t padded = (end - begin + kAlignElems - 1) / kAlignElems * kAlignElems;
      const TensorView gradient = store.gradients(flat, {begin, padded});
      if (layout.gradients.home == Home::kDevice) {
        world.device.kernels().sum_of_squares(gradient, row, *compute);
        world.device.copy(row, host_row, *compute);
        world.device.zero(row, *compute);
      } else {
        world.device.zero(host_row, *compute);
        world.device.kernels(MemorySpace::kHost).sum_of_squares(gradient, host_row, *compute);
      }
      compute->synchronize();
      if (host_row.as<std::int64_t>()[accel::kNormLimbs] > 0) {
        bad = plan.params[param.param].name;
      }
    }
  }
  return bad;
}

}  // namespace zero
