#pragma once

#include "engine/optim/optimizer.h"
#include "engine/unit/coordinator.h"
#include "engine/unit/state_mover.h"
#include <zero/accel/arena.h>
#include <zero/accel/host_stash.h>
#include <zero/engine/checkpoint.h>
#include <zero/engine/engine.h>
#include <zero/engine/loss_scaler.h>
#include <zero/engine/lr_schedule.h>

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
  accel::Buffer host_buffer;  ///< empty without StatePlan::stash_activations
  accel::HostStash stash;
};

/// A step whose scalars the device has not delivered yet.
struct PendingStep {
  StepResult result;           ///< what the host knows already
  accel::Buffer host_scalars;  ///< accel::StepScalars
  accel::Event ready;
};

/// A stream and the ranks that it talks to: two lanes do not wait for each other.
struct Lane {
  accel::Stream& stream;
  comm::Group& group;
};

class BackgroundSave;

/// Everything an engine owns, in the order in which it is built.
struct EngineParts {
  EngineParts(const InitializeOptions& options, config::Config config_, StatePlan plan_);
  EngineParts(const EngineParts&) = delete;
  EngineParts& operator=(const EngineParts&) = delete;
  EngineParts(EngineParts&&) = delete;
  EngineParts& operator=(EngineParts&&) = delete;
  ~EngineParts();

  World& world;
  Trainable& model;
  config::Config config;
  StatePlan plan;
  std::unique_ptr<accel::Stream> compute;
  std::unique_ptr<accel::Stream> comm;      ///< gathers and what steers the run
  std::unique_ptr<accel::Stream> reduce;    ///< reductions of gradients
  std::unique_ptr<accel::Stream> stash;     ///< activations to and from the host; may be nullptr
  std::unique_ptr<accel::Stream> save;      ///< of background saves; nullptr: saves block
  std::unique_ptr<comm::Group> save_group;  ///< theirs
  ShardGroups gather_groups;
  ShardGroups reduce_groups;
  UnitStore store;
  StateMover mover;
  Reducer reducer;
  Coordinator coordinator;
  std::unique_ptr<optim::UpdateRule> rule;
  std::vector<optim::Hyper>
      groups;  ///< by ParamInfo::group; lr: the group's own, before the schedule
  LossScaler scaler;
  std::unique_ptr<LrSchedule> schedule;  ///< nullptr: constant

  std::vector<accel::Buffer> module_buffers;  ///< fp32, in the order of buffers_of(model)
  std::vector<std::unique_ptr<ActivationMemory>> activations;
  std::map<std::string, ActivationProfile> profiles;  ///< by shape of the pass
  std::vector<std::shared_ptr<LossState>> losses;
  std::vector<OutstandingForward> outstanding;

  accel::Buffer limbs;    ///< int64 [2, kNormLimbs + 1]: squared norm and loss of the window
  accel::Buffer scalars;  ///< accel::StepScalars
  std::deque<PendingStep> pending;
  std::vector<accel::Buffer> spare_scalars;
  std::vector<StepResult> results;  ///< finished, not taken yet
  StepResult latest;

  std::optional<bool> forced_boundary;
  bool local_only = false;  ///< inside no_sync()
  std::uint64_t seed = 0;
  std::int64_t training_samples = 0;  ///< of all ranks: numbers the next
  std::int64_t micro_steps = 0;
  std::int64_t boundary_micro_steps = 0;  ///< micro_steps and training_samples
  std::int64_t boundary_samples = 0;      ///< at the latest boundary: what a checkpoint keeps
  std::int64_t window_micro_steps = 0;    ///< backwards since the last boundary
  bool backward_done = false;             ///< since the last step()
  std::int64_t global_steps = 0;
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t reported_step = 0;  ///< by report_step()
  int skipped_in_a_row = 0;
  int max_skipped_in_a_row = 0;
  std::unique_ptr<BackgroundSave> saving;  ///< the latest, until its end was waited for

  [[nodiscard]] bool at_boundary() const;
  /// Those that training uses.
  [[nodiscard]] std::vector<accel::Stream*> streams() const;
  /// Waits until they are idle; rethrows their errors.
  void synchronize();
  [[nodiscard]] TensorView limb_view() const;
  [[nodiscard]] TensorView limb_row(int row) const;
  [[nodiscard]] TensorView scalar_view() const;
  /// A loss state that nobody holds any more, or a new one.
  [[nodiscard]] std::shared_ptr<LossState> take_loss();
  /// The memory for the forward number `index` of those outstanding, at least as large as the
  /// profile says.
  [[nodiscard]] ActivationMemory& activation_memory(std::size_t index,
                                                    const ActivationProfile& profile);
  /// Memory of an evaluation, measured once for each shape by running it on nothing.
  [[nodiscard]] const ActivationProfile& evaluation_profile(
      const std::string& key, const std::function<void(Execution&)>& pass);
  [[nodiscard]] Execution execution(ActivationMemory& memory, Phase phase);
  void deliver_loss(LossState& loss);
  /// What the next training forward's random numbers depend on.
  [[nodiscard]] PassRandom next_random();
  /// Allocates and binds the model's buffers, with rank 0's initial values. Blocks; collective.
  void bind_module_buffers();

  // timeline.cpp
  void sample_counters();
  void report_step(const StepResult& result);

  // export.cpp
  void write_weights(const std::string& path, DType dtype);

  // checkpoint.cpp
  [[nodiscard]] Lane lane() const;
  [[nodiscard]] Lane save_lane() const;
  void together(Lane lane, const std::function<void()>& body);
  /// The states of a flat may change: a background save has read them.
  void wait_staged(int flat);
  /// Waits for the background save and throws what it threw.
  void finish_save();
  /// What a manifest says besides files and parameters, as of the latest boundary.
  [[nodiscard]] CheckpointManifest describe() const;
  void restore(const CheckpointManifest& manifest);
  void restore_buffers(const CheckpointManifest& manifest);

  // step.cpp
  /// Drops what an accumulation window has summed so far.
  void forget_window();
  void reduce_scalars();
  void update_parameters();
  void update_flat(int flat, const std::vector<optim::Hyper>& hyper, std::int64_t t);
  void update_range(int flat, Range range, const optim::Hyper& hyper, std::int64_t t);
  /// What the next update uses: the group's values, with rate and betas of the schedule.
  [[nodiscard]] std::vector<optim::Hyper> hyper_now() const;
  /// Takes over what the device has decided about earlier steps; with `wait` about all of them.
  /// Throws InputError with a diagnosis after too many skipped steps in a row.
  void settle(bool wait);
  void take_over(const StepResult& result);
  /// Says which step was skipped and why; the first few, then every hundredth.
  void report_skip(const StepResult& result, LossScaler::Change change);
  /// Name of the first parameter whose gradient is not finite on this rank; empty if there is none.
  [[nodiscard]] std::string first_bad_gradient();
};

/// Runs `pass` on a stream that drops everything and reports the peaks of its arena and, with
/// `stash`, of its host memory.
[[nodiscard]] ActivationProfile measure_pass(DType dtype,
                                             bool stash,
                                             accel::Device& device,
                                             Phase phase,
                                             const std::function<void(Execution&)>& pass);

/// Text that tells micro-batches of different memory needs apart.
[[nodiscard]] std::string shape_key(const Batch& batch);

}  // namespace zero
