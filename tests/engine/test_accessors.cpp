#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/engine/launch.h>

#include <algorithm>
#include <array>
#include <functional>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

constexpr const char* kWeight = "h.1.mlp.c_fc.weight";
constexpr const char* kBias = "h.0.ln_1.bias";

/// Trains two steps, and in between changes every kind of state of two parameters by hand.
RunResult run_with_changes(int stage, int ranks, const std::string& precision) {
  RunSpec spec;
  spec.stage = stage;
  spec.ranks = ranks;
  spec.precision = precision;
  spec.steps = 3;
  spec.zero_keys = R"("stage3_param_persistence_threshold": 60)";
  spec.each_step = [](Engine& engine, nn::Gpt& /*model*/, int step) {
    if (step != 0) {
      return;
    }
    for (const char* name : {kWeight, kBias}) {
      std::vector<float> values = engine.full_fp32_parameter(name);
      std::ranges::transform(values, values.begin(), [](float v) { return 0.5F * v + 0.01F; });
      engine.set_full_fp32_parameter(name, values);
      ZERO_CHECK(engine.full_fp32_parameter(name) == values, "the parameter was not set");
      for (const std::string& state : engine.optimizer_states()) {
        std::vector<float> moment = engine.full_optimizer_state(name, state);
        std::ranges::transform(moment, moment.begin(), [](float v) { return 2.0F * v + 1e-6F; });
        engine.set_full_optimizer_state(name, state, moment);
        ZERO_CHECK(engine.full_optimizer_state(name, state) == moment, "the state was not set");
      }
    }
  };
  return run(spec);
}

const std::string kPlainSgd = R"("zero_allow_untested_optimizer": true, "gradient_clipping": 0,
    "optimizer": {"type": "SGD", "params": {"lr": 1.0}})";

/// One step on two ranks: `before` runs on both between backward and step, `after` after it.
StepResult one_step(int stage,
                    const std::string& keys,
                    const std::function<void(Engine&, std::size_t rank)>& before,
                    const std::function<void(Engine&, std::size_t rank)>& after) {
  const std::string config =
      write_temporary("one_step.json",
                      R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": )" +
                          std::to_string(stage) + "}, " + keys + "}");
  StepResult result;
  (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
    nn::Gpt model(RunSpec::tiny_gpt());
    const auto engine = initialize({.world = world, .model = model, .config = config});
    engine->backward(engine->forward(make_batch(2 * world.group.rank(), 2, 16, 61)));
    const auto rank = static_cast<std::size_t>(world.group.rank());
    before(*engine, rank);
    engine->step();
    after(*engine, rank);
    const StepResult mine = engine->take_results(true).front();
    if (rank == 0) {
      result = mine;
    }
    return 0;
  });
  return result;
}

}  // namespace

TEST_CASE("accessors: state changed by hand gives the same training in every stage",
          "[engine][accessors]") {
  for (const char* precision : {"", "bf16"}) {
    for (const int ranks : {1, 3}) {
      const RunResult expected = run_with_changes(0, ranks, precision);
      for (const int stage : {1, 2, 3}) {
        INFO("stage " << stage << ", " << ranks << " ranks " << precision);
        CHECK(same_bits(expected, run_with_changes(stage, ranks, precision)));
      }
    }
  }
}

TEST_CASE("accessors: the gradient is what the update uses, in every stage",
          "[engine][accessors]") {
  using ByRank = std::array<std::vector<float>, 2>;
  ByRank first;
  for (const int stage : {0, 1, 2, 3}) {
    ByRank gradient;
    ByRank expected;
    ByRank after;
    const auto read = [&](Engine& engine, std::size_t rank) {
      expected.at(rank) = engine.full_fp32_parameter(kWeight);
      gradient.at(rank) = engine.full_gradient(kWeight);
      std::ranges::transform(
          expected.at(rank), gradient.at(rank), expected.at(rank).begin(), std::minus<>());
    };
    (void)one_step(stage, kPlainSgd, read, [&](Engine& engine, std::size_t rank) {
      after.at(rank) = engine.full_fp32_parameter(kWeight);
    });
    CHECK(after == expected);
    first = stage == 0 ? gradient : first;
    CHECK(gradient == first);
  }
}

TEST_CASE("accessors: a gradient set by hand counts in norm and update, at any loss scale",
          "[engine][accessors]") {
  const auto set = [](Engine& engine, std::size_t /*rank*/) {
    for (const ParamInfo& info : engine.plan().params) {
      std::vector<float> values(static_cast<std::size_t>(info.shape.elems()), 0.0F);
      if (info.name == kWeight) {
        values[3] = 3.0F;
        values[70] = -4.0F;
      }
      engine.set_full_gradient(info.name, values);
    }
    ZERO_CHECK(engine.full_gradient(kWeight)[70] == -4.0F, "the gradient was not set");
  };
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::string& keys :
         {kPlainSgd, kPlainSgd + R"(, "fp16": {"enabled": true, "initial_scale_power": 10})"}) {
      INFO("stage " << stage << ", " << keys);
      const StepResult result = one_step(stage, keys, set, [](Engine& /*engine*/, std::size_t) {});
      CHECK(result.grad_norm == 5.0);
      CHECK_FALSE(result.skipped);
    }
  }
}

TEST_CASE("accessors: gather hands out whole parameters and takes those of the modifier",
          "[engine][accessors]") {
  for (const int stage : {1, 3}) {
    RunSpec spec;
    spec.stage = stage;
    spec.precision = "bf16";
    spec.steps = 1;
    spec.each_step = [](Engine& engine, nn::Gpt& /*model*/, int /*step*/) {
      const std::vector<std::string> names = {kBias, kWeight};
      const auto doubled = [](float v) { return 2.0F * v + 1.0F; };
      const std::vector<float> before = engine.full_fp32_parameter(kWeight);
      std::vector<float> expected = before;
      std::ranges::transform(expected, expected.begin(), doubled);
      const auto change = [&](std::vector<WholeParameter>& whole) {
        ZERO_CHECK(whole.at(1).name == kWeight && whole[1].values == before, "other values");
        std::ranges::transform(whole[1].values, whole[1].values.begin(), doubled);
      };
      engine.gather(names, change);
      ZERO_CHECK(engine.full_fp32_parameter(kWeight) == before, "changed without a modifier");
      engine.gather(names, change, 1);
      ZERO_CHECK(engine.full_fp32_parameter(kWeight) == expected, "the modifier was not heard");
      (void)engine.evaluate(make_batch(0, 1, 16, 61)).value();
    };
    CHECK(run(spec).steps.size() == 1);
  }
}

TEST_CASE("accessors: names, sizes and times that make no sense are refused",
          "[engine][accessors][errors]") {
  RunSpec spec;
  spec.ranks = 1;
  spec.stage = 2;
  spec.steps = 1;
  spec.prepare = [](nn::Gpt& model) {
    for (const auto& parameter : parameters_of(model)) {
      parameter->info.trainable = parameter->info.name != kBias;
    }
  };
  spec.each_step = [](Engine& engine, nn::Gpt& /*model*/, int /*step*/) {
    const std::vector<float> three(3);
    CHECK_THROWS_AS(engine.full_fp32_parameter("nobody"), InputError);
    CHECK_THROWS_AS(engine.set_full_fp32_parameter(kWeight, three), InputError);
    CHECK_THROWS_AS(engine.full_gradient(kWeight), InputError);  // the step has consumed it
    CHECK_THROWS_AS(engine.full_optimizer_state(kWeight, "sum"), InputError);
    CHECK_THROWS_AS(engine.full_optimizer_state(kBias, "exp_avg"), InputError);
    CHECK_THROWS_AS(engine.gather(
                        std::vector<std::string>{kBias}, [](auto&) {}, 7),
                    InputError);
    CHECK(engine.full_fp32_parameter(kBias).size() == 48);
    CHECK(engine.full_optimizer_state(kWeight, "exp_avg_sq").size() == 4800);
  };
  // One rank runs on this thread's behalf: its assertions are those of the test.
  CHECK(run(spec).steps.size() == 1);
}
