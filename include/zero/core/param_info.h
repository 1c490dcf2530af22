#pragma once

#include <zero/core/tensor_view.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace zero {

/// How a parameter's initial values are made: element by element, so that a rank makes only the
/// elements it keeps.
struct Init {
  /// Writes elements [begin, begin + values.size()) (row-major) of the parameter called `name`.
  using Fill = std::function<void(
      const std::string& name, std::uint64_t seed, std::int64_t begin, std::span<float> values)>;
  Fill fill;

  [[nodiscard]] static Init constant(float value);
  /// Bell-shaped with standard deviation `std`, f(seed, name, element); see normal_at().
  [[nodiscard]] static Init normal(double std);
};

/// One parameter of a model, described once; plan, units, optimizer and checkpoints all read this.
struct ParamInfo {
  std::string name;  ///< unique in the model; HuggingFace names where the model has them
  Shape shape;
  bool trainable = true;
  int group = 0;  ///< index of its optimizer parameter group
  Init init = Init::constant(0.0F);
};

}  // namespace zero
