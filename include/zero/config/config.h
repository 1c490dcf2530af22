#pragma once

#include <zero/core/dtype.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zero::config {

/// Block `zero_optimization.leaf_module`: modules that are gathered and reduced as a whole.
struct LeafModule {
  std::vector<std::string> names;          ///< whole names, such as "h.3.experts"
  std::vector<std::string> name_suffixes;  ///< ends of names
};

/// Block `zero_optimization` (source: docs/CONFIG.md). Fields have the names of their keys; sizes
/// are in elements.
struct ZeroOptimization {
  int stage = 0;
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  std::int64_t reduce_bucket_size = 500'000'000;
  bool allgather_partitions = true;
  std::int64_t allgather_bucket_size = 500'000'000;
  std::optional<bool> overlap_comm;  ///< unset: true
  std::int64_t sub_group_size = 1'000'000'000;
  std::optional<std::int64_t> stage3_prefetch_bucket_size;  ///< unset: the largest unit
  std::int64_t stage3_param_persistence_threshold = 100'000;
  std::int64_t stage3_model_persistence_threshold = INT64_MAX;
  std::int64_t stage3_max_live_parameters = 1'000'000'000;
  std::int64_t stage3_max_reuse_distance = 1'000'000'000;
  bool stage3_gather_16bit_weights_on_model_save = false;
  bool round_robin_gradients = false;
  std::int64_t zero_hpz_partition_size = 1;  ///< 0 and 1: none
  std::int64_t mics_shard_size = -1;         ///< below 1: the world
  bool ignore_unused_parameters = true;
  LeafModule leaf_module;
};

/// Block `optimizer`. `params` that the file does not give keep the defaults of PyTorch's and
/// DeepSpeed's classes.
struct OptimizerConfig {
  std::string type = "AdamW";  ///< as written in the file
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;      ///< Adagrad: 1e-10
  double lr_decay = 0.0;  ///< Adagrad
  double weight_decay = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  bool bias_correction = true;
  bool adam_w_mode = true;  ///< Adam: decoupled decay (AdamW) unless false
};

/// Block `fp16` (see zero::precision::LossScaler for the meaning of each).
struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0.0;  ///< 0 = dynamic
  int initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;
};

/// Block `scheduler`: type and its numeric parameters, checked against the schedule's own list of
/// names.
struct SchedulerConfig {
  std::string type;
  struct Param {
    std::string name;
    std::vector<double> values;  ///< one, or one a parameter group; booleans are 0 and 1
    std::string text;            ///< for parameters whose value is a word (warmup_type)
  };
  std::vector<Param> params;
};

/// Block `zero_optimization.offload_optimizer` or `offload_param`: where state lives, and how it is
/// swapped. Sizes are in elements.
struct OffloadConfig {
  std::string device = "none";  ///< none, cpu or nvme
  std::string nvme_path;
  std::int64_t buffer_count = 0;
  std::int64_t buffer_size = 100'000'000;
  std::int64_t max_in_cpu = 1'000'000'000;
  bool pin_memory = true;
  bool pipeline_read = false;
  bool pipeline_write = false;
  double ratio = 1.0;
};

/// Block `aio`: file IO of offload to nvme.
struct AioConfig {
  std::int64_t block_size = 1'048'576;  ///< bytes
  std::int64_t queue_depth = 8;
  std::int64_t intra_op_parallelism = 1;
  bool single_submit = false;
  bool overlap_events = true;
};

/// Block `activation_checkpointing`: blocks keep their inputs and run forward again in backward.
struct ActivationCheckpointing {
  bool enabled = false;                 ///< any of the block's keys below asks for it
  bool cpu_checkpointing = false;       ///< the inputs wait on the host
  std::int64_t number_checkpoints = 0;  ///< inputs kept; 0: one a block
};

/// A ds_config as the engine uses it: every value typed, checked and resolved for a world size.
struct Config {
  std::int64_t train_batch_size = 0;
  std::int64_t train_micro_batch_size_per_gpu = 0;
  std::int64_t gradient_accumulation_steps = 0;
  double gradient_clipping = 1.0;    ///< 0 = off
  std::int64_t steps_per_print = 0;  ///< 0 = silent
  bool wall_clock_breakdown = false;
  bool memory_breakdown = false;
  bool comms_logger = false;  ///< the block is there, whatever its `enabled` says
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  std::optional<DType> communication_data_type;  ///< unset: the model's dtype
  std::optional<DType> grad_accum_dtype;         ///< unset: the model's dtype
  Fp16Config fp16;
  bool bf16_enabled = false;
  bool bf16_check_grad_overflow = true;
  OptimizerConfig optimizer;
  std::optional<SchedulerConfig> scheduler;
  ZeroOptimization zero_optimization;
  OffloadConfig offload_optimizer;
  OffloadConfig offload_param;
  AioConfig aio;
  ActivationCheckpointing activation_checkpointing;
  bool checkpoint_async_save = false;  ///< checkpoint.async_save: training goes on during a save

  [[nodiscard]] DType model_dtype() const noexcept {
    return fp16.enabled ? DType::kF16 : bf16_enabled ? DType::kBF16 : DType::kF32;
  }
};

/// What the caller adds to a file: batch arguments of the command line and what "auto" stands for.
struct LoadOptions {
  int world = 1;  ///< data-parallel size: the N of the batch triple
  std::optional<std::int64_t> train_batch_size = {};
  std::optional<std::int64_t> train_micro_batch_size_per_gpu = {};
  std::optional<std::int64_t> gradient_accumulation_steps = {};
  std::optional<std::int64_t> hidden_size = {};  ///< of the model, for "auto" bucket sizes
  std::optional<double> lr = {};                 ///< for "auto" in optimizer and scheduler
  std::optional<double> weight_decay = {};
  std::optional<double> beta1 = {}, beta2 = {};
  std::optional<double> eps = {};
  std::optional<std::int64_t> warmup_num_steps = {};
  std::optional<std::int64_t> total_num_steps = {};
  std::optional<bool> fp16 = {}, bf16 = {};
  bool strict = false;  ///< unknown names at the top level are errors
};

/// Reads, checks and resolves a ds_config file for training.
/// Throws ConfigError (all faults of the file in one message), InputError if the file cannot be
/// read.
[[nodiscard]] Config load(const std::string& path, const LoadOptions& options);

/// The same for JSON text that is already in memory; `name` stands for the path in messages.
[[nodiscard]] Config parse(const std::string& text,
                           const std::string& name,
                           const LoadOptions& options);

}  // namespace zero::config
