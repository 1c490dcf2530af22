// A rank that fails, and numbers that are not finite.
#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/core/error.h>
#include <zero/engine/launch.h>

#include <cmath>
#include <limits>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

}  // namespace

TEST_CASE("faults: one rank's error ends all ranks and is the one reported", "[engine][errors]") {
  const std::string config = write_temporary("fault.json", ds_config(RunSpec{}));
  const auto run_with_fault = [&] {
    return launch({.ranks = 3, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      nn::Gpt model(RunSpec::tiny_gpt());
      const auto engine = initialize({.world = world, .model = model, .config = config});
      for (int step = 0; step < 3; ++step) {
        if (step == 1 && world.group.rank() == 2) {
          throw InputError("rank 2 has no data", "loader", "give it some");
        }
        engine->backward(engine->forward(make_batch(step, 2, 16, 61)));
        engine->step();
        (void)engine->take_results(true);
      }
      return 0;
    });
  };
  CHECK_THROWS_WITH(run_with_fault(), Catch::Contains("rank 2 has no data"));
}

TEST_CASE("faults: a token outside the vocabulary is refused before anything runs",
          "[engine][errors]") {
  const std::string config = write_temporary("token.json", ds_config(RunSpec{}));
  const auto run_with_token = [&] {
    return launch({.ranks = 1, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      nn::Gpt model(RunSpec::tiny_gpt());
      const auto engine = initialize({.world = world, .model = model, .config = config});
      (void)engine->forward(make_batch(0, 2, 16, 200));
      return 0;
    });
  };
  CHECK_THROWS_AS(run_with_token(), InputError);
}

TEST_CASE("faults: a step that is not finite is skipped on all ranks and changes nothing",
          "[engine][errors]") {
  for (const int stage : {0, 1, 2, 3}) {
    const std::string config = write_temporary("finite.json", ds_config({.stage = stage}));
    (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      nn::Gpt model(RunSpec::tiny_gpt());
      const float poison = std::numeric_limits<float>::infinity();
      const auto engine =
          initialize({.world = world,
                      .model = model,
                      .config = config,
                      .initial_values =
                          [&](const ParamInfo& info, std::int64_t begin, std::span<float> values) {
                            info.init.fill(info.name, 7, begin, values);
                            if (info.name == "ln_f.bias" && begin == 0) {
                              values[0] = poison;
                            }
                          }});
      const auto before = engine->full_fp32_parameter("h.1.mlp.c_fc.weight");
      engine->backward(engine->forward(make_batch(world.group.rank(), 2, 16, 61)));
      engine->step();
      ZERO_CHECK(!engine->was_step_applied(), "the step was applied");
      ZERO_CHECK(engine->skipped_steps() == 1, "the skipped step is not counted");
      ZERO_CHECK(engine->full_fp32_parameter("h.1.mlp.c_fc.weight") == before, "a weight changed");
      return 0;
    });
  }
}

TEST_CASE("memory budget: chooses what stays below it, with the same bits", "[engine][memory]") {
  RunSpec spec;
  spec.ranks = 4;
  spec.micro_batch = 4;
  spec.stage = 0;
  spec.model.hidden = 128;
  spec.model.inner = 512;
  spec.model.layers = 6;
  const RunResult plain = run(spec);
  std::int64_t before = plain.plan.total_bytes();
  for (const int percent : {90, 75, 62, 54}) {
    spec.memory_budget_bytes = plain.plan.total_bytes() * percent / 100 + kBudgetReserveBytes;
    const RunResult result = run(spec);
    INFO(percent << " %: stage " << result.plan.stage << ", recompute " << result.plan.recompute);
    CHECK(result.plan.total_bytes() + kBudgetReserveBytes <= spec.memory_budget_bytes);
    CHECK(result.plan.total_bytes() <= before);
    for (const RankMemory& memory : result.memory) {
      CHECK(memory.device.total_peak_bytes + memory.host.total_peak_bytes <=
            spec.memory_budget_bytes);
    }
    CHECK(same_bits(plain, result));
    before = result.plan.total_bytes();
  }
  CHECK(before < plain.plan.total_bytes() * 54 / 100);
}

TEST_CASE("faults: a plan beyond the memory budget is refused before training",
          "[engine][errors]") {
  const std::string config = write_temporary("budget.json", ds_config(RunSpec{}));
  const auto run_with_budget = [&](std::int64_t bytes) {
    return launch({.ranks = 1, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      nn::Gpt model(RunSpec::tiny_gpt());
      const auto engine = initialize(
          {.world = world, .model = model, .config = config, .memory_budget_bytes = bytes});
      engine->backward(engine->forward(make_batch(0, 2, 16, 61)));
      engine->step();
      return 0;
    });
  };
  CHECK_THROWS_AS(run_with_budget(100'000), ResourceError);
  CHECK(run_with_budget(200'000'000) == 0);
}
