#pragma once

#include <zero/config/config.h>

#include <CLI/CLI.hpp>

namespace zero::cli {

/// Options that supply or override the batch: --world, --micro-batch, --accumulation,
/// --train-batch.
inline void add_batch_options(CLI::App& command, config::LoadOptions& options) {
  command.add_option("--world", options.world, "Data-parallel ranks")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_option("--micro-batch",
                     options.train_micro_batch_size_per_gpu,
                     "Use this train_micro_batch_size_per_gpu");
  command.add_option("--accumulation",
                     options.gradient_accumulation_steps,
                     "Use these gradient_accumulation_steps");
  command.add_option("--train-batch", options.train_batch_size, "Use this train_batch_size");
}

}  // namespace zero::cli
