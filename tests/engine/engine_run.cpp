#include "engine/engine_run.h"

#include <support/temporary_folder.h>
#include <zero/engine/launch.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace zero::testing {
namespace {

comm::Traffic difference(const comm::Traffic& after, const comm::Traffic& before) {
  return {after.bytes_in - before.bytes_in,
          after.bytes_out - before.bytes_out,
          after.control_bytes_in - before.control_bytes_in,
          after.control_bytes_out - before.control_bytes_out,
          after.collectives - before.collectives};
}

/// What one rank does.
void train(const RunSpec& spec, const std::string& config, World& world, RunResult& result) {
  nn::Gpt model(spec.model);
  if (spec.prepare) {
    spec.prepare(model);
  }
  const auto engine = initialize({.world = world,
                                  .model = model,
                                  .config = config,
                                  .memory_budget_bytes = spec.memory_budget_bytes,
                                  .plan = spec.plan,
                                  .trace = spec.trace});
  const auto rank = static_cast<std::size_t>(world.group.rank());
  engine->synchronize();
  const comm::Traffic before = engine->traffic();
  const std::int64_t rows = spec.micro_batch;
  for (int step = 0; step < spec.steps; ++step) {
    for (std::int64_t micro = 0; micro < spec.accumulation; ++micro) {
      const std::int64_t sample =
          ((step * spec.accumulation + micro) * spec.ranks + world.group.rank()) * rows;
      const Loss loss =
          engine->forward(make_batch(sample, rows, spec.model.positions, spec.model.vocabulary));
      engine->backward(loss);
      engine->step();
    }
    if (spec.each_step) {
      spec.each_step(*engine, model, step);
    }
  }
  engine->synchronize();
  result.traffic[rank] = difference(engine->traffic(), before);
  const std::vector<RankMemory> memory = engine->memory_of_all_ranks();
  std::map<std::string, std::vector<float>> parameters;
  for (const auto& parameter : parameters_of(model)) {
    parameters[parameter->info.name] = engine->full_fp32_parameter(parameter->info.name);
  }
  if (world.group.rank() == 0) {
    result.steps = engine->take_results(true);
    result.memory = memory;
    result.parameters = std::move(parameters);
    result.plan = engine->plan();
  }
}

}  // namespace

nn::GptConfig RunSpec::tiny_gpt() {
  nn::GptConfig config;
  config.layers = 3;
  config.hidden = 48;
  config.heads = 4;
  config.positions = 16;
  config.vocabulary = 61;
  config.inner = 100;
  return config;
}

std::string write_temporary(const std::string& name, const std::string& text) {
  static const support::TemporaryFolder folder;  // goes when the process ends
  support::write_bytes(folder / name, text);
  return folder / name;
}

std::string ds_config(const RunSpec& spec) {
  const std::string batch =
      fmt::format(R"("train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {})",
                  spec.micro_batch,
                  spec.accumulation);
  return fmt::format(
      R"({{{}{}, "gradient_clipping": 1.0{}{}, "optimizer": {},
 "zero_optimization": {{"stage": {}{}{}}}}})",
      batch,
      spec.precision.empty() ? "" : fmt::format(R"(, "{}": {{"enabled": true}})", spec.precision),
      spec.top_keys.empty() ? "" : ", ",
      spec.top_keys,
      spec.optimizer,
      spec.stage,
      spec.zero_keys.empty() ? "" : ", ",
      spec.zero_keys);
}

RunResult run_on(World& world, const RunSpec& spec) {
  // Every rank may be a process of its own, each with its own folder.
  const std::string config =
      write_temporary(fmt::format("run-{}.json", world.group.rank()), ds_config(spec));
  RunResult result;
  result.traffic.resize(static_cast<std::size_t>(world.group.size()));
  train(spec, config, world, result);
  return result;
}

RunResult run(const RunSpec& spec) {
  static int counter = 0;
  const std::string config = write_temporary(fmt::format("run{}.json", counter++), ds_config(spec));
  RunResult result;
  result.traffic.resize(static_cast<std::size_t>(spec.ranks));
  (void)launch({.ranks = spec.ranks,
                .comm = "local",
                .device = "cpu",
                .threads = 1,
                .network = spec.network},
               [&](World& world) {
                 train(spec, config, world, result);
                 return 0;
               });
  return result;
}

Batch make_batch(std::int64_t first_sample,
                 std::int64_t rows,
                 std::int64_t tokens,
                 std::int64_t vocabulary) {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  const auto token = [&](std::int64_t at) {
    return static_cast<std::int32_t>((at * at / 3 + at * 7 + (at >> 4)) % vocabulary);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t at = (first_sample + row) * tokens + t;
      inputs.push_back(token(at));
      targets.push_back(token(at + 1));
    }
  }
  const Shape shape{rows, tokens};
  return {HostTensor::copy_of(std::span<const std::int32_t>(inputs), shape),
          HostTensor::copy_of(std::span<const std::int32_t>(targets), shape)};
}

bool same_bits(const RunResult& a, const RunResult& b) {
  const auto same_step = [](const StepResult& x, const StepResult& y) {
    return std::memcmp(&x.loss, &y.loss, sizeof(double)) == 0 &&
           std::memcmp(&x.grad_norm, &y.grad_norm, sizeof(double)) == 0 && x.skipped == y.skipped;
  };
  const auto same_values = [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.size() == y.second.size() &&
           std::memcmp(x.second.data(), y.second.data(), x.second.size() * sizeof(float)) == 0;
  };
  return a.steps.size() == b.steps.size() &&
         std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), same_step) &&
         a.parameters.size() == b.parameters.size() &&
         std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(), same_values);
}

}  // namespace zero::testing
