#pragma once

#include <zero/engine/plan.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// What fits where, how long a step takes, and what to write into the ds_config: `zero plan`.
/// Formulas and the source of every constant: docs/PLAN.md. Pure arithmetic; any thread may call.
namespace zero::planner {

/// Sizes of a decoder-only transformer.
struct ModelShape {
  std::string name;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;   ///< grouped-query attention; = heads without
  std::int64_t head_size = 0;  ///< hidden ÷ heads unless the model says otherwise
  std::int64_t ffn = 0;        ///< width of the MLP
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;  ///< rows of a learned position table; 0: none
  std::int64_t sequence = 0;   ///< tokens a sample
  bool gated = false;          ///< MLP with a gate: three matrices instead of two
  bool tied = true;            ///< the head uses the embedding's weights
  bool biases = true;          ///< projections and norms have biases
  /// Above 0: weights are frozen and each matrix of a layer has an adapter of this rank (LoRA: Hu
  /// et al. 2021).
  std::int64_t lora_rank = 0;

  /// Without adapters.
  [[nodiscard]] std::int64_t layer_params() const;
  [[nodiscard]] std::int64_t adapter_params() const;  ///< of all layers
  [[nodiscard]] std::int64_t trainable_params() const {
    return lora_rank > 0 ? adapter_params() : params();
  }
  /// Without adapters.
  [[nodiscard]] std::int64_t params() const;
};

/// `text`: a known name, a HuggingFace config.json, "layers=…,hidden=…[,heads=…,seq=…,vocab=…]", or
/// a number of parameters ("20B"), for which a usual shape is assumed. Throws InputError.
[[nodiscard]] ModelShape parse_model(const std::string& text);
[[nodiscard]] std::vector<std::string> known_models();
/// Refuses a shape that no model can have, or that is beyond 10^15 parameters. Throws InputError.
void check_shape(const ModelShape& shape);

/// One kind of accelerator: what a process can use, and what it was measured to reach.
struct Gpu {
  std::string name;
  double memory_bytes = 0;           ///< usable by the process
  double peak_flops = 0;             ///< dense 16-bit FLOPs/s
  double plain_flops = 0;            ///< reached under DDP
  double zero_flops = 0;             ///< reached under ZeRO
  double parallel_flops = 0;         ///< reached under tensor parallelism by wide models
  double narrow_parallel_flops = 0;  ///< the same, hidden < kWideHidden
  double hbm_bytes_s = 0;
  double node_bytes_s = 0;    ///< of collectives of one rank within a node (bus bandwidth)
  double tensor_bytes_s = 0;  ///< of tensor-parallel all-reduces within a node
  double inter_bytes_s = 0;   ///< of one rank between nodes, where the user does not say
  double host_bytes_s = 0;    ///< host link of one rank, each way
  double exposed = 0.5;       ///< of tensor- and data-parallel traffic of tensor x pipeline set-ups
};
/// Hidden sizes from which matrix products fill a device (Narayanan et al. 2021, table 1).
inline constexpr std::int64_t kWideHidden = 12288;

/// `text`: a known name or "memory=80GB,flops=312T[,link=…,host=…,hbm=…]". Throws InputError.
[[nodiscard]] Gpu parse_gpu(const std::string& text);
[[nodiscard]] std::vector<std::string> known_gpus();
/// "80GB", "1.5TiB", "200Gb" (bits) → bytes; a unit is required. `option` is for the message.
[[nodiscard]] double parse_bytes(const std::string& text, const std::string& option);

struct Cluster {
  Gpu gpu;
  std::int64_t nodes = 1;
  std::int64_t gpus_per_node = 1;
  double host_bytes = 0;     ///< memory of a node; 0: unknown, offload is not considered
  double nvme_bytes = 0;     ///< of a node
  double nvme_bytes_s = 0;   ///< of a node, reading and writing at once
  double inter_bytes_s = 0;  ///< of one rank between nodes
  [[nodiscard]] std::int64_t gpus() const { return nodes * gpus_per_node; }
};
/// Throws InputError for a cluster that cannot exist.
void check_cluster(const Cluster& cluster);

struct Workload {
  std::int64_t batch = 0;        ///< samples a step; 0: one micro-batch a rank
  std::int64_t micro_batch = 0;  ///< samples a rank at a time; 0: chosen (1 without a batch)
  DType precision = DType::kBF16;
  std::optional<bool> recompute;  ///< unset: both are tried
  bool attention_matrix = false;  ///< attention keeps its probabilities (no flash attention)
  bool model_parallel = true;     ///< tensor × pipeline set-ups are considered
};

enum class Offload : std::uint8_t { kNone, kCpu, kNvme };

/// One way to train: a row of the table.
struct Setup {
  int stage = 0;
  Offload offload_optimizer = Offload::kNone;
  Offload offload_param = Offload::kNone;
  bool recompute = false;
  bool lean =
      false;  ///< one unit at a time: no prefetch, no overlap (stage 3, where nothing else fits)
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t virtual_stages = 1;
  std::int64_t data = 1;
  std::int64_t micro_batch = 1;
  std::int64_t accumulation = 1;  ///< micro-batches a rank or pipeline and step

  [[nodiscard]] bool model_parallel() const { return tensor * pipeline > 1; }
  [[nodiscard]] std::string name() const;
  /// Smaller is simpler: DDP, ZeRO 1 to 3, offload, tensor × pipeline.
  [[nodiscard]] std::int64_t complexity() const;
};

/// Parts of a step. Those named exposed add to the total, others run beside.
struct Seconds {
  double compute = 0;
  double bubble = 0;
  double communication = 0;
  double communication_exposed = 0;
  double copies = 0;  ///< between device and host
  double copies_exposed = 0;
  double io = 0;  ///< NVMe
  double io_exposed = 0;
  double update = 0;  ///< of the optimizer
  [[nodiscard]] double total() const {
    return compute + bubble + communication_exposed + copies_exposed + io_exposed + update;
  }
};

/// A set-up on a cluster: bytes by category, and whether that is there.
struct Estimate {
  Setup setup;
  PlannedBytes device{};        ///< of one rank
  PlannedBytes host{};          ///< of one node
  std::int64_t nvme_bytes = 0;  ///< of one node
  Seconds seconds;
  double tokens_s = 0;         ///< of the whole cluster
  double utilisation = 0;      ///< model FLOPs (causal, without recomputation) ÷ peak
  double flops_gpu = 0;        ///< FLOPs/s of one GPU as papers count them: whole attention matrix,
                               ///< with recomputation where there is any
  double shortfall_bytes = 0;  ///< of what is scarcest; ≤ 0: it fits
  std::string scarce;          ///< "device", "host" or "NVMe": what is missing, or nearest to it
  bool tight = false;          ///< more than 95 % of the device

  [[nodiscard]] bool fits() const { return shortfall_bytes <= 0; }
  [[nodiscard]] double device_bytes() const;
  [[nodiscard]] double host_bytes() const;
};

/// Evaluates set-ups of one model; keeps what is the same for all. Not thread-safe.
class Evaluator {
 public:
  Evaluator(ModelShape shape, Cluster cluster, Workload workload);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  Evaluator(Evaluator&&) = delete;
  Evaluator& operator=(Evaluator&&) = delete;

  /// `base`: limits and buckets of a ds_config; unset: the ones that `write_ds_config` would write.
  [[nodiscard]] Estimate evaluate(const Setup& setup,
                                  const std::optional<config::Config>& base = {}) const;
  [[nodiscard]] const ModelShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const Cluster& cluster() const noexcept { return cluster_; }
  [[nodiscard]] const Workload& workload() const noexcept { return workload_; }
  /// Samples a step.
  [[nodiscard]] std::int64_t batch() const;

 private:
  void count_states(Estimate& estimate, const config::Config* base) const;
  /// The engine's plan of a set-up, without activations; made once.
  [[nodiscard]] const StatePlan& plan_of(const Setup& setup) const;
  ModelShape shape_;
  Cluster cluster_;
  Workload workload_;
  std::unique_ptr<Module> model_;
  mutable std::map<std::array<int, 4>, StatePlan> plans_;
};

/// The ds_config values of a set-up, as the engine reads them: what plan and file agree on.
[[nodiscard]] config::Config config_of(const Setup& setup,
                                       const ModelShape& shape,
                                       const Workload& workload);
/// What is kept of a layer for backward: a row of Korthikanti et al. 2022, table 2.
struct ActivationScheme {
  std::int64_t tensor = 1;
  bool sequence_parallel =
      false;                      ///< norms and dropouts are cut over the tensor-parallel ranks too
  bool attention_matrix = false;  ///< kept; flash attention and selective recomputation do not
  bool recompute = false;         ///< the layer's input alone
};
/// Bytes of one layer's 16-bit activations of one micro-batch, with dropout masks.
[[nodiscard]] double layer_activation_bytes(const ModelShape& shape,
                                            std::int64_t micro_batch,
                                            const ActivationScheme& scheme);
/// Bytes of one micro-batch's activations under ZeRO: layers, head and, with recomputation, the one
/// layer that is alive.
[[nodiscard]] double activation_bytes(const ModelShape& shape,
                                      std::int64_t micro_batch,
                                      bool recompute,
                                      const Workload& workload);

struct Plan {
  std::vector<Estimate> candidates;  ///< the best micro-batch of each set-up, by complexity
  int recommended = -1;              ///< index; −1: nothing fits
  std::vector<std::string> reasons;  ///< one line each: why, and what would have to change
};
[[nodiscard]] Plan choose(const Evaluator& evaluator);

/// The ds_config of a ZeRO set-up as JSON, which `zero validate` accepts. Throws InputError for a
/// tensor × pipeline set-up, which no ds_config describes.
[[nodiscard]] std::string write_ds_config(const Estimate& estimate, const Evaluator& evaluator);

/// An existing ds_config on a cluster, and the smallest changes that make it fit or faster.
struct Fit {
  Estimate now;
  struct Change {
    Estimate then;
    std::vector<std::string> diff;  ///< lines "- path: value" and "+ path: value"
  };
  std::vector<Change> changes;  ///< best first
};
[[nodiscard]] Fit fit_ds_config(const std::string& path, const Evaluator& evaluator);

/// Tables for people, JSON for programs, a drawing.
[[nodiscard]] std::string plan_text(const Plan& plan, const Evaluator& evaluator);
[[nodiscard]] std::string plan_json(const Plan& plan, const Evaluator& evaluator);
[[nodiscard]] std::string fit_text(const Fit& fit, const Evaluator& evaluator);
[[nodiscard]] std::string fit_json(const Fit& fit, const Evaluator& evaluator);
/// Memory by category of each set-up beside the limit, and device memory over world sizes, as SVG.
[[nodiscard]] std::string plan_svg(const Plan& plan, const Evaluator& evaluator);

/// What DeepSpeed's estimate_zero2/3_model_states_mem_needs compute, in bytes.
struct DeepSpeedNeed {
  std::string options;
  double host_bytes = 0;
  double gpu_bytes = 0;
};
[[nodiscard]] std::vector<DeepSpeedNeed> deepspeed_needs(
    int stage, double params, double largest_layer, std::int64_t gpus_per_node, std::int64_t nodes);
/// What ZeRO-Infinity needs (Rajbhandari et al. 2021, section 3), with a checkpoint each layer.
struct InfinityNeeds {
  double state_bytes = 0;               ///< 20 a parameter: fp32 gradients too
  double activation_bytes = 0;          ///< of a node, kept whole
  double checkpoint_bytes = 0;          ///< of a node
  double working_state_bytes = 0;       ///< of a GPU: the largest operator
  double working_activation_bytes = 0;  ///< of a GPU: between two checkpoints
};
[[nodiscard]] InfinityNeeds infinity_needs(const ModelShape& shape,
                                           std::int64_t micro_batch,
                                           std::int64_t gpus_per_node);
/// FLOPs that each byte moved allows, by what is moved (the same, section 4).
struct Intensities {
  double params_and_grads = 0;
  double optimizer_states = 0;
  double checkpoints = 0;
};
[[nodiscard]] Intensities intensities(const ModelShape& shape, std::int64_t micro_batch);
/// Share of `peak_flops` that is left if nothing overlaps (the same, equation 6).
[[nodiscard]] double efficiency(double flops_per_byte, double bytes_s, double peak_flops);

/// Both tables in the form that DeepSpeed prints, with this engine's exact bytes beside, and what
/// ZeRO-Infinity needs.
[[nodiscard]] std::string estimate_text(const Evaluator& evaluator);

}  // namespace zero::planner
