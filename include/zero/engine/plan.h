#pragma once

#include <zero/config/config.h>
#include <zero/core/ledger.h>
#include <zero/core/module.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace zero {

/// Alignment of every parameter in a flat buffer and of every slice, in elements, whatever the
/// dtype.
inline constexpr std::int64_t kAlignElems = 64;

/// Where one kind of state lives.
enum class Home : std::uint8_t { kDevice, kHost, kNvme };

/// The memory that a home's values are read and written in.
[[nodiscard]] constexpr MemorySpace space_of(Home home) noexcept {
  return home == Home::kDevice ? MemorySpace::kDevice : MemorySpace::kHost;
}

/// One cell of the table in docs/ARCHITECTURE.md: is this state cut over the ranks, and where does
/// it live?
struct Placement {
  bool partitioned = false;
  Home home = Home::kDevice;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// A parameter's place in its flat buffer.
struct FlatParam {
  std::size_t param = 0;    ///< index into StatePlan::params
  std::int64_t offset = 0;  ///< first element in the flat buffer, a multiple of kAlignElems
  std::int64_t elems = 0;
};

/// The parameters of one unit that share (dtype, trainable, persistent): one contiguous buffer,
/// moved by one collective.
struct Flat {
  int unit = 0;
  bool trainable = true;
  bool persistent = false;  ///< stays gathered (stage3_param_persistence_threshold)
  std::vector<FlatParam> params{};
  std::int64_t padded_elems =
      0;  ///< multiple of shards × kAlignElems; the rest after the last parameter is zero
  std::int64_t slice_elems =
      0;  ///< padded ÷ shards; rank r owns slice s = r mod shards: [s · slice, (s + 1) · slice)

  Placement parameters{};
  Placement gradients{};
  Placement state{};      ///< master and moments; one home in all trainable flats
  int gather_class = -1;  ///< slot class that holds it gathered; −1: never needs one
  int gradient_class =
      -1;  ///< slots that backward writes its gradient to; −1: accumulates in place
  int transport_class =
      -1;  ///< slots that it is reduced in, in communication_dtype; −1: where it lies
};

/// A block, a run of small leaves, or a parameter that several modules use: gathered and reduced as
/// a whole.
struct Unit {
  std::string name;
  bool shared = false;  ///< holds one parameter that several modules use
  std::vector<int> flats;
};

/// Slots of one size: `count` buffers of `elems` elements.
struct SlotClass {
  std::int64_t elems = 0;
  int count = 0;
};

/// Elements [begin, begin + count) of each slice of a flat, reduced together with the rest of its
/// bucket.
struct BucketPiece {
  int flat = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
using Bucket = std::vector<BucketPiece>;

/// What the caller decides about a plan besides the ds_config.
struct PlanOptions {
  /// Keeps gradients whole on every rank and reduces them once a window, in stages 2 and 3 as in 0
  /// and 1: less traffic with accumulation, and what no_sync() needs. Its price is
  /// StatePlan::local_accumulation_bytes().
  bool local_accumulation = false;
};

/// Buffers in which an update meets what lives elsewhere, each for one tile of a flat: gradients on
/// their way to the home of master and moments, and 16-bit parameters on their way back.
struct UpdateTiles {
  int count = 0;  ///< 0: every update finds all it needs at one home
  std::int64_t elems = 0;
  MemorySpace space = MemorySpace::kDevice;  ///< of updates
  bool gradients = false;
  bool parameters = false;
};

/// Host buffers through which reduced gradients reach sums that live in host memory.
struct LandingTiles {
  int count = 0;  ///< 0: sums are on the device
  std::int64_t elems = 0;
  std::int64_t bytes = 0;  ///< of each: elements in the dtype in which they were reduced
};

/// Planned bytes of one rank by category; every rank holds the same.
using PlannedBytes = std::array<std::int64_t, kCategories>;

/// What each rank keeps, where, and what moves when: all that the engine executes. Pure arithmetic.
struct StatePlan {
  int ranks = 1;
  int shards = 1;      ///< ranks that states are cut over: all, or mics_shard_size (MiCS)
  int node_ranks = 1;  ///< zero_hpz_partition_size: ranks that keep a second copy of the gathered
                       ///< parameters between them until the next update; 1: none do
  int stage = 0;
  DType model_dtype = DType::kF32;
  DType accumulation_dtype = DType::kF32;   ///< data_types.grad_accum_dtype, default: the model's
  DType communication_dtype = DType::kF32;  ///< communication_data_type, default: the model's
  bool separate_master = false;  ///< false: fp32 parameters are their own master, at one home
  int moments = 2;               ///< fp32 states a parameter that the optimizer keeps
  bool reduce_at_boundary =
      false;                ///< gradients are summed locally and reduced once a step (stages 0, 1)
  bool all_reduce = false;  ///< gradients end up whole (stage 0), else each rank keeps its slice
  bool recompute = false;   ///< backward runs blocks forward again (activation_checkpointing)
  bool stash_activations = false;  ///< their inputs wait on the host (cpu_checkpointing)
  bool overlap = true;             ///< overlap_comm: reductions run beside the rest of backward
  /// prescale_gradients and gradient_predivide_factor: gradients are multiplied before and after a
  /// sum over the ranks. Both 1: a plain mean.
  double factor_before_reduction = 1.0;
  double factor_after_reduction = 1.0;
  std::int64_t fill_elems = 0;       ///< initial values pass through a buffer of so many at most
  std::int64_t prefetch_elems = 0;   ///< stage3_prefetch_bucket_size: gathered ahead of use
  std::int64_t max_reuse_elems = 0;  ///< stage3_max_reuse_distance: an idle unit stays until its
                                     ///< slot is needed, if it is used again within so many
  std::int64_t max_live_elems = 0;   ///< stage3_max_live_parameters: gathered at any time
  std::int64_t gather_bucket_elems = 0;  ///< allgather_bucket_size
  std::vector<ParamInfo> params;
  std::vector<Unit> units;
  std::vector<Flat> flats;
  std::vector<SlotClass> gather_classes;     ///< model dtype
  std::vector<SlotClass> gradient_classes;   ///< model dtype
  std::vector<SlotClass> transport_classes;  ///< communication dtype
  std::vector<Bucket> buckets;  ///< launch order: reverse of declaration, shared units last
  UpdateTiles tiles;
  LandingTiles landing;
  PlannedBytes bytes{};       ///< on the device
  PlannedBytes host_bytes{};  ///< in host memory

  /// Elements of trainable and frozen parameters, without padding.
  [[nodiscard]] std::int64_t elems() const;
  /// Sum of the flats' padded elements.
  [[nodiscard]] std::int64_t padded_elems() const;
  /// Sum of all categories, device and host.
  [[nodiscard]] std::int64_t total_bytes() const;
  /// What whole gradients would take on each rank beyond the plan; 0 where they are whole.
  [[nodiscard]] std::int64_t local_accumulation_bytes() const;
};

/// What a model needs for one micro-batch besides its states.
struct ActivationProfile {
  std::int64_t activation_bytes = 0;  ///< peak of saved activations and workspace
  std::int64_t stashed_bytes = 0;     ///< peak of activations that wait on the host
  std::int64_t scratch_bytes = 0;     ///< what kernels keep for themselves, in host memory
  std::int64_t batch_bytes = 0;       ///< inputs and targets on the device
};

/// How many fp32 states a parameter an optimizer keeps (Adam 2, SGD with momentum 1, without 0).
/// ConfigError if unknown.
[[nodiscard]] int optimizer_moments(const config::OptimizerConfig& optimizer);

/// Cuts the model into units and flats and decides placements, slots and buckets.
///
/// Layout depends on module tree, rank count and persistence only: stage and buckets never move a
/// parameter. This is the one function that knows what a ZeRO stage is.
[[nodiscard]] StatePlan make_plan(Module& model,
                                  const config::Config& config,
                                  const ActivationProfile& profile,
                                  int ranks,
                                  const PlanOptions& options = {});

/// Runs forward and backward on nothing and reports what they would take from the arena, and with
/// `stash` from host memory.
[[nodiscard]] ActivationProfile profile_activations(
    Trainable& model, const Batch& batch, DType dtype, bool stash, accel::Device& device);

/// The plan of training `model`: makes the modules that leaf_module names blocks, sets
/// recomputation as the config asks, learns the activations of one micro-batch, plans. What
/// initialize() executes. ConfigError for a leaf_module that names nothing.
[[nodiscard]] StatePlan plan_training(Trainable& model,
                                      const config::Config& config,
                                      int ranks,
                                      accel::Device& device,
                                      const PlanOptions& options = {});

/// The plan as JSON: units, flats, placements, bytes by category (docs/FORMATS.md).
[[nodiscard]] std::string to_json(const StatePlan& plan);

}  // namespace zero
