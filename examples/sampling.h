#pragma once

#include <zero/engine/engine.h>
#include <zero/nn/gpt.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero::examples {

struct SamplingOptions {
  std::int64_t count = 0;
  double temperature = 0.8;
  std::uint64_t seed = 0;
};

/// Continues `prompt` (at least one token) by `count` tokens drawn from the model.
///
/// Collective: every rank runs the same number of forwards and draws the same tokens, since the
/// random numbers are f(seed, index). The model sees at most its `positions` latest tokens.
[[nodiscard]] std::vector<std::int32_t> sample(Engine& engine,
                                               nn::Gpt& model,
                                               std::span<const std::int32_t> prompt,
                                               const SamplingOptions& options);

/// Index drawn from softmax(logits / temperature) by `uniform` in [0, 1).
[[nodiscard]] std::int32_t draw(std::span<const float> logits, double temperature, double uniform);

/// Tokens as text that is safe on a terminal: printable ASCII and line ends as they are, other
/// bytes as \xNN, tokens above 255 as <N>.
[[nodiscard]] std::string printable(std::span<const std::int32_t> tokens);

}  // namespace zero::examples
