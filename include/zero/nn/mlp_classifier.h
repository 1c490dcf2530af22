#pragma once

#include <zero/nn/linear.h>

#include <memory>
#include <vector>

namespace zero::nn {

/// A multi-layer perceptron with ReLU between its layers, trained by cross entropy: the smallest
/// model that trains.
///
/// inputs fp32 [B, sizes.front()], targets int32 [B] in [0, sizes.back()), −1: not counted.
class MlpClassifier : public Trainable {
 public:
  /// At least two sizes: features, hidden layers, classes. Parameters: layers.0.weight [in, out],
  /// layers.0.bias, …
  explicit MlpClassifier(const std::vector<std::int64_t>& sizes);

  void forward(const Batch& batch, TensorView loss, Execution& execution) override;
  void backward(float seed, Execution& execution) override;
  [[nodiscard]] Batch example_batch(std::int64_t micro_batch) const override;
  void check_batch(const Batch& batch) const override;

 private:
  struct Pending {
    std::size_t mark = 0;
    std::int64_t rows = 0;
    std::int64_t counted = 1;
    TensorView targets{};              ///< int32 [B]
    std::vector<TensorView> inputs{};  ///< of each layer: the features, then outputs of ReLU
    TensorView logits{};               ///< [B, classes]
  };

  void run_layers(Pending& pending, const HostTensor& features, Execution& execution);

  std::vector<std::unique_ptr<Linear>> layers_;
  std::vector<Pending> pending_;
};

}  // namespace zero::nn
