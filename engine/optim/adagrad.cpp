#include "engine/optim/optimizer.h"

namespace zero::optim {
namespace {

/// Adagrad (Duchi et al. 2011), as torch.optim.Adagrad defines it; the formula stands at
/// Kernels::adagrad.
class Adagrad final : public UpdateRule {
 public:
  explicit Adagrad(const config::OptimizerConfig& config) : config_(config) {}

  [[nodiscard]] std::vector<std::string> states() const override { return {"sum"}; }

  void update(const Segment& segment,
              const Hyper& hyper,
              std::int64_t t,
              ConstTensorView scalars,
              const accel::Kernels& kernels,
              accel::Stream& stream) const override {
    accel::AdagradArgs args;
    args.master = segment.master;
    args.sum = segment.moments.at(0);
    args.grad = segment.gradient;
    args.model_copy = segment.model_copy;
    args.lr = hyper.lr / (1.0 + static_cast<double>(t - 1) * config_.lr_decay);
    args.eps = config_.eps;
    args.weight_decay = hyper.weight_decay;
    kernels.adagrad(args, scalars, stream);
  }

 private:
  config::OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adagrad(const config::OptimizerConfig& config) {
  return std::make_unique<Adagrad>(config);
}

}  // namespace zero::optim
