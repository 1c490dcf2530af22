#pragma once

#include <zero/accel/arena.h>
#include <zero/core/module.h>

#include <cstdint>
#include <memory>
#include <string>

namespace zero::nn {

/// Mean and 1/standard deviation of each row, fp32 [M]: with x all that a backward needs.
struct RowStatistics {
  TensorView mean;
  TensorView rstd;
  [[nodiscard]] static RowStatistics take(std::int64_t rows, accel::Arena& arena);
};

/// Layer normalisation over the last dimension, with weight and bias [C]. Source: Ba et al. 2016.
///
/// x and y are [..., C]. Sends no events (see events.h).
class LayerNorm : public Module {
 public:
  /// Declares `name`.weight (ones) and `name`.bias (zeros).
  LayerNorm(const std::string& name, std::int64_t width, float eps);

  /// Also writes the statistics. Running it again on the same x gives the same bits, so backward
  /// does that instead of keeping y.
  void forward(ConstTensorView x,
               TensorView y,
               const RowStatistics& statistics,
               Execution& execution) const;
  /// dx = (or, with `accumulate_dx`, +=) the gradient of x; gives the parameters' gradients.
  void backward(ConstTensorView dy,
                ConstTensorView x,
                const RowStatistics& statistics,
                TensorView dx,
                bool accumulate_dx,
                Execution& execution) const;

 private:
  std::int64_t width_;
  float eps_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

}  // namespace zero::nn
