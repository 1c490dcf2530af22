#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/accel/device.h>
#include <zero/core/module_events.h>
#include <zero/engine/launch.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

/// One value that is not finite, in one gradient of one rank at one micro-step.
struct Fault {
  std::size_t param = 0;
  double place = 0.0;  ///< share of the parameter's elements before it
  float value = 0.0F;
};

/// Passes events on, and damages the gradient of one parameter on the way.
class FaultyEvents final : public ModuleEvents {
 public:
  FaultyEvents(Execution& execution, const Parameter& victim, const Fault& fault)
      : execution_(execution), victim_(victim), fault_(fault) {}

  void before_forward(Module& module, Phase phase, accel::Stream& stream) override {
    execution_.events.before_forward(module, phase, stream);
  }
  void after_forward(Module& module, Phase phase, accel::Stream& stream) override {
    execution_.events.after_forward(module, phase, stream);
  }
  void before_backward(Module& module, accel::Stream& stream) override {
    execution_.events.before_backward(module, stream);
  }
  void after_backward(Module& module, accel::Stream& stream) override {
    execution_.events.after_backward(module, stream);
  }
  void gradient_ready(Parameter& parameter,
                      TensorView gradient,
                      GradientWrite write,
                      accel::Stream& stream) override {
    if (&parameter == &victim_) {
      const std::int64_t elems = gradient.elems();
      const auto at = static_cast<std::int64_t>(fault_.place * static_cast<double>(elems));
      const TensorView damaged = gradient.reshape(Shape{elems}).slice(at, 1);
      const accel::Buffer value =
          execution_.device.allocate(sizeof(float), Category::kOther, MemorySpace::kDevice);
      const HostTensor host =
          HostTensor::copy_of(std::span<const float>(&fault_.value, 1), Shape{1});
      execution_.device.upload(host.storage, value.view(DType::kF32, Shape{1}), stream);
      execution_.device.kernels().cast(value.view(DType::kF32, Shape{1}), damaged, stream);
      stream.synchronize();  // `value` goes
    }
    execution_.events.gradient_ready(parameter, gradient, write, stream);
  }

 private:
  Execution& execution_;
  const Parameter& victim_;
  const Fault& fault_;
};

/// A Gpt whose next backward is damaged once.
class FaultyGpt final : public nn::Gpt {
 public:
  using nn::Gpt::Gpt;
  std::unique_ptr<Fault> next;

  void backward(float seed, Execution& execution) override {
    if (next == nullptr) {
      return nn::Gpt::backward(seed, execution);
    }
    const std::unique_ptr<Fault> fault = std::move(next);
    const auto parameters = parameters_of(*this);
    FaultyEvents events(execution, *parameters.at(fault->param), *fault);
    Execution faulty{execution.device, execution.stream, execution.arena, events, execution.phase};
    nn::Gpt::backward(seed, faulty);
  }
};

struct Point {
  int stage;
  int ranks;
  int accumulation;
  const char* precision;
  int step;   ///< that is damaged
  int micro;  ///< of the step
  int rank;
  Fault fault;
};

struct Outcome {
  std::vector<std::vector<StepResult>> steps;  ///< by rank
  std::vector<std::vector<float>> parameters;  ///< of rank 0
};

/// Trains on the same batch at every step, so that a skipped step leaves no trace but its count.
Outcome train(const Point& point, int steps, bool damaged) {
  const std::string precision =
      std::string(point.precision).empty()
          ? ""
          : fmt::format(
                R"("{}": {{"enabled": true{}}}, )",
                point.precision,
                std::string(point.precision) == "fp16" ? R"(, "initial_scale_power": 8)" : "");
  const std::string config = write_temporary(
      "overflow.json",
      fmt::format(
          R"({{{}"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
              "gradient_clipping": 1.0,
              "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.01}}}},
              "scheduler": {{"type": "WarmupLR", "params": {{"warmup_num_steps": 5}}}},
              "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 50}}}})",
          precision,
          point.accumulation,
          point.stage));
  Outcome outcome;
  outcome.steps.resize(static_cast<std::size_t>(point.ranks));
  const LaunchOptions options{.ranks = point.ranks, .comm = "local", .device = "cpu", .threads = 1};
  (void)launch(options, [&](World& world) {
    FaultyGpt model(RunSpec::tiny_gpt());
    const auto engine = initialize({.world = world, .model = model, .config = config});
    const int rank = world.group.rank();
    for (int step = 0; step < steps; ++step) {
      for (int micro = 0; micro < point.accumulation; ++micro) {
        if (damaged && step == point.step && micro == point.micro && rank == point.rank) {
          model.next = std::make_unique<Fault>(point.fault);
        }
        engine->backward(engine->forward(make_batch(100 * rank + micro, 1, 16, 61)));
        engine->step();
      }
    }
    outcome.steps[static_cast<std::size_t>(rank)] = engine->take_results(true);
    for (const auto& parameter : parameters_of(model)) {
      std::vector<float> whole = engine->full_fp32_parameter(parameter->info.name);
      if (rank == 0) {
        outcome.parameters.push_back(std::move(whole));
      }
    }
    return 0;
  });
  return outcome;
}

Point random_point(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  constexpr std::array kPrecisions = {"", "bf16", "fp16"};
  constexpr std::array kValues = {std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<float>::quiet_NaN()};
  Point point{};
  point.stage = below(4);
  point.ranks = 1 + below(3);
  point.accumulation = 1 + below(2);
  point.precision = kPrecisions.at(static_cast<std::size_t>(below(3)));
  point.step = below(3);
  point.micro = below(point.accumulation);
  point.rank = below(point.ranks);
  const nn::GptConfig config = RunSpec::tiny_gpt();
  nn::Gpt model(config);
  point.fault = {
      .param = static_cast<std::size_t>(below(static_cast<int>(parameters_of(model).size()))),
      .place = below(1000) / 1000.0,
      .value = kValues.at(static_cast<std::size_t>(below(3)))};
  return point;
}

void check_point(const Point& point) {
  INFO("stage " << point.stage << ", " << point.ranks << " ranks, accumulation "
                << point.accumulation << ", precision \"" << point.precision << "\", step "
                << point.step << ", micro-step " << point.micro << ", rank " << point.rank
                << ", parameter " << point.fault.param << " at " << point.fault.place);
  constexpr int kSteps = 4;
  const Outcome damaged = train(point, kSteps, true);
  const Outcome clean = train(point, kSteps - 1, false);
  for (const auto& steps : damaged.steps) {
    REQUIRE(steps.size() == kSteps);
    for (int step = 0; step < kSteps; ++step) {
      const StepResult& result = steps[static_cast<std::size_t>(step)];
      CHECK(result.skipped == (step == point.step));
      CHECK(std::isfinite(result.grad_norm) == (step != point.step));
      CHECK(std::isfinite(result.loss));
    }
  }
  // Weights, moments, update count and schedule: as if the step had not been.
  CHECK(damaged.parameters == clean.parameters);
}

void check_points(int count, unsigned seed) {
  std::mt19937 random(seed);
  INFO("seed " << seed);
  for (int i = 0; i < count; ++i) {
    check_point(random_point(random));
  }
}

}  // namespace

TEST_CASE("overflow: one bad value on one rank skips the step everywhere and changes nothing",
          "[engine][overflow]") {
  check_points(12, 4);
}

TEST_CASE("overflow: 300 bad values", "[.][soak]") {
  check_points(300, 2026);
}
