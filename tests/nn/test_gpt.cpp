// The whole GPT: gradients along directions, what stays on the arena, order of events, tying,
// freezing, dry runs.

#include "tests/nn/whole_model.h"
#include <support/catch.h>
#include <zero/nn/events.h>
#include <zero/nn/gpt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

namespace zero::nn {
namespace {

using support::noise;
using support::WholeModel;

constexpr GptConfig kTiny{
    .layers = 2, .hidden = 16, .heads = 2, .positions = 8, .vocabulary = 11, .inner = 24};

Batch some_batch(std::int64_t seed, std::int64_t rows = 3, std::int64_t tokens = 7) {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < rows * tokens; ++i) {
    inputs.push_back(static_cast<std::int32_t>((i * i + seed) % kTiny.vocabulary));
    targets.push_back(i % 5 == 4 ? -1 : static_cast<std::int32_t>((3 * i + seed) % 11));
  }
  return {support::int_tensor(inputs, Shape{rows, tokens}),
          support::int_tensor(targets, Shape{rows, tokens})};
}

/// The gradient and some noise of the same length, together of length 1.
std::vector<float> direction_of(const std::string& name, const std::vector<float>& gradient) {
  const double length = std::sqrt(support::dot(gradient, gradient)) + 1e-12;
  std::vector<float> random = noise("direction of " + name, std::ssize(gradient));
  const double random_length = std::sqrt(support::dot(random, random));
  for (std::size_t i = 0; i < random.size(); ++i) {
    random[i] = static_cast<float>((static_cast<double>(gradient[i]) / length +
                                    static_cast<double>(random[i]) / random_length) /
                                   std::sqrt(2.0));
  }
  return random;
}

/// Compares the gradient of every parameter, as it is now, with differences of `loss`.
void check_gradients(WholeModel& model, const std::function<float()>& loss) {
  std::map<std::string, std::vector<float>> gradients;
  for (const ParamInfo& info : model.params) {
    gradients[info.name] = model.grad(info.name);
  }
  for (const auto& [name, gradient] : gradients) {
    const std::vector<float> original = model.value(name);
    const std::vector<float> direction = direction_of(name, gradient);
    const auto loss_at = [&, &name = name](float step) {
      std::vector<float> moved = original;
      for (std::size_t i = 0; i < moved.size(); ++i) {
        moved[i] += step * direction[i];
      }
      model.set_value(name, moved);
      const auto moved_loss = static_cast<double>(loss());
      model.set_value(name, original);
      return moved_loss;
    };
    constexpr float kStep = 2e-2F;
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2.0 * static_cast<double>(kStep));
    INFO(name);
    CHECK(support::dot(gradient, direction) == Approx(slope).epsilon(5e-3).margin(2e-4));
  }
}

TEST_CASE("gpt: each parameter's gradient agrees with differences along a direction", "[nn][gpt]") {
  // 220 elements hold all 21 rows of 11 logits only with the first setting.
  Gpt gpt(kTiny, {.logit_chunk_elems = GENERATE(std::int64_t{1} << 20, std::int64_t{55})});
  WholeModel model(gpt);
  model.randomize(3, 0.3);
  const Batch batch = some_batch(2);
  const float loss = model.train_forward(gpt, batch);
  CHECK(loss == model.evaluate(gpt, batch));
  model.backward(gpt);
  check_gradients(model, [&] { return model.evaluate(gpt, batch); });
}

TEST_CASE("gpt: gradients go through dropout of every kind, kept or computed again",
          "[nn][gpt][dropout]") {
  for (const bool recompute : {false, true}) {
    GptConfig config = kTiny;
    config.embedding_dropout = 0.2F;
    config.attention_dropout = 0.3F;
    config.residual_dropout = 0.1F;
    Gpt gpt(config);
    (void)gpt.recompute_activations(recompute ? std::optional<std::int64_t>(1) : std::nullopt);
    WholeModel model(gpt);
    model.randomize(3, 0.3);
    const Batch batch = some_batch(2);
    const auto loss = [&] {
      const float value = model.train_forward(gpt, batch);
      model.events.begin_step();
      model.backward(gpt);
      return value;
    };
    CHECK(loss() != model.evaluate(gpt, batch));
    CHECK(loss() == loss());
    check_gradients(model, loss);
  }
}

TEST_CASE("gpt: the arena is back at its start after backward and after evaluation",
          "[nn][gpt][arena]") {
  Gpt gpt(kTiny);
  WholeModel model(gpt);
  model.initialize(1);
  (void)model.arena.take(DType::kF32, Shape{3});
  const std::size_t start = model.arena.mark();
  (void)model.evaluate(gpt, some_batch(0));
  CHECK(model.arena.mark() == start);
  (void)model.train_forward(gpt, some_batch(0));
  CHECK(model.arena.mark() > start);
  (void)model.evaluate(gpt, some_batch(1));
  model.backward(gpt);
  CHECK(model.arena.mark() == start);
  CHECK_THROWS_AS(model.backward(gpt), InputError);
}

TEST_CASE("gpt: two forwards go back last in, first out", "[nn][gpt]") {
  Gpt gpt(kTiny);
  WholeModel model(gpt);
  model.randomize(5, 0.3);
  const auto gradient_of = [&](const Batch& batch) {
    model.events.begin_step();
    (void)model.train_forward(gpt, batch);
    model.backward(gpt);
    return model.grad("h.0.mlp.c_fc.weight");
  };
  const std::vector<float> first = gradient_of(some_batch(1));
  const std::vector<float> second = gradient_of(some_batch(2, 2, 5));
  REQUIRE(first != second);

  (void)model.train_forward(gpt, some_batch(1));
  (void)model.train_forward(gpt, some_batch(2, 2, 5));
  model.events.begin_step();
  model.backward(gpt);
  CHECK(model.grad("h.0.mlp.c_fc.weight") == second);
  model.events.begin_step();
  model.backward(gpt);
  CHECK(model.grad("h.0.mlp.c_fc.weight") == first);
}

TEST_CASE("gpt: the tied table gets the sum of both uses", "[nn][gpt][tied]") {
  Gpt gpt(kTiny);
  WholeModel model(gpt);
  model.randomize(5, 0.3);
  std::vector<std::vector<float>> stages;  // the table's gradient after each contribution
  model.events.on_gradient = [&](const std::string& name, TensorView gradient) {
    if (name == "wte.weight") {
      stages.push_back(model.read(gradient));
    }
  };
  const Batch batch = some_batch(1);
  (void)model.train_forward(gpt, batch);
  model.backward(gpt);
  REQUIRE(stages.size() == 2);
  // The head reaches every row; the embedding adds to the rows of tokens that are inputs, and only
  // to those. That the sum is right is what the differences above say.
  const auto inputs = batch.inputs.view().as<std::int32_t>();
  for (std::int32_t token = 0; token < kTiny.vocabulary; ++token) {
    const auto begin = token * kTiny.hidden;
    const bool is_input = std::find(inputs.begin(), inputs.end(), token) != inputs.end();
    INFO("token " << token);
    const auto row = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + begin, all.begin() + begin + kTiny.hidden);
    };
    CHECK(row(stages[0]) != std::vector<float>(static_cast<std::size_t>(kTiny.hidden), 0.0F));
    CHECK((row(stages[0]) != row(stages[1])) == is_input);
  }
  CHECK(std::find(inputs.begin(), inputs.end(), 3) == inputs.end());
}

TEST_CASE("gpt: gradients of a second micro-step are added to the first", "[nn][gpt]") {
  Gpt gpt(kTiny);
  WholeModel model(gpt);
  model.randomize(5, 0.3);
  const auto all_gradients = [&] {
    std::vector<std::vector<float>> all;
    for (const ParamInfo& info : model.params) {
      all.push_back(model.grad(info.name));
    }
    return all;
  };
  (void)model.train_forward(gpt, some_batch(1));
  model.backward(gpt, 0.5F);
  const auto first = all_gradients();
  (void)model.train_forward(gpt, some_batch(1));
  model.backward(gpt, 0.5F);
  const auto both = all_gradients();
  for (std::size_t p = 0; p < first.size(); ++p) {
    INFO(model.params[p].name);
    const double length = std::sqrt(support::dot(both[p], both[p])) + 1e-6;
    for (std::size_t i = 0; i < first[p].size(); ++i) {
      CHECK(std::abs(static_cast<double>(both[p][i] - 2.0F * first[p][i])) < 1e-5 * length);
    }
  }
}

TEST_CASE("gpt: a frozen parameter gets no gradient and changes no other", "[nn][gpt][frozen]") {
  Gpt gpt(kTiny);
  WholeModel model(gpt);
  model.randomize(5, 0.3);
  const std::vector<std::string> frozen = {"wte.weight",
                                           "h.0.attn.c_attn.weight",
                                           "h.1.mlp.c_proj.bias",
                                           "h.1.ln_2.weight",
                                           "ln_f.bias"};
  const std::vector<std::string> others = {"wpe.weight",
                                           "h.0.attn.c_attn.bias",
                                           "h.1.mlp.c_proj.weight",
                                           "h.1.ln_2.bias",
                                           "ln_f.weight"};
  (void)model.train_forward(gpt, some_batch(1));
  model.backward(gpt);
  std::vector<std::vector<float>> expected;
  for (const std::string& name : others) {
    expected.push_back(model.grad(name));
  }
  for (const std::string& name : frozen) {
    model.events.freeze(name);
    model.write(
        std::vector<float>(static_cast<std::size_t>(model.events.grad(name).elems()), 42.0F),
        model.events.grad(name));
  }
  model.events.begin_step();
  std::vector<std::string> arrivals;
  model.events.on_gradient = [&](const std::string& name, TensorView) { arrivals.push_back(name); };
  (void)model.train_forward(gpt, some_batch(1));
  model.backward(gpt);
  for (const std::string& name : frozen) {
    INFO(name);
    CHECK(std::find(arrivals.begin(), arrivals.end(), name) == arrivals.end());
    const std::vector<float> untouched = model.grad(name);
    CHECK(std::all_of(untouched.begin(), untouched.end(), [](float g) { return g == 42.0F; }));
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    INFO(others[i]);
    CHECK(model.grad(others[i]) == expected[i]);
  }
}

TEST_CASE("gpt: logits of the last position agree with the loss of that position", "[nn][gpt]") {
  Gpt gpt(kTiny);
  WholeModel model(gpt);
  model.randomize(9, 0.3);
  Batch batch = some_batch(4, 2, 6);
  std::vector<std::int32_t> targets(12, -1);
  targets[5] = 3;
  targets[11] = 8;
  batch.targets = support::int_tensor(targets, Shape{2, 6});
  const float loss = model.evaluate(gpt, batch);

  Execution execution = model.execution(Phase::kEval);
  const std::size_t start = model.arena.mark();
  const TensorView logits = gpt.logits(batch.inputs, execution);
  CHECK(logits.shape == Shape{2, kTiny.vocabulary});
  const std::vector<float> values = model.read(logits);
  model.arena.release(start);
  double expected = 0.0;
  for (const auto& [row, target] : {std::pair(0, 3), std::pair(1, 8)}) {
    const auto* scores = values.data() + row * kTiny.vocabulary;
    double sum = 0.0;
    for (std::int64_t v = 0; v < kTiny.vocabulary; ++v) {
      sum += std::exp(static_cast<double>(scores[v]));
    }
    expected += 0.5 * (std::log(sum) - static_cast<double>(scores[target]));
  }
  CHECK(static_cast<double>(loss) == Approx(expected).epsilon(1e-5));
}

/// Events of a pass on nothing: parameters and gradients have an address that nobody reads.
class NowhereEvents final : public ModuleEvents {
 public:
  void before_forward(Module& module, Phase /*phase*/, accel::Stream& /*stream*/) override {
    bind(module, false);
  }
  void after_forward(Module& /*m*/, Phase /*phase*/, accel::Stream& /*stream*/) override {}
  void before_backward(Module& module, accel::Stream& /*stream*/) override { bind(module, true); }
  void after_backward(Module& /*m*/, accel::Stream& /*stream*/) override {}
  void gradient_ready(Parameter& /*p*/,
                      TensorView /*g*/,
                      GradientWrite /*w*/,
                      accel::Stream& /*stream*/) override {}

 private:
  void bind(Module& module, bool gradients) {
    for (const auto& parameter : module.is_block() ? parameters_of(module) : module.parameters()) {
      parameter->value = {nowhere_.data(), DType::kF32, parameter->info.shape};
      parameter->grad = gradients ? parameter->value : TensorView{};
    }
  }
  std::array<std::byte, 64> nowhere_{};
};

TEST_CASE("gpt: a pass on nothing counts what a real pass takes, and takes none itself",
          "[nn][gpt][arena]") {
  Gpt gpt(kTiny, {.logit_chunk_elems = GENERATE(std::int64_t{1} << 20, std::int64_t{55})});
  WholeModel model(gpt);
  model.initialize(1);
  std::array<std::byte, 64> nowhere{};
  const TensorView loss{nowhere.data(), DType::kF32, Shape{1}};
  const auto before = model.context.ledger.use(MemorySpace::kDevice).total_peak_bytes;
  accel::Arena counter;
  NowhereEvents events;
  const auto null_stream = model.device->make_null_stream();
  Execution execution{*model.device, *null_stream, counter, events, Phase::kTrain};
  const Batch example = gpt.example_batch(2);
  gpt.forward(example, loss, execution);
  gpt.backward(1.0F, execution);
  CHECK(model.context.ledger.use(MemorySpace::kDevice).total_peak_bytes == before);
  CHECK(counter.mark() == 0);

  for (const auto& parameter : parameters_of(gpt)) {
    *parameter = Parameter{parameter->info, {}, {}, false};
  }
  (void)model.train_forward(gpt, example);
  model.backward(gpt);
  CHECK(counter.peak_bytes() == model.arena.peak_bytes());
}

TEST_CASE("gpt: a pass on nothing works for GPT-2 XL and stays near 6C + F a token and block",
          "[nn][gpt][arena]") {
  GptConfig xl = load_gpt_config("gpt2-xl");
  Gpt gpt(xl);
  Linear unused("unused", {.in = 1, .out = 1});
  WholeModel model(unused);
  accel::Arena counter;
  NowhereEvents events;
  const auto null_stream = model.device->make_null_stream();
  Execution execution{*model.device, *null_stream, counter, events, Phase::kTrain};
  std::array<std::byte, 64> nowhere{};
  gpt.forward(gpt.example_batch(1), {nowhere.data(), DType::kF32, Shape{1}}, execution);
  gpt.backward(1.0F, execution);
  const auto rows = static_cast<double>(xl.positions);
  const double per_block =
      rows * static_cast<double>(6 * xl.hidden + xl.inner + 4 + xl.heads) * sizeof(float);
  const double saved = static_cast<double>(xl.layers) * per_block;
  CHECK(static_cast<double>(counter.peak_bytes()) > saved);
  CHECK(static_cast<double>(counter.peak_bytes()) < 1.03 * saved);
}

TEST_CASE("gpt: 16-bit parameters give nearly the loss and gradients of fp32", "[nn][gpt][bf16]") {
  const DType dtype = GENERATE(DType::kBF16, DType::kF16);
  Gpt reference_gpt(kTiny);
  WholeModel reference(reference_gpt);
  reference.randomize(5, 0.3);
  Gpt gpt(kTiny);
  WholeModel model(gpt, dtype);
  model.randomize(5, 0.3);
  const Batch batch = some_batch(1);
  const float loss = reference.train_forward(reference_gpt, batch);
  CHECK(model.train_forward(gpt, batch) == Approx(loss).epsilon(2e-2));
  reference.backward(reference_gpt);
  model.backward(gpt);
  CHECK(model.gradient_norm() == Approx(reference.gradient_norm()).epsilon(3e-2));
}

TEST_CASE("gpt: batches that do not fit are refused", "[nn][gpt]") {
  const Gpt gpt(kTiny);
  CHECK_NOTHROW(gpt.check_batch(some_batch(1)));
  CHECK_NOTHROW(gpt.check_batch(gpt.example_batch(2)));
  Batch batch = some_batch(1);
  batch.targets = support::int_tensor({1, 2}, Shape{1, 2});
  CHECK_THROWS_AS(gpt.check_batch(batch), InputError);
  batch = some_batch(1, 1, 9);
  CHECK_THROWS_WITH(gpt.check_batch(batch), Catch::Contains("8 positions"));
  batch.inputs = batch.targets = support::int_tensor({1, 2, 11}, Shape{1, 3});
  CHECK_THROWS_WITH(gpt.check_batch(batch), Catch::Contains("token 11 at element 2"));
  batch.inputs = support::int_tensor({1, 2, -1}, Shape{1, 3});
  CHECK_THROWS_AS(gpt.check_batch(batch), InputError);
  batch.inputs = HostTensor::copy_of(std::span<const float>(noise("x", 3)), Shape{1, 3});
  CHECK_THROWS_AS(gpt.check_batch(batch), InputError);
}

}  // namespace
}  // namespace zero::nn
