#pragma once

#include <zero/accel/kernels.h>
#include <zero/config/config.h>
#include <zero/core/tensor_view.h>
#include <zero/engine/lr_schedule.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zero::optim {

/// Elements of one flat that one parameter group's hyper-parameters apply to. All views have the
/// same length.
struct Segment {
  TensorView master;                ///< fp32, updated in place
  std::vector<TensorView> moments;  ///< fp32, as many as moments()
  ConstTensorView gradient;         ///< accumulation dtype, times the loss scale
  TensorView
      model_copy;  ///< the parameter in its 16-bit dtype; empty where master is the parameter
};

/// What differs between parameter groups.
struct Hyper {
  double lr = 0.0;
  double weight_decay = 0.0;
  std::optional<LrSchedule::Betas> betas{};  ///< where a schedule moves them; else the config's
};

/// An element-wise update rule over flat slices: it may be cut anywhere.
class UpdateRule {
 public:
  UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;
  UpdateRule(UpdateRule&&) = delete;
  UpdateRule& operator=(UpdateRule&&) = delete;
  virtual ~UpdateRule() = default;

  /// Names of the fp32 states that it keeps for each parameter, as PyTorch calls them.
  [[nodiscard]] virtual std::vector<std::string> states() const = 0;
  /// How many they are.
  [[nodiscard]] int moments() const { return static_cast<int>(states().size()); }
  /// Enqueues the update number `t` (from 1, skipped steps not counted). Unscale and clip factor
  /// and the skip flag are read from `scalars` (accel::StepScalars) on the device.
  virtual void update(const Segment& segment,
                      const Hyper& hyper,
                      std::int64_t t,
                      ConstTensorView scalars,
                      const accel::Kernels& kernels,
                      accel::Stream& stream) const = 0;
};

/// The rule that `optimizer.type` names (any case). ConfigError for one that does not exist here.
[[nodiscard]] std::unique_ptr<UpdateRule> make_update_rule(const config::OptimizerConfig& config);

[[nodiscard]] std::unique_ptr<UpdateRule> make_adam(const config::OptimizerConfig& config,
                                                    bool decoupled);
[[nodiscard]] std::unique_ptr<UpdateRule> make_sgd(const config::OptimizerConfig& config);
[[nodiscard]] std::unique_ptr<UpdateRule> make_lion(const config::OptimizerConfig& config);
[[nodiscard]] std::unique_ptr<UpdateRule> make_adagrad(const config::OptimizerConfig& config);

}  // namespace zero::optim
