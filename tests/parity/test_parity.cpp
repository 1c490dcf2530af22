// Twenty steps from published weights on published tokens, against the losses, norms and weights
// that PyTorch gives (tests/data/parity/README.md). Every stage, back end and rank count does the
// same global batch of 8.
#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/engine/engine.h>
#include <zero/engine/safetensors.h>
#include <zero/nn/gpt.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace {

using namespace zero;  // NOLINT(google-build-using-namespace): test file

constexpr std::int64_t kGlobalBatch = 8;
constexpr std::int64_t kTokens = 64;
constexpr double kLossBound = 2e-4;
constexpr double kNormBound = 1e-3;
constexpr double kWeightBound = 2e-4;

std::string data(const std::string& name) {
  return std::string(ZERO_TEST_DATA) + "/parity/" + name;
}

/// Rows of global samples [first, first + rows): window g mod n of the text.
Batch batch_of(const std::string& text, std::int64_t first, std::int64_t rows) {
  const auto windows = (static_cast<std::int64_t>(text.size()) - 1) / kTokens;
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t start = (first + row) % windows * kTokens;
    for (std::int64_t t = start; t < start + kTokens; ++t) {
      inputs.push_back(static_cast<unsigned char>(text[static_cast<std::size_t>(t)]));
      targets.push_back(static_cast<unsigned char>(text[static_cast<std::size_t>(t) + 1]));
    }
  }
  const Shape shape{rows, kTokens};
  return {HostTensor::copy_of(std::span<const std::int32_t>(inputs), shape),
          HostTensor::copy_of(std::span<const std::int32_t>(targets), shape)};
}

struct Outcome {
  std::vector<StepResult> steps;
  double worst_weight = 0.0;
  double next_scale = 0.0;  ///< loss scale after the last step
};

/// Largest difference from the published final weights; the key third of c_attn.bias, whose true
/// gradient is zero, apart.
double compare_weights(Engine& engine, nn::Gpt& model) {
  const PretrainedWeights published(data("final_fp32.safetensors"));
  double worst = 0.0;
  for (const auto& parameter : parameters_of(model)) {
    const std::vector<float> ours = engine.full_fp32_parameter(parameter->info.name);
    std::vector<float> theirs(ours.size());
    published(parameter->info, 0, theirs);
    const bool attention_bias = parameter->info.name.find("attn.c_attn.bias") != std::string::npos;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const bool key = attention_bias && i >= ours.size() / 3 && i < 2 * ours.size() / 3;
      worst = key ? worst : std::max(worst, static_cast<double>(std::abs(ours[i] - theirs[i])));
    }
  }
  return worst;
}

Outcome train(
    World& world, int stage, std::int64_t accumulation, const std::string& precision, int steps) {
  const support::TemporaryFolder folder;
  const std::int64_t rows = kGlobalBatch / world.group.size() / accumulation;
  support::write_bytes(
      folder / "ds.json",
      fmt::format(
          R"({{"train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {}, "gradient_clipping": 1.0{},
 "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}}}},
 "zero_optimization": {{"stage": {}}}}})",
          rows,
          accumulation,
          precision,
          stage));
  const std::string text = support::read_bytes(data("tokens.bin"));
  nn::Gpt model(nn::load_gpt_config(data("config.json")));
  const auto engine = initialize({.world = world,
                                  .model = model,
                                  .config = folder / "ds.json",
                                  .initial_values = PretrainedWeights(data("init.safetensors"))});
  for (std::int64_t micro = 0; micro < steps * accumulation; ++micro) {
    const std::int64_t first = (micro * world.group.size() + world.group.rank()) * rows;
    engine->backward(engine->forward(batch_of(text, first, rows)));
    engine->step();
  }
  Outcome outcome;
  outcome.steps = engine->take_results(true);
  outcome.worst_weight = compare_weights(*engine, model);
  outcome.next_scale = engine->loss_scale();
  return outcome;
}

/// Trains on threads and returns what rank 0 saw.
Outcome train_local(
    int ranks, int stage, std::int64_t accumulation, const std::string& precision, int steps) {
  Outcome outcome;
  (void)launch({.ranks = ranks, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
    Outcome mine = train(world, stage, accumulation, precision, steps);
    if (world.group.rank() == 0) {
      outcome = std::move(mine);
    }
    return 0;
  });
  return outcome;
}

nlohmann::json recorded(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(data(name)));
}

void check_fp32(const Outcome& outcome) {
  const nlohmann::json fixture = recorded("fixture.json");
  REQUIRE(outcome.steps.size() == 20);
  for (std::size_t step = 0; step < 20; ++step) {
    CHECK(std::abs(outcome.steps[step].loss - fixture["losses_fp32"][step].get<double>()) <
          kLossBound);
    CHECK(std::abs(outcome.steps[step].grad_norm / fixture["grad_norms_fp32"][step].get<double>() -
                   1.0) < kNormBound);
  }
  CHECK(outcome.worst_weight < kWeightBound);
}

}  // namespace

TEST_CASE("parity: fp32 on threads agrees with PyTorch", "[local]") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {1, 2, 4}) {
      for (const std::int64_t accumulation : {1, 2}) {
        INFO("stage " << stage << ", " << ranks << " ranks, accumulation " << accumulation);
        check_fp32(train_local(ranks, stage, accumulation, "", 20));
      }
    }
  }
}

TEST_CASE("parity: bf16 follows DeepSpeed's recorded losses", "[local]") {
  const nlohmann::json expected = recorded("expected_bf16.json").begin().value();
  for (const int stage : {0, 1, 2, 3}) {
    const Outcome outcome = train_local(2, stage, 2, R"(, "bf16": {"enabled": true})", 20);
    double worst = 0.0;
    for (std::size_t step = 0; step < 20; ++step) {
      worst = std::max(
          worst, std::abs(outcome.steps.at(step).loss - expected["loss"][step].get<double>()));
    }
    INFO("stage " << stage << ", largest difference " << worst);
    CHECK(worst < 1e-2);
  }
}

TEST_CASE("parity: fp16 has DeepSpeed's loss scales and skipped steps for 24 steps", "[local]") {
  const nlohmann::json expected = recorded("expected_fp16.json")["deepspeed_z2"];
  const char* precision =
      R"(, "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 5, "hysteresis": 2, "min_loss_scale": 1})";
  for (const int stage : {0, 1, 2, 3}) {
    const Outcome outcome = train_local(2, stage, 2, precision, 24);
    for (std::size_t step = 0; step < 24; ++step) {
      INFO("stage " << stage << ", step " << step);
      CHECK(outcome.steps.at(step).loss_scale == expected["scale_before"][step].get<double>());
      const double after =
          step + 1 < 24 ? outcome.steps.at(step + 1).loss_scale : outcome.next_scale;
      CHECK(after == expected["scale_after"][step].get<double>());
      CHECK(outcome.steps.at(step).skipped == (expected["skipped"][step].get<double>() != 0.0));
    }
  }
}

TEST_CASE("parity: fp32 under mpirun agrees with PyTorch", "[mpi]") {
  (void)launch({.ranks = 0, .comm = "mpi", .device = "cpu", .threads = 1}, [](World& world) {
    for (const int stage : {0, 1, 2, 3}) {
      const Outcome outcome = train(world, stage, 1, "", 20);
      INFO("stage " << stage << ", " << world.group.size() << " ranks");
      check_fp32(outcome);
    }
    return 0;
  });
}
