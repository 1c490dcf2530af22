#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/core/error.h>
#include <zero/core/module_events.h>
#include <zero/engine/launch.h>
#include <zero/nn/mlp_classifier.h>

#include <cmath>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

std::int64_t current(const MemoryUse& use, Category category) {
  return use.current_bytes.at(static_cast<std::size_t>(category));
}

std::int64_t planned(const StatePlan& plan, Category category) {
  return plan.bytes.at(static_cast<std::size_t>(category));
}

}  // namespace

TEST_CASE("engine: every rank holds exactly the planned bytes of each state", "[engine][memory]") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {1, 2, 3}) {
      RunSpec spec;
      spec.ranks = ranks;
      spec.stage = stage;
      spec.steps = 2;
      spec.zero_keys = R"("stage3_param_persistence_threshold": 50)";
      const RunResult result = run(spec);
      for (const RankMemory& memory : result.memory) {
        for (const Category category : {Category::kParameters,
                                        Category::kGradients,
                                        Category::kMaster,
                                        Category::kMoments,
                                        Category::kGathered,
                                        Category::kBuckets}) {
          INFO("stage " << stage << ", " << ranks << " ranks, " << category_name(category));
          CHECK(current(memory.device, category) == planned(result.plan, category));
          CHECK(memory.device.peak_bytes.at(static_cast<std::size_t>(category)) ==
                planned(result.plan, category));
        }
      }
    }
  }
}

TEST_CASE("engine: traffic of a step is that of the ZeRO table", "[engine][traffic]") {
  // Per rank and direction, in elements: stages 0-2 2Ψ(N−1)/N, stage 3 3Ψ(N−1)/N.
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {2, 3, 4}) {
      RunSpec spec;
      spec.ranks = ranks;
      spec.stage = stage;
      spec.steps = 3;
      spec.zero_keys = R"("stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0)";
      const RunResult result = run(spec);
      const double volume = (stage == 3 ? 3.0 : 2.0) * 4.0 *
                            static_cast<double>(result.plan.padded_elems()) * (ranks - 1) / ranks *
                            spec.steps;
      for (const comm::Traffic& traffic : result.traffic) {
        INFO("stage " << stage << ", " << ranks << " ranks");
        CHECK(static_cast<double>(traffic.bytes_in) == Approx(volume).epsilon(0.01));
        CHECK(static_cast<double>(traffic.bytes_out) == Approx(volume).epsilon(0.01));
      }
    }
  }
}

TEST_CASE("engine: accumulation of A micro-batches equals one batch of A times the size",
          "[engine]") {
  for (const int stage : {0, 1, 2, 3}) {
    RunSpec at_once;
    at_once.stage = stage;
    at_once.micro_batch = 4;
    RunSpec in_parts = at_once;
    in_parts.micro_batch = 1;
    in_parts.accumulation = 4;
    const RunResult a = run(at_once);
    const RunResult b = run(in_parts);
    REQUIRE(a.steps.size() == b.steps.size());
    for (std::size_t step = 0; step < a.steps.size(); ++step) {
      CHECK(b.steps[step].loss == Approx(a.steps[step].loss).epsilon(1e-4));
      CHECK(b.steps[step].grad_norm == Approx(a.steps[step].grad_norm).epsilon(1e-3));
    }
  }
}

TEST_CASE("engine: frozen parameters keep their values in every stage and cost no state",
          "[engine]") {
  for (const int stage : {0, 1, 2, 3}) {
    RunSpec spec;
    spec.stage = stage;
    spec.prepare = [](nn::Gpt& model) {
      for (const auto& parameter : parameters_of(model)) {
        parameter->info.trainable = parameter->info.name.rfind("h.1.", 0) != 0;
      }
    };
    const RunResult trained = run(spec);
    spec.steps = 0;
    const RunResult initial = run(spec);
    std::int64_t trainable = 0;
    for (const auto& [name, values] : trained.parameters) {
      const bool frozen = name.rfind("h.1.", 0) == 0;
      CHECK((values == initial.parameters.at(name)) == frozen);
      trainable += frozen ? 0 : static_cast<std::int64_t>(values.size());
    }
    CHECK(planned(trained.plan, Category::kMoments) < 8 * (trainable + 64 * 40));
  }
}

TEST_CASE("engine: evaluation between micro-steps changes nothing in training", "[engine]") {
  for (const int stage : {0, 2, 3}) {
    RunSpec spec;
    spec.stage = stage;
    const RunResult plain = run(spec);
    spec.each_step = [&](Engine& engine, nn::Gpt& /*model*/, int step) {
      const Batch batch = make_batch(1000 + step, 3, 11, 61);
      const float before = engine.evaluate(batch).value();
      ZERO_CHECK(std::isfinite(before), "evaluation gave no number");
      ZERO_CHECK(engine.evaluate(batch).value() == before, "evaluation does not repeat");
    };
    CHECK(same_bits(plain, run(spec)));
  }
}

TEST_CASE("engine: several forwards go back last-in first-out with the sums of separate ones",
          "[engine]") {
  // Two micro-steps in one window, their forwards first: the same gradients as one after the other.
  const std::string config = write_temporary("lifo.json", ds_config({.accumulation = 2}));
  const auto train = [&](bool interleaved) {
    std::vector<float> result;
    (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      nn::Gpt model(RunSpec::tiny_gpt());
      const auto engine = initialize({.world = world, .model = model, .config = config});
      const Batch first = make_batch(world.group.rank(), 2, 16, 61);
      const Batch second = make_batch(50 + world.group.rank(), 2, 9, 61);
      if (interleaved) {
        const Loss a = engine->forward(first);
        const Loss b = engine->forward(second);
        engine->backward(b);
        engine->step();
        engine->backward(a);
        engine->step();
      } else {
        for (const Batch& batch : {second, first}) {
          engine->backward(engine->forward(batch));
          engine->step();
        }
      }
      const auto values = engine->full_fp32_parameter("h.0.attn.c_attn.weight");
      if (world.group.rank() == 0) {
        result = values;
      }
      return 0;
    });
    return result;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("engine: calls out of order are refused and leave the engine usable",
          "[engine][errors]") {
  const std::string config = write_temporary("order.json", ds_config(RunSpec{}));
  (void)launch({.ranks = 1, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
    nn::Gpt model(RunSpec::tiny_gpt());
    const auto engine = initialize({.world = world, .model = model, .config = config});
    CHECK_THROWS_AS(engine->step(), InputError);
    CHECK_THROWS_AS(engine->backward(Loss{}), InputError);
    const Batch batch = make_batch(0, 2, 16, 61);
    const Loss first = engine->forward(batch);
    const Loss second = engine->forward(batch);
    CHECK_THROWS_AS(engine->backward(first), InputError);  // not the latest
    engine->backward(second);
    CHECK_THROWS_AS(engine->backward(second), InputError);  // twice
    CHECK_THROWS_AS(engine->forward(batch), InputError);    // the window is reduced: step first
    CHECK(first.value() == second.value());
    return 0;
  });
}

TEST_CASE("engine: lr and loss scale are those of the next update, before the first step too",
          "[engine]") {
  const std::string config = write_temporary(
      "accessors.json",
      R"({"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true, "initial_scale_power": 8},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.5}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.001, "warmup_max_lr": 0.101,
                        "warmup_num_steps": 10, "warmup_type": "linear"}}})");
  const LaunchOptions one{.ranks = 1, .comm = "local", .device = "cpu", .threads = 1};
  (void)launch(one, [&](World& world) {
    nn::Gpt model(RunSpec::tiny_gpt());
    const auto engine = initialize({.world = world, .model = model, .config = config});
    CHECK(engine->loss_scale() == 256.0);
    for (const double expected : {0.001, 0.001, 0.011, 0.021}) {
      CHECK(engine->lr() == Approx(expected));
      engine->backward(engine->forward(make_batch(0, 1, 16, 61)));
      engine->step();
      CHECK(engine->was_step_applied());
      CHECK(engine->take_results(true).front().lr == Approx(expected));
    }
    return 0;
  });
}

TEST_CASE("engine: a model without trainable parameters runs and stays as it is", "[engine]") {
  for (const int stage : {0, 1, 2, 3}) {
    RunSpec spec;
    spec.stage = stage;
    spec.steps = 2;
    spec.accumulation = 2;
    spec.prepare = [](nn::Gpt& model) {
      for (const auto& parameter : parameters_of(model)) {
        parameter->info.trainable = false;
      }
    };
    const RunResult trained = run(spec);
    REQUIRE(trained.steps.size() == 2);
    CHECK(trained.steps.front().grad_norm == 0.0);
    spec.steps = 0;
    CHECK(trained.parameters == run(spec).parameters);
  }
}

TEST_CASE("engine: a parameter group has its own learning rate", "[engine]") {
  RunSpec spec;
  const std::string config = write_temporary("groups.json",
                                             R"({"train_micro_batch_size_per_gpu": 1,
          "optimizer": {"type": "SGD", "params": {"lr": 0.5, "weight_decay": 0.5}}})");
  (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
    nn::Gpt model(RunSpec::tiny_gpt());
    const auto engine = initialize(
        {.world = world,
         .model = model,
         .config = config,
         .groups = {{.member = [](const ParamInfo& info) { return info.shape.rank() <= 1; },
                     .lr = 0.0,
                     .weight_decay = {}}}});
    const auto bias = engine->full_fp32_parameter("h.0.ln_1.weight");
    const auto weight = engine->full_fp32_parameter("h.0.attn.c_attn.weight");
    engine->backward(engine->forward(make_batch(0, 1, 16, 61)));
    engine->step();
    ZERO_CHECK(engine->full_fp32_parameter("h.0.ln_1.weight") == bias,
               "a rate of 0 moved a weight");
    ZERO_CHECK(engine->full_fp32_parameter("h.0.attn.c_attn.weight") != weight, "no update");
    return 0;
  });
}

TEST_CASE("engine: a classifier of the user's own learns what it is shown", "[engine]") {
  const std::string config =
      write_temporary("mlp.json",
                      R"({"train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": 3},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.02}}})");
  (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
    nn::MlpClassifier model({4, 32, 3});
    const auto engine = initialize({.world = world, .model = model, .config = config});
    float first = 0;
    float last = 0;
    for (int step = 0; step < 60; ++step) {
      std::vector<float> inputs;
      std::vector<std::int32_t> targets;
      for (int row = 0; row < 32; ++row) {
        const int label = (row * 7 + step) % 3;
        for (int feature = 0; feature < 4; ++feature) {
          inputs.push_back((feature == label ? 1.0F : 0.0F) +
                           0.1F * static_cast<float>((row + feature + step) % 5));
        }
        targets.push_back(label);
      }
      const Loss loss =
          engine->forward({HostTensor::copy_of(std::span<const float>(inputs), Shape{32, 4}),
                           HostTensor::copy_of(std::span<const std::int32_t>(targets), Shape{32})});
      engine->backward(loss);
      engine->step();
      (step == 0 ? first : last) = loss.value();
    }
    ZERO_CHECK(last < 0.1F * first, "the loss did not fall to a tenth");
    return 0;
  });
}
