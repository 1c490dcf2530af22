#pragma once

#include "engine/optim/optimizer.h"
#include "engine/unit/coordinator.h"
#include <zero/accel/arena.h>
#include <zero/engine/engine.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zero {

/// A loss on its way from the device.
struct LossState {
  accel::Buffer device_value;  ///< fp32 [1]
  accel::Buffer host_value;    ///< fp32 [1]
  accel::Event ready;          ///< the host value may be read
  accel::Event idle;           ///< the device value is not needed any more
};

/// A forward whose backward has not come yet.
struct OutstandingForward {
  std::shared_ptr<LossState> loss;
  std::vector<int> uses;  ///< of each parameter
  std::size_t arena = 0;  ///< index of the arena that holds its activations
};

/// Activations of one forward. Forwards that wait for their backward have one each.
struct ActivationMemory {
  accel::Buffer buffer;
  accel::Arena arena;
};

/// A step whose scalars the device has not delivered yet.
struct PendingStep {
  StepResult result;           ///< what the host knows already
  accel::Buffer host_scalars;  ///< accel::StepScalars
  accel::Event ready;
};

/// Everything an engine owns, in the order in which it is built.
struct EngineParts {
  EngineParts(const InitializeOptions& options, config::Config config_, StatePlan plan_);

  World& world;
  Trainable& model;
  config::Config config;
  StatePlan plan;
  std::unique_ptr<accel::Stream> compute;
  std::unique_ptr<accel::Stream> comm;
  UnitStore store;
  Reducer reducer;
  Coordinator coordinator;
  std::unique_ptr<optim::UpdateRule> rule;
  std::vector<optim::Hyper> groups;  ///< by ParamInfo::group

  std::vector<std::unique_ptr<ActivationMemory>> activations;
  std::map<std::string, std::int64_t> profiles;  ///< arena bytes by shape of the pass
  std::vector<std::shared_ptr<LossState>> losses;
  std::vector<OutstandingForward> outstanding;

  accel::Buffer limbs;    ///< int64 [2, kNormLimbs + 1]: squared norm and loss of the window
  accel::Buffer scalars;  ///< accel::StepScalars
  std::deque<PendingStep> pending;
  std::vector<accel::Buffer> spare_scalars;
  std::vector<StepResult> results;  ///< finished, not taken yet
  StepResult latest;

  std::optional<bool> forced_boundary;
  std::int64_t micro_steps = 0;
  std::int64_t window_micro_steps = 0;  ///< backwards since the last boundary
  bool backward_done = false;           ///< since the last step()
  std::int64_t global_steps = 0;
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;

  [[nodiscard]] bool at_boundary() const;
  [[nodiscard]] TensorView limb_view() const;
  [[nodiscard]] TensorView limb_row(int row) const;
  [[nodiscard]] TensorView scalar_view() const;
  /// A loss state that nobody holds any more, or a new one.
  [[nodiscard]] std::shared_ptr<LossState> take_loss();
  /// The memory for the forward number `index` of those outstanding, at least `bytes` large.
  [[nodiscard]] ActivationMemory& activation_memory(std::size_t index, std::int64_t bytes);
  /// Arena bytes of a pass, measured once for each shape by running it on nothing.
  [[nodiscard]] std::int64_t arena_bytes(const std::string& key,
                                         const std::function<void(Execution&)>& pass);
  [[nodiscard]] Execution execution(accel::Arena& arena, Phase phase);
  void deliver_loss(LossState& loss);

  // step.cpp
  void reduce_scalars();
  void update_parameters(std::int64_t t);
  void update_flat(int flat, std::int64_t t);
  /// Takes over what the device has decided about earlier steps; with `wait` about all of them.
  void settle(bool wait);
};

/// Runs `pass` on a stream that drops everything and reports the peak of its arena in bytes.
[[nodiscard]] std::int64_t measure_pass(DType dtype,
                                        accel::Device& device,
                                        Phase phase,
                                        const std::function<void(Execution&)>& pass);

/// Text that tells micro-batches of different memory needs apart.
[[nodiscard]] std::string shape_key(const Batch& batch);

}  // namespace zero
