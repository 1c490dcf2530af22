#pragma once

#include "examples/options.h"
#include <zero/core/module.h>
#include <zero/engine/plan.h>
#include <zero/nn/gpt_config.h>

#include <optional>
#include <string>

namespace zero::examples {

/// The plan for `ranks` ranks, made by arithmetic alone; with `stage` in place of the config's own.
[[nodiscard]] StatePlan plan_of(const Options& options,
                                Trainable& model,
                                int ranks,
                                std::optional<int> stage);

/// --plan: writes the plan for --ranks ranks as JSON. Builds no engine.
void write_plan(const Options& options, const nn::GptConfig& model);

/// Finds what is wrong with the command line's files before any rank starts, so that it is said
/// once. Throws what the ranks would throw.
void check_before_start(const Options& options, const nn::GptConfig& model);

}  // namespace zero::examples
