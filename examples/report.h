#pragma once

#include <zero/engine/engine.h>

#include <string>
#include <vector>

namespace zero::examples {

/// A table of bytes by category: what each rank took at most, beside the plan and beside what
/// stage 0 would need for the same configuration.
[[nodiscard]] std::string memory_table(const StatePlan& plan,
                                       const StatePlan& stage0,
                                       const std::vector<RankMemory>& ranks);

}  // namespace zero::examples
