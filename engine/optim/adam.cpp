#include "engine/optim/optimizer.h"

namespace zero::optim {
namespace {

/// Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019); the formulas stand at
/// Kernels::adam.
class Adam final : public UpdateRule {
 public:
  Adam(const config::OptimizerConfig& config, bool decoupled)
      : config_(config), decoupled_(decoupled) {}

  [[nodiscard]] std::vector<std::string> states() const override {
    return {"exp_avg", "exp_avg_sq"};
  }

  void update(const Segment& segment,
              const Hyper& hyper,
              std::int64_t t,
              ConstTensorView scalars,
              const accel::Kernels& kernels,
              accel::Stream& stream) const override {
    accel::AdamArgs args;
    args.master = segment.master;
    args.exp_avg = segment.moments.at(0);
    args.exp_avg_sq = segment.moments.at(1);
    args.grad = segment.gradient;
    args.model_copy = segment.model_copy;
    args.lr = hyper.lr;
    args.beta1 = hyper.betas ? hyper.betas->beta1 : config_.beta1;
    args.beta2 = hyper.betas ? hyper.betas->beta2 : config_.beta2;
    args.eps = config_.eps;
    args.weight_decay = hyper.weight_decay;
    args.decoupled = decoupled_;
    args.bias_correction = config_.bias_correction;
    args.t = t;
    kernels.adam(args, scalars, stream);
  }

 private:
  config::OptimizerConfig config_;
  bool decoupled_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adam(const config::OptimizerConfig& config, bool decoupled) {
  return std::make_unique<Adam>(config, decoupled);
}

}  // namespace zero::optim
