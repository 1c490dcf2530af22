// Agreement with PyTorch on its own numbers: initial weights bit for bit, then 20 steps of AdamW.

#include "examples/data.h"
#include "tests/nn/whole_model.h"
#include <support/catch.h>
#include <zero/core/rng.h>
#include <zero/engine/safetensors.h>
#include <zero/nn/gpt.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <fstream>

namespace zero::nn {
namespace {

using support::WholeModel;

const std::string kFolder = ZERO_TEST_DATA "/parity/";
constexpr std::int64_t kRows = 8;

std::vector<double> numbers(const char* key) {
  std::ifstream file(kFolder + "fixture.json");
  return nlohmann::json::parse(file).at(key).get<std::vector<double>>();
}

/// AdamW with clipping to norm 1, in double, as tests/data/parity/README.md states it.
class AdamW {
 public:
  void step(WholeModel& model) {
    ++t_;
    const double norm = model.gradient_norm();
    const double factor = norm > 1.0 ? 1.0 / (norm + 1e-6) : 1.0;
    for (const ParamInfo& info : model.params) {
      std::vector<float> values = model.value(info.name);
      const std::vector<float> grad = model.grad(info.name);
      State& state = states_[info.name];
      state.m.resize(values.size());
      state.v.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double g = static_cast<double>(grad[i]) * factor;
        state.m[i] = 0.9 * state.m[i] + 0.1 * g;
        state.v[i] = 0.999 * state.v[i] + 0.001 * g * g;
        const double m = state.m[i] / (1.0 - std::pow(0.9, t_));
        const double v = state.v[i] / (1.0 - std::pow(0.999, t_));
        const double decayed = static_cast<double>(values[i]) * (1.0 - 1e-3 * 0.01);
        values[i] = static_cast<float>(decayed - 1e-3 * m / (std::sqrt(v) + 1e-8));
      }
      model.set_value(info.name, values);
    }
  }

 private:
  struct State {
    std::vector<double> m, v;
  };
  std::map<std::string, State> states_;
  int t_ = 0;
};

examples::Corpus parity_text() {
  return examples::Corpus({.path = kFolder + "tokens.bin", .sequence = 64, .vocabulary = 256});
}

TEST_CASE("parity: initial weights equal the published ones bit for bit", "[nn][parity]") {
  Gpt gpt(load_gpt_config(kFolder));
  const SafetensorsReader reader(kFolder + "init.safetensors");
  const auto parameters = parameters_of(gpt);
  CHECK(reader.entries().size() == parameters.size());
  for (const auto& parameter : parameters) {
    INFO(parameter->info.name);
    const auto count = static_cast<std::size_t>(parameter->info.shape.elems());
    std::vector<float> ours(count);
    std::vector<float> theirs(count);
    parameter->info.init.fill(parameter->info.name, 1234, 0, ours);
    reader.read(parameter->info.name, 0, theirs);
    CHECK(std::memcmp(ours.data(), theirs.data(), count * sizeof(float)) == 0);
  }
}

TEST_CASE("parity: loss and gradient norm of step 0 agree with PyTorch", "[nn][parity]") {
  Gpt gpt(load_gpt_config(kFolder));
  WholeModel model(gpt);
  model.initialize(1234);
  const float loss = model.train_forward(gpt, parity_text().batch(0, kRows));
  CHECK(std::abs(static_cast<double>(loss) - 5.38469123840332) < 2e-5);
  model.backward(gpt);
  CHECK(model.gradient_norm() == Approx(3.985381603240967).epsilon(1e-4));
}

TEST_CASE("parity: micro-batches of 2 give the step of 8", "[nn][parity]") {
  Gpt gpt(load_gpt_config(kFolder));
  WholeModel model(gpt);
  model.initialize(1234);
  const examples::Corpus text = parity_text();
  double loss = 0.0;
  for (std::int64_t micro = 0; micro < 4; ++micro) {
    loss += 0.25 * static_cast<double>(model.train_forward(gpt, text.batch(2 * micro, 2)));
    model.backward(gpt, 0.25F);
  }
  CHECK(std::abs(loss - numbers("losses_fp32")[0]) < 2e-5);
  CHECK(model.gradient_norm() == Approx(numbers("grad_norms_fp32")[0]).epsilon(1e-4));
}

TEST_CASE("parity: 20 steps of AdamW follow PyTorch to the same weights", "[nn][parity]") {
  Gpt gpt(load_gpt_config(kFolder));
  WholeModel model(gpt);
  model.initialize(1234);
  const examples::Corpus text = parity_text();
  const std::vector<double> losses = numbers("losses_fp32");
  const std::vector<double> norms = numbers("grad_norms_fp32");
  AdamW optimizer;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    model.events.begin_step();
    const auto first = static_cast<std::int64_t>(step) * kRows;
    const float loss = model.train_forward(gpt, text.batch(first, kRows));
    model.backward(gpt);
    CHECK(std::abs(static_cast<double>(loss) - losses[step]) < 2e-4);
    CHECK(model.gradient_norm() == Approx(norms[step]).epsilon(2e-3));
    optimizer.step(model);
  }
  const SafetensorsReader reader(kFolder + "final_fp32.safetensors");
  for (const ParamInfo& info : model.params) {
    INFO(info.name);
    const std::vector<float> ours = model.value(info.name);
    std::vector<float> theirs(ours.size());
    reader.read(info.name, 0, theirs);
    // The key third of this bias has no true gradient: Adam moves it by the sign of rounding.
    const bool has_key = info.name.find("attn.c_attn.bias") != std::string::npos;
    double worst = 0.0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (!(has_key && i >= ours.size() / 3 && i < 2 * ours.size() / 3)) {
        worst = std::max(worst, std::abs(static_cast<double>(ours[i] - theirs[i])));
      }
    }
    CHECK(worst < 2e-4);
  }
}

}  // namespace
}  // namespace zero::nn
