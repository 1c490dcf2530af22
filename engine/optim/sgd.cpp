#include "engine/optim/optimizer.h"

namespace zero::optim {
namespace {

/// Stochastic gradient descent with momentum, as torch.optim.SGD defines it; the formula stands at
/// Kernels::sgd.
class Sgd final : public UpdateRule {
 public:
  explicit Sgd(const config::OptimizerConfig& config) : config_(config) {}

  [[nodiscard]] std::vector<std::string> states() const override {
    return config_.momentum != 0.0 ? std::vector<std::string>{"momentum_buffer"}
                                   : std::vector<std::string>{};
  }

  void update(const Segment& segment,
              const Hyper& hyper,
              std::int64_t t,
              ConstTensorView scalars,
              const accel::Kernels& kernels,
              accel::Stream& stream) const override {
    accel::SgdArgs args;
    args.master = segment.master;
    args.momentum_buffer = segment.moments.empty() ? TensorView{} : segment.moments.front();
    args.grad = segment.gradient;
    args.model_copy = segment.model_copy;
    args.lr = hyper.lr;
    args.momentum = config_.momentum;
    args.dampening = config_.dampening;
    args.weight_decay = hyper.weight_decay;
    args.nesterov = config_.nesterov;
    args.t = t;
    kernels.sgd(args, scalars, stream);
  }

 private:
  config::OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(const config::OptimizerConfig& config) {
  return std::make_unique<Sgd>(config);
}

}  // namespace zero::optim
