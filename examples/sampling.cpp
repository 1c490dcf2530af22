#include "examples/sampling.h"

#include <zero/accel/device.h>
#include <zero/core/rng.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace zero::examples {
namespace {

/// Logits of the token after `context`, fp32 [V].
std::vector<float> next_logits(Engine& engine,
                               nn::Gpt& model,
                               std::span<const std::int32_t> context) {
  const auto length = static_cast<std::int64_t>(context.size());
  const HostTensor tokens = HostTensor::copy_of(context, Shape{1, length});
  std::vector<float> values(static_cast<std::size_t>(model.config().vocabulary));
  engine.infer(fmt::format("sample {}", length), [&](Execution& execution) {
    const accel::Arena::Scope scope(execution.arena);
    const TensorView logits =
        model.logits(tokens, execution).reshape(Shape{model.config().vocabulary});
    const TensorView fp32 = execution.arena.take(DType::kF32, logits.shape);
    execution.device.kernels().cast(logits, fp32, execution.stream);
    execution.device.copy(fp32, view_of(std::span<float>(values)), execution.stream);
  });
  engine.synchronize();
  return values;
}

}  // namespace

std::int32_t draw(std::span<const float> logits, double temperature, double uniform) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> up_to;
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp((static_cast<double>(logit) - largest) / temperature);
    up_to.push_back(sum);
  }
  const auto drawn = std::upper_bound(up_to.begin(), up_to.end(), uniform * sum);
  const auto last = static_cast<std::ptrdiff_t>(logits.size()) - 1;
  return static_cast<std::int32_t>(std::min(drawn - up_to.begin(), last));
}

std::vector<std::int32_t> sample(Engine& engine,
                                 nn::Gpt& model,
                                 std::span<const std::int32_t> prompt,
                                 const SamplingOptions& options) {
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  const auto window = static_cast<std::size_t>(model.config().positions);
  const std::uint64_t stream = fnv1a64("sample") ^ options.seed;
  for (std::int64_t i = 0; i < options.count; ++i) {
    const std::span<const std::int32_t> all(tokens);
    const std::vector<float> logits =
        next_logits(engine, model, all.last(std::min(window, all.size())));
    const std::uint64_t random = splitmix64_at(stream, static_cast<std::uint64_t>(i));
    const double uniform = static_cast<double>(random >> 11U) * 0x1p-53;
    tokens.push_back(draw(logits, options.temperature, uniform));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}

std::string printable(std::span<const std::int32_t> tokens) {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token == '\n' || (token >= ' ' && token <= '~')) {
      text += static_cast<char>(token);
    } else if (token < 256) {
      text += fmt::format("\\x{:02x}", token);
    } else {
      text += fmt::format("<{}>", token);
    }
  }
  return text;
}

}  // namespace zero::examples
