#include "config/keys.h"

#include <array>

namespace zero::config {
namespace {

using enum Kind;
using enum Level;
using F = Feature;

constexpr Key row(std::string_view name,
                  Kind kind,
                  std::string_view fallback,
                  std::string_view meaning,
                  std::string_view allowed = {}) {
  return Key{name, kind, fallback, kForeign, F::kIdle, meaning, "no effect here", allowed};
}
constexpr Key gate(std::string_view name,
                   Kind kind,
                   std::string_view fallback,
                   Feature feature,
                   std::string_view meaning) {
  return Key{name, kind, fallback, kForeign, feature, meaning, "", "", {.gate = true}};
}
constexpr Key checked(Key key) {
  key.extras.checked = true;
  return key;
}

constexpr std::array kTensorParallel = {
    gate("autotp_size",
         kInt,
         "0",
         F::kTensorParallel,
         "ranks that share one copy of the model; 0 and 1: off"),
    row("dtype", kNever, "null", "DeepSpeed accepts no value from a file"),
    row("tp_overlap_comm", kBool, "false", "overlap the sums of tensor parallelism"),
    row("preset_model", kString, "null", "known layout of a model"),
    row("partition_config", kObject, "null", "which layers are cut how"),
    row("injection_policy_tuple", kList, "null", "layers whose results are summed"),
    row("keep_module_on_host", kBool, "false", "keep the whole module in host memory"),
    Key{"replace_with_kernel_inject",
        kBool,
        "false",
        kForeign,
        F::kIdle,
        "fused inference kernels",
        "no effect here",
        "",
        {.other_name = "kernel_inject"}},
};
constexpr std::array kTp = {
    row("tp_size", kInt, "1", "ranks of a group"),
    row("tp_grain_size", kInt, "1", "granularity of a cut"),
    row("mpu", kAny, "null", "an object of the caller"),
    row("tp_group", kAny, "null", "an object of the caller"),
};
constexpr std::array kPipeline = {
    row("stages", kAny, "\"auto\"", "not used: the module decides"),
    row("partition", kAny, "\"best\"", "not used: the module decides"),
    row("seed_layers", kAny, "false", "not used"),
    row("activation_checkpoint_interval", kInt, "0", "layers between activation checkpoints"),
    row("pipe_partitioned", kBool, "true", "cut what is sent between stages"),
    row("grad_partitioned", kBool, "true", "cut the gradients sent between stages"),
    row("use_reentrant", kBool, "null", "kind of recomputation"),
};
constexpr std::array kExpert = {
    gate("enabled", kBool, "false", F::kExpertParallel, "distribute experts over ranks"),
    row("autoep_size", kInt, "1", "ranks of an expert group"),
    row("expert_tensor_parallel_size", kInt, "1", "must be 1"),
    row("validate_folding_routing", kBool, "false", "check the routing"),
    row("preset_model", kString, "null", "known layout of a model"),
    row("moe_layer_pattern", kString, "null", "which modules are mixtures"),
    row("expert_pattern", kString, "null", "which modules are experts"),
    row("router_pattern", kString, "null", "which module routes"),
    row("use_grouped_mm", kBool, "true", "grouped matrix products"),
    row("disable_triton_grouped_mm", kBool, "false", "not by Triton"),
    row("route_norm", kBool, "null", "normalise the weights of routes"),
    row("route_scale", kFloat, "1.0", "scale of the weights"),
    row("score_apply", kString, "\"auto\"", "weights before or after the experts"),
    row("combine_impl", kString, "\"auto\"", "how results are combined"),
    row("num_expert_groups", kInt, "null", "groups of experts"),
    row("num_limited_groups", kInt, "null", "groups a token may use"),
    row("score_func", kString, "\"auto\"", "softmax or sigmoid"),
    row("top_k", kAny, "\"auto\"", "experts a token"),
    checked(row("load_balance_coeff", kNever, "null", "must be absent or null")),
    row("routed_scaling_factor", kAny, "\"auto\"", "scale of routed results"),
    row("expert_w1", kString, "null", "name of a weight"),
    row("expert_w2", kString, "null", "name of a weight"),
    row("expert_w3", kString, "null", "name of a weight"),
    row("num_experts_attr", kString, "null", "name of an attribute"),
    row("top_k_attr", kString, "null", "name of an attribute"),
    row("has_shared_experts", kBool, "null", "experts that every token uses"),
    row("shared_experts_pattern", kString, "null", "which modules they are"),
    row("shared_experts_gate_pattern", kString, "null", "which module weighs them"),
};
constexpr std::array kAutotuning = {
    row("enabled", kBool, "false", "search for a fast configuration; done by DeepSpeed's launcher"),
    row("fast", kBool, "true", "tune the micro-batch only"),
    row("results_dir", kString, "\"autotuning_results\"", "folder"),
    row("exps_dir", kString, "\"autotuning_exps\"", "folder"),
    row("overwrite", kBool, "true", "overwrite results"),
    row("start_profile_step", kInt, "3", "first step measured"),
    row("end_profile_step", kInt, "5", "last step measured"),
    row("metric", kString, "\"throughput\"", "what is optimised"),
    row("metric_path", kString, "null", "file of the metric"),
    row("tuner_type", kString, "\"gridsearch\"", "gridsearch, random or model_based"),
    row("tuner_early_stopping", kInt, "5", "experiments without gain"),
    row("tuner_num_trials", kInt, "50", "experiments in all"),
    row("arg_mappings", kObject, "null", "arguments of the user's program"),
    row("model_info", kObject, "null", "size of the model"),
    row("model_info_path", kString, "null", "file with it"),
    row("mp_size", kInt, "1", "model parallelism"),
    row("max_train_batch_size", kInt, "null", "limit"),
    row("min_train_batch_size", kInt, "1", "limit"),
    row("max_train_micro_batch_size_per_gpu", kInt, "1024", "limit"),
    row("min_train_micro_batch_size_per_gpu", kInt, "1", "limit"),
    row("num_tuning_micro_batch_sizes", kInt, "3", "sizes tried"),
};
constexpr std::array kCompile = {
    gate("deepcompile", kBool, "false", F::kDeepCompile, "DeepSpeed's compiler passes"),
    row("free_activation", kBool, "false", "free activations early"),
    row("free_activation_threshold", kInt, "10485760", "from this size on"),
    row("offload_activation", kBool, "false", "activations to the host"),
    row("offload_activation_pin_memory", kBool, "true", "into page-locked memory"),
    row("offload_opt_states", kBool, "false", "moments to the host"),
    row("double_buffer", kBool, "true", "two buffers"),
    row("symmetric_memory", kBool, "false", "PyTorch's symmetric memory"),
    row("debug_log", kBool, "false", "log of the passes"),
    row("offload_parameters", kBool, "false", "parameters to the host"),
    row("sync_before_reduce", kBool, "false", "wait at this point"),
    row("sync_after_reduce", kBool, "false", "wait at this point"),
    row("sync_before_allgather", kBool, "false", "wait at this point"),
    row("sync_after_allgather", kBool, "false", "wait at this point"),
    row("keep_int_input_tensors", kBool, "true", "keep integer inputs"),
    row("keep_all_input_tensors", kBool, "false", "keep all inputs"),
    row("passes", kList, "null", "which passes run", "z1|z3|autosp|autotp"),
};
constexpr std::array kHybrid = {
    row("enabled", kBool, "false", "generate text between steps, for RLHF"),
    row("max_out_tokens", kInt, "512", "longest text"),
    row("inference_tp_size", kInt, "1", "ranks of a generation"),
    row("release_inference_cache", kBool, "false", "free its cache"),
    row("pin_parameters", kBool, "true", "keep parameters gathered"),
    row("tp_gather_partition_size", kInt, "8", "ranks that gather"),
    row("enable_cuda_graph", kBool, "false", "CUDA graphs"),
};
constexpr std::array kWeightQuantization = {
    row("enabled", kBool, "true", "quantized inference"),
    row("num_bits", kInt, "8", "bits"),
    row("q_type", kWord, "\"symmetric\"", "kind", "symmetric|asymmetric"),
    row("q_groups", kInt, "1", "groups"),
    row("quantized_initialization", kObject, "{}", "at start"),
    row("post_init_quant", kObject, "{}", "after start"),
};
constexpr std::array kDataEfficiency = {
    gate("enabled",
         kBool,
         "false",
         F::kDataEfficiency,
         "curriculum of the data, random layer dropping"),
    row("seed", kInt, "1234", "seed"),
    row("data_sampling", kObject, "{}", "which samples when"),
    row("data_routing", kObject, "{}", "which tokens in which layer"),
};

constexpr std::array kBlocks = {
    Block{"tensor_parallel", "", true, false, "tensor parallelism", kTensorParallel},
    Block{"tensor_parallel.tp", "", true, false, "its group", kTp},
    Block{"pipeline", "", false, false, "pipeline parallelism", kPipeline, true},
    Block{"expert_parallel", "", false, true, "expert parallelism", kExpert},
    Block{"autotuning", "", false, false, "DeepSpeed's autotuner", kAutotuning},
    Block{"compile", "", true, false, "DeepCompile", kCompile},
    Block{"hybrid_engine", "", true, false, "training and inference in turn", kHybrid},
    Block{"weight_quantization", "", true, false, "quantized inference", kWeightQuantization},
    Block{"datastates_ckpt",
          "",
          false,
          true,
          "another checkpoint writer; the engine's own is used",
          {},
          true},
    Block{"data_efficiency", "", false, false, "data efficiency library", kDataEfficiency},
};

}  // namespace

std::span<const Block> foreign_blocks() {
  return kBlocks;
}

}  // namespace zero::config
