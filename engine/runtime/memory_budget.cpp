#include "engine/runtime/memory_budget.h"

#include <zero/core/error.h>

#include <fmt/format.h>

namespace zero {
namespace {

struct Change {
  int stage;
  bool lean;  ///< nothing is gathered or reduced ahead
  bool recompute;
};

config::Config with(config::Config config, const Change& change) {
  config::ZeroOptimization& zero = config.zero_optimization;
  zero.stage = change.stage;
  if (change.lean) {
    zero.stage3_prefetch_bucket_size = 0;
    zero.stage3_max_reuse_distance = 0;
    zero.reduce_bucket_size = 1;  // a unit at a time
  }
  config.activation_checkpointing.enabled = change.recompute;
  return config;
}

/// Simplest first.
std::vector<Change> changes_of(const config::Config& config) {
  const bool recomputes = config.activation_checkpointing.enabled;
  std::vector<Change> all;
  for (const bool recompute : {recomputes, true}) {
    for (int stage = config.zero_optimization.stage; stage <= 3; ++stage) {
      all.push_back({stage, false, recompute});
    }
    all.push_back({3, true, recompute});
    if (recomputes) {
      break;
    }
  }
  return all;
}

std::string described(const config::Config& file, const Change& change) {
  std::string text;
  if (change.stage != file.zero_optimization.stage) {
    text += fmt::format("stage {}", change.stage);
  }
  if (change.lean) {
    text += fmt::format("{}one unit at a time", text.empty() ? "" : ", ");
  }
  if (change.recompute != file.activation_checkpointing.enabled) {
    text += fmt::format("{}activations recomputed", text.empty() ? "" : ", ");
  }
  return text;
}

}  // namespace

FittingPlan plan_within_budget(const InitializeOptions& options, const config::Config& config) {
  World& world = options.world;
  std::int64_t smallest = INT64_MAX;
  for (const Change& change : changes_of(config)) {
    FittingPlan fitting{with(config, change), {}, described(config, change)};
    fitting.plan = plan_training(
        options.model, fitting.config, world.group.size(), world.device, options.plan);
    const std::int64_t bytes = fitting.plan.total_bytes() + kBudgetReserveBytes;
    if (options.memory_budget_bytes == 0 || bytes <= options.memory_budget_bytes) {
      return fitting;
    }
    smallest = std::min(smallest, bytes);
  }
  throw ResourceError(
      fmt::format(
          "the smallest plan needs {} bytes a rank with a reserve, {} more than the memory budget",
          smallest,
          smallest - options.memory_budget_bytes),
      fmt::format("stages {} to 3, {} ranks", config.zero_optimization.stage, world.group.size()),
      "raise the budget, use more ranks or a smaller micro-batch");
}

}  // namespace zero
