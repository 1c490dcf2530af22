#include "engine/optim/optimizer.h"

namespace zero::optim {
namespace {

/// Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2); the formula stands at Kernels::lion.
class Lion final : public UpdateRule {
 public:
  explicit Lion(const config::OptimizerConfig& config) : config_(config) {}

  [[nodiscard]] std::vector<std::string> states() const override { return {"exp_avg"}; }

  void update(const Segment& segment,
              const Hyper& hyper,
              std::int64_t /*t*/,
              ConstTensorView scalars,
              const accel::Kernels& kernels,
              accel::Stream& stream) const override {
    accel::LionArgs args;
    args.master = segment.master;
    args.exp_avg = segment.moments.at(0);
    args.grad = segment.gradient;
    args.model_copy = segment.model_copy;
    args.lr = hyper.lr;
    args.beta1 = hyper.betas ? hyper.betas->beta1 : config_.beta1;
    args.beta2 = hyper.betas ? hyper.betas->beta2 : config_.beta2;
    args.weight_decay = hyper.weight_decay;
    kernels.lion(args, scalars, stream);
  }

 private:
  config::OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_lion(const config::OptimizerConfig& config) {
  return std::make_unique<Lion>(config);
}

}  // namespace zero::optim
