// Dtypes on the way of a gradient, and what around the update depends on them.
#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/engine/launch.h>
#include <zero/nn/mlp_classifier.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

/// Eight points of a learnable rule.
Batch points(int number) {
  std::vector<float> inputs;
  std::vector<std::int32_t> targets;
  for (int row = 0; row < 8; ++row) {
    for (int feature = 0; feature < 4; ++feature) {
      inputs.push_back(std::sin(static_cast<float>(number * 37 + row * 11 + feature * 5)));
    }
    targets.push_back(inputs[static_cast<std::size_t>(row) * 4] > 0 ? 1 : row % 2 * 2);
  }
  return {HostTensor::copy_of(std::span<const float>(inputs), Shape{8, 4}),
          HostTensor::copy_of(std::span<const std::int32_t>(targets), Shape{8})};
}

/// Trains an MLP; rank r takes points(first + r) at the first step, and so on.
struct MlpRun {
  int ranks = 1;
  int stage = 0;
  int steps = 1;
  int first = 0;
  int accumulation = 1;
  std::string keys{};
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.001}})";

  struct Result {
    std::vector<StepResult> steps;
    std::vector<float> gradient;   ///< of the first layer, before the first step
    std::vector<float> parameter;  ///< of the first layer, at the end
  };
  [[nodiscard]] Result run() const {
    const std::string config = write_temporary("mlp_run.json",
                                               fmt::format(R"({{"train_micro_batch_size_per_gpu": 8,
                         "gradient_accumulation_steps": {}, "optimizer": {},
                         "zero_optimization": {{"stage": {}}}{}{}}})",
                                                           accumulation,
                                                           optimizer,
                                                           stage,
                                                           keys.empty() ? "" : ", ",
                                                           keys));
    Result result;
    (void)launch({.ranks = ranks, .comm = "local", .device = "cpu", .threads = 1},
                 [&](World& world) {
                   Result mine = train(world, config);
                   if (world.group.rank() == 0) {
                     result = std::move(mine);
                   }
                   return 0;
                 });
    return result;
  }

 private:
  [[nodiscard]] Result train(World& world, const std::string& config) const {
    constexpr const char* kWeight = "layers.0.weight";
    Result result;
    nn::MlpClassifier model({4, 32, 3});
    const auto engine = initialize({.world = world, .model = model, .config = config});
    int batch = first + world.group.rank();
    for (int micro = 0; micro < steps * accumulation; ++micro, batch += ranks) {
      engine->backward(engine->forward(points(batch)));
      if (micro + 1 == accumulation) {
        result.gradient = engine->full_gradient(kWeight);
      }
      engine->step();
    }
    result.parameter = engine->full_fp32_parameter(kWeight);
    result.steps = engine->take_results(true);
    return result;
  }
};

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return worst;
}

}  // namespace

TEST_CASE("communication dtype: ranks exchange rounded gradients and round their mean once",
          "[engine][precision]") {
  const std::vector<float> first = MlpRun{.first = 0}.run().gradient;
  const std::vector<float> second = MlpRun{.first = 1}.run().gradient;
  std::vector<float> expected(first.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    const float sum = to_float(to_bfloat16(first[i])) + to_float(to_bfloat16(second[i]));
    expected[i] = to_float(to_bfloat16(sum * 0.5F));
  }
  for (const int stage : {0, 1, 2, 3}) {
    const MlpRun exchanged{
        .ranks = 2, .stage = stage, .keys = R"("communication_data_type": "bf16")"};
    INFO("stage " << stage);
    CHECK(exchanged.run().gradient == expected);
  }
}

TEST_CASE("prescale and predivide: powers of two give the bits of the mean, others its value",
          "[engine][precision]") {
  for (const int stage : {0, 1}) {  // DeepSpeed refuses them in the others
    const auto gradient = [&](const std::string& keys) {
      return MlpRun{.ranks = 2, .stage = stage, .keys = keys}.run().gradient;
    };
    const std::vector<float> mean = gradient("");
    INFO("stage " << stage);
    CHECK(gradient(R"("prescale_gradients": true)") == mean);
    CHECK(gradient(R"("gradient_predivide_factor": 2.0)") == mean);
    const std::vector<float> third = gradient(R"("gradient_predivide_factor": 3.0)");
    CHECK(third != mean);
    CHECK(worst_difference(third, mean) < 1e-6);
  }
}

TEST_CASE("loss scale: a step on which the scale grows updates as if it had not",
          "[engine][precision]") {
  const std::string growing =
      R"("fp16": {"enabled": true, "initial_scale_power": 6, "loss_scale_window": 2})";
  const std::string constant = R"("fp16": {"enabled": true, "loss_scale": 64})";
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::string& clipping :
         {std::string(R"("gradient_clipping": 0)"), std::string(R"("gradient_clipping": 0.05)")}) {
      const auto train = [&](const std::string& keys) {
        return MlpRun{.ranks = 2, .stage = stage, .steps = 12, .keys = keys}.run();
      };
      const MlpRun::Result fp32 = train(clipping);
      const MlpRun::Result grown = train(clipping + ", " + growing);
      const MlpRun::Result kept = train(clipping + ", " + constant);
      INFO("stage " << stage << ", " << clipping);
      CHECK(grown.steps.back().loss_scale >= 16 * 64.0);
      for (std::size_t step = 0; step < fp32.steps.size(); ++step) {
        CHECK_FALSE(grown.steps[step].skipped);
        CHECK(grown.steps[step].grad_norm == Approx(fp32.steps[step].grad_norm).epsilon(1e-3));
        CHECK(grown.steps[step].grad_norm == Approx(kept.steps[step].grad_norm).epsilon(1e-3));
      }
      CHECK(worst_difference(grown.parameter, kept.parameter) < 1e-4);
    }
  }
}

TEST_CASE("accumulation dtype: fp32 sums of 64 bf16 micro-steps lose nothing, in every stage",
          "[engine][precision]") {
  constexpr int kMicroSteps = 64;
  const std::string bf16 = R"("bf16": {"enabled": true})";
  std::vector<double> exact;
  for (int micro = 0; micro < kMicroSteps; ++micro) {
    const std::vector<float> one = MlpRun{.first = micro, .keys = bf16}.run().gradient;
    exact.resize(one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      exact[i] += static_cast<double>(one[i]) / kMicroSteps;
    }
  }
  const std::vector<float> sum(exact.begin(), exact.end());
  for (const int stage : {1, 2, 3}) {  // DeepSpeed refuses it in stage 0
    const auto error = [&](const std::string& dtype) {
      const std::string keys = bf16 + R"(, "data_types": {"grad_accum_dtype": ")" + dtype + "\"}";
      const MlpRun window{.stage = stage, .accumulation = kMicroSteps, .keys = keys};
      return worst_difference(window.run().gradient, sum);
    };
    INFO("stage " << stage);
    CHECK(error("fp32") < 1e-7);
    CHECK(error("bf16") > 1e-4);
  }
}

TEST_CASE("bf16: stage 0 trains as the others do and its norm does not grow",
          "[engine][precision]") {
  std::vector<RunResult> results;
  for (const int stage : {0, 1, 2, 3}) {
    RunSpec spec;
    spec.stage = stage;
    spec.precision = "bf16";
    spec.steps = 20;
    results.push_back(run(spec));
    CHECK(same_bits(results.front(), results.back()));
  }
  CHECK(results.front().steps.back().grad_norm < 10 * results.front().steps.front().grad_norm);
}

TEST_CASE("schedule: moves once an applied update, whatever the ranks and micro-steps",
          "[engine][precision]") {
  const auto rates = [](int ranks, std::int64_t accumulation) {
    RunSpec spec;
    spec.ranks = ranks;
    spec.micro_batch = 1;
    spec.accumulation = accumulation;
    spec.steps = 25;
    spec.model.layers = 1;
    spec.top_keys = R"("scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 20,
        "warmup_max_lr": 0.01, "warmup_num_steps": 4, "warmup_type": "linear"}})";
    std::vector<double> lr;
    for (const StepResult& step : run(spec).steps) {
      lr.push_back(step.lr);
    }
    return lr;
  };
  const std::vector<double> alone = rates(1, 1);
  CHECK(rates(4, 4) == alone);
  CHECK(*std::max_element(alone.begin(), alone.end()) == Approx(0.01));
  CHECK(alone.back() == 0.0);
}
