#pragma once

#include <zero/engine/engine.h>

namespace zero {

/// A configuration and its plan.
struct FittingPlan {
  config::Config config;
  StatePlan plan;
  std::string changes;  ///< what differs from the file, for people; empty: nothing
};

/// The configuration as it stands if its plan is within the budget (0: any is), else the first of
/// these that is: higher stages, stage 3 with one unit at a time, then the same with activations
/// recomputed. None of them changes a result. Offload is left as the file has it: the budget is of
/// device and host together. ResourceError if none fits, with the bytes of the smallest.
[[nodiscard]] FittingPlan plan_within_budget(const InitializeOptions& options,
                                             const config::Config& config);

}  // namespace zero
