#include "engine/runtime/parts.h"

#include <algorithm>
#include <cstring>

namespace zero {

void Engine::step() {
  EngineParts& parts = *parts_;
  if (!parts.backward_done) {
    throw InputError(
        "step without a backward", "Engine::step", "call forward, backward and step in this order");
  }
  parts.backward_done = false;
  const bool boundary = parts.at_boundary();
  ++parts.micro_steps;
  if (!boundary) {
    return;
  }
  parts.settle(true);  // earlier steps: they decide the count of applied updates
  parts.reducer.finish_window(*parts.compute);
  parts.reduce_scalars();
  parts.update_parameters(parts.applied_steps + 1);
  parts.reducer.begin_window();
  ++parts.global_steps;
}

/// Norm, finite flag and loss of all ranks in one small integer all-reduce; the decision stays on
/// the device.
void EngineParts::reduce_scalars() {
  const accel::Kernels& kernels = world.device.kernels();
  for (int flat = 0; flat < static_cast<int>(plan.flats.size()); ++flat) {
    if (plan.flats[static_cast<std::size_t>(flat)].trainable) {
      kernels.sum_of_squares(store.gradients(flat, store.own_slice(flat)), limb_row(0), *compute);
    }
  }
  comm->wait(compute->record());  // read-after-write: the limbs
  const TensorView all = limb_view();
  compute->wait(world.group.all_reduce_in_place(
      {&all, 1}, comm::ReduceOp::kSum, *comm, comm::Payload::kControl));
  accel::Kernels::StepDecision decision;
  decision.loss_scale = latest.loss_scale;
  decision.clip = config.gradient_clipping;
  decision.loss_divisor =
      static_cast<double>(world.group.size()) * static_cast<double>(window_micro_steps);
  kernels.step_scalars(decision, all, scalar_view(), *compute);
  world.device.zero(all, *compute);

  PendingStep step;
  step.result.step = global_steps + 1;
  step.result.lr = groups.front().lr;
  step.result.loss_scale = latest.loss_scale;
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

void EngineParts::update_parameters(std::int64_t t) {
  for (int flat = 0; flat < static_cast<int>(plan.flats.size()); ++flat) {
    if (plan.flats[static_cast<std::size_t>(flat)].trainable) {
      store.before_update(flat);
      update_flat(flat, t);
      store.publish(flat);
    }
  }
}

/// Updates this rank's part of a flat: one call for each run of parameters of one group. The
/// padding between them is zero in every state and stays zero under every rule.
void EngineParts::update_flat(int flat, std::int64_t t) {
  const Flat& layout = plan.flats[static_cast<std::size_t>(flat)];
  const Range owned = store.owned(flat);
  const std::int64_t end = owned.begin + owned.count;
  for (std::size_t first = 0; first < layout.params.size();) {
    const int group = plan.params[layout.params[first].param].group;
    std::size_t last = first + 1;
    while (last < layout.params.size() && plan.params[layout.params[last].param].group == group) {
      ++last;
    }
    const std::int64_t run_end =
        last < layout.params.size() ? layout.params[last].offset : layout.padded_elems;
    const std::int64_t begin = std::max(owned.begin, layout.params[first].offset);
    const Range range{begin, std::min(end, run_end) - begin};
    first = last;
    if (range.count <= 0) {
      continue;
    }
    optim::Segment segment{store.master(flat, range), {}, store.gradients(flat, range), {}};
    for (int moment = 0; moment < plan.moments; ++moment) {
      segment.moments.push_back(store.moment(flat, moment, range));
    }
    if (plan.separate_master) {
      segment.model_copy = store.parameters(flat, range);
    }
    rule->update(segment,
                 groups[static_cast<std::size_t>(group)],
                 t,
                 scalar_view(),
                 world.device.kernels(),
                 *compute);
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
    ++(step.result.skipped ? skipped_steps : applied_steps);
    latest = step.result;
    results.push_back(step.result);
  }
}

}  // namespace zero
