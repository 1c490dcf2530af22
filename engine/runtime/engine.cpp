#include "engine/runtime/parts.h"
#include <zero/accel/timing.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace zero {

float Loss::value() const {
  if (state_ == nullptr) {
    throw InputError("a loss is read that no forward has made",
                     "Loss::value",
                     "call engine.forward(batch) first");
  }
  state_->ready.wait();
  return state_->host_value.view(DType::kF32, Shape{1}).as<float>()[0];
}

Engine::Engine(std::unique_ptr<EngineParts> parts) : parts_(std::move(parts)) {}
Engine::Engine(Engine&&) noexcept = default;

Engine::~Engine() {
  if (parts_ == nullptr) {
    return;
  }
  try {
    parts_->finish_save();
  } catch (const std::exception& error) {
    ZERO_LOG(parts_->world.context.log, kWarn, "checkpoint", "not saved: {}", error.what());
  }
  for (const auto& buffer : buffers_of(parts_->model)) {
    buffer->value = {};
  }
  // Memory may go only when no stream uses it. Errors were reported where somebody waited for them.
  for (accel::Stream* stream : parts_->streams()) {
    try {
      stream->synchronize();
    } catch (const std::exception& error) {
      ZERO_LOG(
          parts_->world.context.log, kDebug, "engine", "unread error at the end: {}", error.what());
    }
  }
}

bool EngineParts::at_boundary() const {
  return !local_only &&
         forced_boundary.value_or((micro_steps + 1) % config.gradient_accumulation_steps == 0);
}

TensorView EngineParts::limb_view() const {
  return limbs.view(DType::kI64, Shape{2, accel::kNormLimbs + 1});
}

TensorView EngineParts::limb_row(int row) const {
  return limb_view().slice(std::int64_t{row} * (accel::kNormLimbs + 1), accel::kNormLimbs + 1);
}

TensorView EngineParts::scalar_view() const {
  return scalars.view(DType::kU8, Shape{static_cast<std::int64_t>(sizeof(accel::StepScalars))});
}

std::shared_ptr<LossState> EngineParts::take_loss() {
  const auto unused = std::find_if(losses.begin(), losses.end(), [](const auto& loss) {
    return loss.use_count() == 1 && loss->idle.ready();
  });
  if (unused != losses.end()) {
    return *unused;
  }
  auto loss = std::make_shared<LossState>();
  loss->device_value = world.device.allocate(sizeof(float), Category::kOther);
  loss->host_value = world.device.allocate(sizeof(float), Category::kOther, MemorySpace::kHost);
  losses.push_back(loss);
  return loss;
}

void EngineParts::deliver_loss(LossState& loss) {
  world.device.copy(loss.device_value.view(DType::kF32, Shape{1}),
                    loss.host_value.view(DType::kF32, Shape{1}),
                    *compute);
  loss.ready = compute->record();
  loss.idle = loss.ready;
}

ActivationMemory& EngineParts::activation_memory(std::size_t index,
                                                 const ActivationProfile& profile) {
  while (activations.size() <= index) {
    activations.push_back(std::make_unique<ActivationMemory>());
  }
  ActivationMemory& memory = *activations[index];
  const auto grow = [&](accel::Buffer& buffer, std::int64_t bytes, MemorySpace space) {
    if (buffer.bytes() >= static_cast<std::size_t>(bytes)) {
      return false;
    }
    compute->synchronize();  // an earlier pass may still use the smaller one
    buffer = {};
    buffer = world.device.allocate(static_cast<std::size_t>(bytes), Category::kActivations, space);
    return true;
  };
  if (grow(memory.buffer, profile.activation_bytes, MemorySpace::kDevice)) {
    memory.arena = accel::Arena(memory.buffer);
  }
  if (grow(memory.host_buffer, profile.stashed_bytes, MemorySpace::kHost)) {
    memory.stash = accel::HostStash(world.device, *stash, memory.host_buffer);
  }
  return memory;
}

const ActivationProfile& EngineParts::evaluation_profile(
    const std::string& key, const std::function<void(Execution&)>& pass) {
  const auto found = profiles.find(key);
  if (found != profiles.end()) {
    return found->second;
  }
  return profiles[key] = measure_pass(plan.model_dtype, false, world.device, Phase::kEval, pass);
}

Execution EngineParts::execution(ActivationMemory& memory, Phase phase) {
  Execution execution{world.device, *compute, memory.arena, coordinator, phase};
  execution.stash = plan.stash_activations ? &memory.stash : nullptr;
  return execution;
}

/// Sample numbers run over micro-steps, then ranks, then rows: a batch of the same samples gives
/// the same numbers for any split.
PassRandom EngineParts::next_random() {
  const std::int64_t rows = config.train_micro_batch_size_per_gpu;
  const std::int64_t first = training_samples + world.group.rank() * rows;
  training_samples += world.group.size() * rows;
  return {seed, first};
}

Loss Engine::forward(const Batch& batch) {
  if (!training_) {
    return evaluate(batch);
  }
  EngineParts& parts = *parts_;
  parts.model.check_batch(batch);
  if (parts.reducer.reduced()) {
    throw InputError("forward after the gradients of this window have been reduced",
                     "Engine::forward",
                     "call engine.step() at the accumulation boundary");
  }
  parts.world.context.step = parts.global_steps + 1;
  const std::string key = "train" + shape_key(batch);
  if (parts.profiles.find(key) == parts.profiles.end()) {
    parts.profiles[key] = profile_activations(parts.model,
                                              batch,
                                              parts.plan.model_dtype,
                                              parts.plan.stash_activations,
                                              parts.world.device);
  }
  const std::size_t index = parts.outstanding.size();
  ActivationMemory& memory = parts.activation_memory(index, parts.profiles[key]);
  Loss loss;
  loss.state_ = parts.take_loss();
  Timeline& timeline = parts.world.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, *parts.compute);
  parts.coordinator.begin_pass(Pass::kForward);
  Execution execution = parts.execution(memory, Phase::kTrain);
  execution.random = parts.next_random();
  parts.model.forward(batch, loss.state_->device_value.view(DType::kF32, Shape{1}), execution);
  parts.coordinator.end_pass();
  accel::end_span(timeline, *parts.compute, start, Activity::kForward, "forward");
  parts.sample_counters();
  parts.deliver_loss(*loss.state_);
  parts.outstanding.push_back({loss.state_, parts.coordinator.uses(), index});
  return loss;
}

void Engine::backward(const Loss& loss) {
  EngineParts& parts = *parts_;
  if (parts.outstanding.empty()) {
    throw InputError("backward without a forward",
                     "Engine::backward",
                     "call loss = engine.forward(batch) before each backward");
  }
  if (parts.outstanding.back().loss != loss.state_) {
    throw InputError("backward of a loss that is not the latest forward's",
                     "Engine::backward",
                     "go back in reverse order of the forwards, once for each");
  }
  // Earlier steps decide the loss scale; their gradients may be looked at until here.
  parts.settle(true);
  const OutstandingForward forward = std::move(parts.outstanding.back());
  parts.outstanding.pop_back();
  const auto seed = static_cast<float>(
      parts.scaler.scale() / static_cast<double>(parts.config.gradient_accumulation_steps));
  parts.reducer.begin_micro_step(forward.uses, parts.at_boundary());
  Timeline& timeline = parts.world.context.timeline;
  const accel::SpanStart start = accel::begin_span(timeline, *parts.compute);
  parts.coordinator.begin_pass(Pass::kBackward);
  Execution execution = parts.execution(*parts.activations[forward.arena], Phase::kTrain);
  parts.model.backward(seed, execution);
  parts.coordinator.end_pass();
  parts.reducer.finish_micro_step();
  accel::end_span(timeline, *parts.compute, start, Activity::kBackward, "backward");
  parts.sample_counters();
  parts.world.device.kernels().sum_exactly(
      forward.loss->device_value.view(DType::kF32, Shape{1}), parts.limb_row(1), *parts.compute);
  forward.loss->idle = parts.compute->record();
  ++parts.window_micro_steps;
  parts.backward_done = true;
}

NoSync::NoSync(EngineParts& parts) : parts_(parts) {
  parts_.local_only = true;
}

NoSync::~NoSync() {
  parts_.local_only = false;
}

NoSync Engine::no_sync() {
  if (parts_->local_only) {
    throw InputError("no_sync inside no_sync", "Engine::no_sync", "end the outer scope first");
  }
  if (!parts_->plan.reduce_at_boundary) {
    throw InputError(
        fmt::format("stage {} keeps a slice of each gradient, so no rank can sum alone",
                    parts_->plan.stage),
        "Engine::no_sync",
        fmt::format("set InitializeOptions::plan.local_accumulation, which takes {} "
                    "bytes more a rank, or use stage 0 or 1",
                    parts_->plan.local_accumulation_bytes()));
  }
  return NoSync(*parts_);
}

Loss Engine::evaluate(const Batch& batch) {
  EngineParts& parts = *parts_;
  parts.model.check_batch(batch);
  Loss loss;
  loss.state_ = parts.take_loss();
  const TensorView value = loss.state_->device_value.view(DType::kF32, Shape{1});
  infer(shape_key(batch),
        [&](Execution& execution) { parts.model.forward(batch, value, execution); });
  parts.deliver_loss(*loss.state_);
  return loss;
}

void Engine::infer(const std::string& shape_key, const std::function<void(Execution&)>& body) {
  EngineParts& parts = *parts_;
  const ActivationProfile& profile = parts.evaluation_profile("eval" + shape_key, body);
  // Forwards that wait for their backward keep their memory.
  ActivationMemory& memory = parts.activation_memory(parts.outstanding.size(), profile);
  parts.coordinator.begin_pass(Pass::kEvaluation);
  Execution execution = parts.execution(memory, Phase::kEval);
  body(execution);
  parts.coordinator.end_pass();
}

double Engine::lr() const {
  return parts_->hyper_now().front().lr;
}

void Engine::set_lr(double lr) {
  for (optim::Hyper& group : parts_->groups) {
    group.lr = lr;
  }
}

double Engine::loss_scale() const {
  return parts_->scaler.scale();
}

double Engine::grad_norm() {
  parts_->settle(true);
  return parts_->latest.grad_norm;
}

bool Engine::was_step_applied() {
  parts_->settle(true);
  return parts_->latest.step > 0 && !parts_->latest.skipped;
}

bool Engine::is_gradient_accumulation_boundary() const {
  return parts_->at_boundary();
}

void Engine::set_gradient_accumulation_boundary(std::optional<bool> boundary) {
  parts_->forced_boundary = boundary;
}

std::int64_t Engine::global_steps() const {
  return parts_->global_steps;
}

std::int64_t Engine::skipped_steps() {
  parts_->settle(true);
  return parts_->skipped_steps;
}

std::int64_t Engine::training_samples() const {
  return parts_->boundary_samples;
}

std::int64_t Engine::micro_steps() const {
  return parts_->micro_steps;
}

std::vector<StepResult> Engine::take_results(bool wait) {
  parts_->settle(wait);
  return std::exchange(parts_->results, {});
}

const config::Config& Engine::config() const {
  return parts_->config;
}
const StatePlan& Engine::plan() const {
  return parts_->plan;
}
comm::Traffic Engine::traffic() const {
  comm::Traffic sum = parts_->world.group.traffic();
  sum += parts_->gather_groups.traffic();
  sum += parts_->reduce_groups.traffic();
  return sum;
}

const GatherStatistics& Engine::gather_statistics() const {
  return parts_->store.statistics();
}

std::vector<RankMemory> Engine::memory_of_all_ranks() {
  EngineParts& parts = *parts_;
  synchronize();
  const Ledger& ledger = parts.world.context.ledger;
  RankMemory mine{ledger.use(MemorySpace::kDevice), ledger.use(MemorySpace::kHost)};
  std::vector<RankMemory> all(static_cast<std::size_t>(parts.world.group.size()));
  const std::int64_t elems = sizeof(RankMemory) / sizeof(std::int64_t);
  const auto send = parts.world.device.allocate(sizeof(RankMemory), Category::kOther);
  const auto recv = parts.world.device.allocate(sizeof(RankMemory) * all.size(), Category::kOther);
  const TensorView host{reinterpret_cast<std::byte*>(&mine), DType::kI64, Shape{elems}};
  const Shape shape{elems * static_cast<std::int64_t>(all.size())};
  parts.world.device.copy(host, send.view(DType::kI64, Shape{elems}), *parts.comm);
  (void)parts.world.group.all_gather(send.view(DType::kI64, Shape{elems}),
                                     recv.view(DType::kI64, shape),
                                     *parts.comm,
                                     comm::Payload::kControl);
  parts.world.device.copy(recv.view(DType::kI64, shape),
                          {reinterpret_cast<std::byte*>(all.data()), DType::kI64, shape},
                          *parts.comm);
  parts.comm->synchronize();
  return all;
}

void Engine::synchronize() {
  parts_->synchronize();
}

std::vector<accel::Stream*> EngineParts::streams() const {
  std::vector<accel::Stream*> all = {compute.get(), comm.get(), reduce.get()};
  if (stash != nullptr) {
    all.push_back(stash.get());
  }
  return all;
}

void EngineParts::synchronize() {
  for (accel::Stream* stream : streams()) {
    stream->synchronize();
  }
}

}  // namespace zero
