#pragma once

#include <zero/accel/arena.h>
#include <zero/config/config.h>
#include <zero/core/module.h>
#include <zero/engine/launch.h>
#include <zero/engine/plan.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

struct EngineParts;
struct LossState;

/// The loss of one micro-batch on this rank. A handle: the number exists once the device has
/// computed it.
class Loss {
 public:
  /// Blocks until the forward is done; rethrows its error. Fp32 mean over the micro-batch's rows,
  /// not scaled.
  [[nodiscard]] float value() const;

 private:
  friend class Engine;
  std::shared_ptr<LossState> state_;
};

/// Hyper-parameters of a group of parameters; what is not set comes from the ds_config.
struct ParameterGroup {
  std::function<bool(const ParamInfo&)> member;  ///< the first group that takes a parameter has it
  std::optional<double> lr;
  std::optional<double> weight_decay;
};
/// A group without weight decay for biases and normalisation weights (parameters of one dimension).
[[nodiscard]] ParameterGroup no_decay_group();

/// Gives initial values of elements [begin, begin + values.size()) of a parameter; used in place of
/// ParamInfo::init.
using InitialValues =
    std::function<void(const ParamInfo&, std::int64_t begin, std::span<float> values)>;

/// Of a memory budget, what a plan may not use: buffers of checkpoints and exports (8 MiB), and
/// what libraries keep for themselves.
inline constexpr std::int64_t kBudgetReserveBytes = std::int64_t{10} << 20;

struct InitializeOptions {
  World& world;
  Trainable& model;
  std::string config;           ///< path of a ds_config.json
  config::LoadOptions batch{};  ///< overrides; `world` is filled in
  std::uint64_t seed = 1234;
  InitialValues initial_values{};
  std::vector<ParameterGroup> groups{};
  /// Of device and host together, kBudgetReserveBytes included; 0: none. Where the file's plan
  /// needs more, a higher stage, one unit at a time or recomputed activations are chosen, in this
  /// order; a run that takes more ends with ResourceError.
  std::int64_t memory_budget_bytes = 0;
  int max_skipped_in_a_row = 100;  ///< so many steps that are not finite end the training
  PlanOptions plan{};
  bool trace = false;  ///< record a timeline for Engine::write_trace()
};

/// What one optimizer step did.
struct StepResult {
  std::int64_t step = 0;   ///< global step, from 1
  double loss = 0.0;       ///< mean over ranks and micro-steps, before the update
  double grad_norm = 0.0;  ///< unscaled, before clipping; NaN if not finite
  double lr = 0.0;         ///< of the first group
  double loss_scale = 1.0;
  bool skipped = false;
};

struct LoadCheckpointOptions {
  /// Optimizer states, counters, loss scale and schedule too; false: the weights alone.
  bool optimizer_states = true;
};
struct LoadedCheckpoint {
  std::string tag;
  std::int64_t global_steps = 0;
  std::string client_state;  ///< as it was given to save_checkpoint
};

/// How a rank's partitioned units were made whole.
struct GatherStatistics {
  std::int64_t ahead = 0;            ///< units gathered before their use, along a trace
  std::int64_t on_demand = 0;        ///< units that their use had to wait for
  std::int64_t live_elems = 0;       ///< gathered now
  std::int64_t peak_live_elems = 0;  ///< at most stage3_max_live_parameters
};

/// Memory of one rank: device and host together, by category.
struct RankMemory {
  MemoryUse device;
  MemoryUse host;
};

/// A parameter as Engine::gather() hands it out.
struct WholeParameter {
  std::string name;
  std::vector<float> values;  ///< fp32, row-major
};

/// A scope in which gradients stay on their rank: see Engine::no_sync().
class NoSync {
 public:
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  NoSync(NoSync&&) = delete;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  friend class Engine;
  explicit NoSync(EngineParts& parts);
  EngineParts& parts_;
};

/// Trains a model under ZeRO. Made by initialize(); one per rank, used by one thread. All calls are
/// collective.
class Engine {
 public:
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) = delete;

  /// Forward of one micro-batch, to be followed by backward. Several forwards before their
  /// backwards: last in, first out.
  [[nodiscard]] Loss forward(const Batch& batch);
  /// Backward of the latest forward. InputError without a forward, twice after one, or out of
  /// order.
  void backward(const Loss& loss);
  /// Updates the parameters if this micro-step ends an accumulation window, else counts it.
  /// InputError without backward.
  void step();
  /// Until the returned object goes, backwards add to local sums and nothing is reduced; the first
  /// backward after it brings all of them along. The caller counts its own micro-batches: each
  /// loss is divided by gradient_accumulation_steps alone. The object may not outlive the engine.
  /// InputError, naming the bytes it takes, where the plan keeps gradients in slices (stages 2 and
  /// 3 without PlanOptions::local_accumulation), and for scopes in one another; step() inside is
  /// an InputError too. Source: torch DistributedDataParallel.no_sync.
  [[nodiscard]] NoSync no_sync();
  /// Forward only, in evaluation mode, at any time.
  [[nodiscard]] Loss evaluate(const Batch& batch);
  /// Runs `body` on the model in evaluation mode with parameters gathered as its events ask
  /// (sampling, probing). `body` runs twice when a shape is new (first on nothing, to size the
  /// memory) and must not synchronise.
  void infer(const std::string& shape_key, const std::function<void(Execution&)>& body);

  void train() noexcept { training_ = true; }
  void eval() noexcept { training_ = false; }

  [[nodiscard]] double lr() const;
  void set_lr(double lr);
  [[nodiscard]] double loss_scale() const;
  /// Norm of the latest step. Blocks until it is known.
  [[nodiscard]] double grad_norm();
  [[nodiscard]] bool was_step_applied();
  [[nodiscard]] bool is_gradient_accumulation_boundary() const;
  /// Forces (or forbids) the boundary for micro-steps from now on; nullopt: count again.
  void set_gradient_accumulation_boundary(std::optional<bool> boundary);
  [[nodiscard]] std::int64_t global_steps() const;
  [[nodiscard]] std::int64_t skipped_steps();
  [[nodiscard]] std::int64_t micro_steps() const;
  /// Samples of all ranks that the finished windows have taken: where data goes on after a load.
  [[nodiscard]] std::int64_t training_samples() const;

  /// Results of finished steps, oldest first; each is given once. With `wait` those in flight too.
  [[nodiscard]] std::vector<StepResult> take_results(bool wait);

  [[nodiscard]] const config::Config& config() const;
  [[nodiscard]] const StatePlan& plan() const;
  /// Bytes of every rank. Collective.
  [[nodiscard]] std::vector<RankMemory> memory_of_all_ranks();
  [[nodiscard]] comm::Traffic traffic() const;
  [[nodiscard]] const GatherStatistics& gather_statistics() const;

  /// Writes what the streams of all ranks have done so far as a Chrome trace (docs/FORMATS.md), to
  /// be looked at with Perfetto. Collective; rank 0 writes. InputError without
  /// InitializeOptions::trace, IoError on every rank if it cannot be written.
  void write_trace(const std::string& path);

  /// Writes all parameters as fp32 (master) safetensors with deterministic bytes. Collective; rank
  /// 0 writes.
  void export_weights(const std::string& path);
  /// The same in the model's dtype, each value rounded once. Source: DeepSpeed's save_16bit_model.
  void save_16bit_model(const std::string& path);
  // Whole state of one parameter, row-major, as fp32. All are collective and block; a setter takes
  // the same values on every rank. InputError for an unknown name, a frozen parameter where there
  // is no such state, or a wrong number of values. Source: DeepSpeed's safe_get_full_… and
  // safe_set_full_….

  /// The fp32 master (in fp32 training the parameter).
  [[nodiscard]] std::vector<float> full_fp32_parameter(std::string_view name);
  /// Writes the master and the 16-bit parameter made from it.
  void set_full_fp32_parameter(std::string_view name, std::span<const float> values);
  /// The mean over ranks and micro-steps, without the loss scale, before clipping. Between the
  /// backward that ends an accumulation window and step(); InputError at other times.
  [[nodiscard]] std::vector<float> full_gradient(std::string_view name);
  void set_full_gradient(std::string_view name, std::span<const float> values);
  /// Names of what the optimizer keeps for each parameter: exp_avg, exp_avg_sq, momentum_buffer, …
  [[nodiscard]] std::vector<std::string> optimizer_states() const;
  [[nodiscard]] std::vector<float> full_optimizer_state(std::string_view name,
                                                        std::string_view state);
  void set_full_optimizer_state(std::string_view name,
                                std::string_view state,
                                std::span<const float> values);
  /// Calls `body` on every rank with the named parameters whole. With `modifier` what that rank
  /// leaves in `values` becomes the parameters on all; else changes are lost. Source: DeepSpeed's
  /// zero.GatheredParameters.
  void gather(std::span<const std::string> names,
              const std::function<void(std::vector<WholeParameter>&)>& body,
              std::optional<int> modifier = std::nullopt);

  /// Writes DIR/TAG (global_step<N> if empty) and returns the tag. Collective; the folder is shared
  /// by all ranks. Crash-safe: until everything is on the disk the checkpoint before it stands, an
  /// existing tag is replaced as a whole. Inside an accumulation window it saves the latest
  /// boundary. IoError on every rank if one of them fails: training may go on. With
  /// checkpoint.async_save it returns before the checkpoint is complete: a background save first
  /// waits for the one before it, and its failure is thrown by the next call that saves, loads or
  /// finishes. Format: docs/FORMATS.md.
  std::string save_checkpoint(const std::string& dir,
                              const std::string& tag = {},
                              const std::string& client_state = {});
  /// Waits until the latest save is complete; IoError if it failed. Collective.
  void finish_checkpoint();
  /// Loads what any number of ranks in any stage and precision has saved; without a tag the latest.
  /// Each rank reads the ranges that it keeps. The window starts anew. InputError, before a value
  /// is changed, for a damaged file or another model or optimizer.
  LoadedCheckpoint load_checkpoint(const std::string& dir,
                                   const std::string& tag = {},
                                   const LoadCheckpointOptions& options = {});

  /// Waits until everything enqueued so far is done; rethrows errors.
  void synchronize();

 private:
  friend std::unique_ptr<Engine> initialize(const InitializeOptions& options);
  explicit Engine(std::unique_ptr<EngineParts> parts);
  std::unique_ptr<EngineParts> parts_;
  bool training_ = true;
};

/// Reads the config, plans, cuts the model into units, allocates and initialises this rank's share.
/// Collective.
[[nodiscard]] std::unique_ptr<Engine> initialize(const InitializeOptions& options);

}  // namespace zero
