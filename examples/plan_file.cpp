#include "examples/plan_file.h"

#include "examples/data.h"
#include <zero/accel/device.h>
#include <zero/comm/group.h>
#include <zero/core/error.h>
#include <zero/core/file.h>
#include <zero/nn/gpt.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace zero::examples {
namespace {

namespace fs = std::filesystem;

}  // namespace

StatePlan plan_of(const Options& options, Trainable& model, int ranks, std::optional<int> stage) {
  config::LoadOptions load = options.batch;
  load.world = ranks;
  config::Config config = config::load(options.config, load);
  config.zero_optimization.stage = stage.value_or(config.zero_optimization.stage);
  RankContext context(0, ranks, Env::from_process());
  const auto device = accel::make_cpu_device(context, 1);
  return plan_training(model, config, ranks, *device);
}

void write_plan(const Options& options, const nn::GptConfig& model_config) {
  check_output_path(options.plan, "--plan");
  nn::Gpt model(model_config);
  write_file(options.plan, to_json(plan_of(options, model, std::max(1, options.ranks), {})));
}

void check_before_start(const Options& options, const nn::GptConfig& model) {
  if (!comm::under_mpirun()) {  // where the number of ranks is known
    config::LoadOptions load = options.batch;
    load.world = std::max(1, options.ranks);
    (void)config::load(options.config, load);
  }
  for (const std::string& path : {options.data, options.eval_data}) {
    if (!path.empty()) {
      (void)Corpus({.path = path,
                    .type = parse_token_type(options.tokens),
                    .sequence = model.positions,
                    .vocabulary = model.vocabulary});
    }
  }
  if (!options.init.empty() && !fs::exists(options.init)) {
    throw InputError("no such file", "--init " + options.init, "check the path");
  }
  if (!options.export_path.empty()) {
    check_output_path(options.export_path, "--export");
  }
}

}  // namespace zero::examples
