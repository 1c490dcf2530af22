#include "engine/runtime/checkpoint_saver.h"
#include "engine/runtime/memory_budget.h"

#include <fmt/format.h>

namespace zero {
namespace {

/// Parameter groups by the caller's rules; what no rule takes is in the last group, with the
/// config's values.
std::vector<optim::Hyper> assign_groups(Trainable& model,
                                        const std::vector<ParameterGroup>& rules,
                                        const config::OptimizerConfig& optimizer) {
  std::vector<optim::Hyper> groups;
  for (const ParameterGroup& rule : rules) {
    groups.push_back(
        {rule.lr.value_or(optimizer.lr), rule.weight_decay.value_or(optimizer.weight_decay)});
  }
  groups.push_back({optimizer.lr, optimizer.weight_decay});
  for (const auto& parameter : parameters_of(model)) {
    std::size_t group = 0;
    while (group < rules.size() && !rules[group].member(parameter->info)) {
      ++group;
    }
    parameter->info.group = static_cast<int>(group);
  }
  return groups;
}

InitialValues values_of(const InitializeOptions& options) {
  if (options.initial_values) {
    return options.initial_values;
  }
  return [seed = options.seed](const ParamInfo& info, std::int64_t begin, std::span<float> values) {
    info.init.fill(info.name, seed, begin, values);
  };
}

}  // namespace

ParameterGroup no_decay_group() {
  return {.member = [](const ParamInfo& info) { return info.shape.rank() <= 1; },
          .lr = {},
          .weight_decay = 0.0};
}

EngineParts::EngineParts(const InitializeOptions& options, config::Config config_, StatePlan plan_)
    : world(options.world),
      model(options.model),
      config(std::move(config_)),
      plan(std::move(plan_)),
      compute(world.device.make_stream("compute")),
      comm(world.device.make_stream("communication")),
      reduce(world.device.make_stream("reduction")),
      gather_groups(plan, world.group),
      reduce_groups(plan, world.group),
      store(plan, parameters_of(model), world, gather_groups, {*compute, *comm}),
      mover(plan, store, world, *compute),
      reducer(plan, store, world, reduce_groups, {*compute, *reduce}),
      coordinator(plan, model, store, reducer, world.context.timeline),
      rule(optim::make_update_rule(config.optimizer)),
      scaler(config.fp16),
      schedule(make_lr_schedule(config.scheduler)),
      seed(options.seed),
      max_skipped_in_a_row(options.max_skipped_in_a_row) {
  limbs =
      world.device.allocate(2 * (accel::kNormLimbs + 1) * sizeof(std::int64_t), Category::kOther);
  scalars = world.device.allocate(sizeof(accel::StepScalars), Category::kOther);
  if (plan.stash_activations) {
    stash = world.device.make_stream("activations");
  }
  if (config.checkpoint_async_save) {
    save = world.device.make_stream("checkpoint");
    save_group = world.group.split(0, world.group.rank());
    save_group->about("save_checkpoint");
  }
  world.device.zero(limb_view(), *compute);
  reducer.sum_squares_into(limb_row(0));
}

EngineParts::~EngineParts() = default;

void EngineParts::bind_module_buffers() {
  for (const auto& buffer : buffers_of(model)) {
    std::vector<float> values(static_cast<std::size_t>(buffer->shape.elems()));
    buffer->init.fill(buffer->name, seed, 0, values);
    module_buffers.push_back(
        world.device.allocate(values.size() * sizeof(float), Category::kOther));
    buffer->value = module_buffers.back().view(DType::kF32, buffer->shape);
    const Shape flat{buffer->shape.elems()};
    world.device.copy(view_of(std::span<const float>(values)), buffer->value.reshape(flat), *comm);
    (void)world.group.broadcast(buffer->value.reshape(flat), 0, *comm, comm::Payload::kControl);
    comm->synchronize();  // the values live until here
  }
}

std::unique_ptr<Engine> initialize(const InitializeOptions& options) {
  World& world = options.world;
  config::LoadOptions load = options.batch;
  load.world = world.group.size();
  config::Config config = config::load(options.config, load);
  std::vector<optim::Hyper> groups = assign_groups(options.model, options.groups, config.optimizer);
  FittingPlan fitting = plan_within_budget(options, config);
  config = std::move(fitting.config);
  StatePlan plan = std::move(fitting.plan);
  if (!fitting.changes.empty() && world.context.rank == 0) {
    ZERO_LOG(world.context.log,
             kWarn,
             "engine",
             "memory budget: {}; the plan needs {} of {} bytes a rank",
             fitting.changes,
             plan.total_bytes(),
             options.memory_budget_bytes);
  }
  if (config.activation_checkpointing.enabled && !plan.recompute && world.context.rank == 0) {
    ZERO_LOG(world.context.log,
             kWarn,
             "engine",
             "activation_checkpointing has no effect: this model keeps its activations");
  }
  world.context.ledger.set_budget(options.memory_budget_bytes);
  if (options.trace || config.wall_clock_breakdown || config.comms_logger) {
    world.context.timeline.enable(options.trace);
  }
  auto parts = std::make_unique<EngineParts>(options, std::move(config), std::move(plan));
  parts->groups = std::move(groups);
  const auto category = static_cast<std::size_t>(Category::kActivations);
  const ActivationProfile activations{.activation_bytes = parts->plan.bytes.at(category),
                                      .stashed_bytes = parts->plan.host_bytes.at(category)};
  parts->profiles["train" + shape_key(options.model.example_batch(
                                parts->config.train_micro_batch_size_per_gpu))] = activations;
  (void)parts->activation_memory(0, activations);
  parts->store.initialize_values(values_of(options));
  parts->bind_module_buffers();
  return std::unique_ptr<Engine>(new Engine(std::move(parts)));
}

}  // namespace zero
