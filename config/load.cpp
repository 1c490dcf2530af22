#include "config/check.h"
#include "config/convert.h"
#include "config/text.h"
#include <zero/config/config.h>
#include <zero/config/report.h>
#include <zero/core/error.h>

namespace zero::config {
namespace {

template <class T>
T get(const Checked& c, const std::string& path) {
  return c.at(path).get<T>();
}

/// A list of strings, or one.
std::vector<std::string> strings(const Checked& c, const std::string& path) {
  const Json& value = c.at(path);
  return value.is_string() ? std::vector{value.get<std::string>()}
                           : value.get<std::vector<std::string>>();
}

std::optional<DType> dtype_named(const Json& name) {
  if (!name.is_string()) {
    return std::nullopt;
  }
  const auto text = name.get<std::string>();
  const bool half = text == "half" || text.find("16") != std::string::npos;
  return text[0] == 'b' || text == "torch.bfloat16" ? DType::kBF16
         : half                                     ? DType::kF16
                                                    : DType::kF32;
}

double number_param(const Checked& c, const char* name, double fallback) {
  const Json& value = c.at(std::string("optimizer.params.") + name);
  return value.is_number() ? value.get<double>() : fallback;
}

bool flag_param(const Checked& c, const char* name, bool fallback) {
  const Json& value = c.at(std::string("optimizer.params.") + name);
  return value.is_boolean() ? value.get<bool>() : fallback;
}

OptimizerConfig read_optimizer(const Checked& c) {
  OptimizerConfig optimizer;
  optimizer.type = get<std::string>(c, "optimizer.type");
  const bool torch_adamw = lower(optimizer.type) == "adamw" && flag_param(c, "torch_adam", false);
  const bool adagrad = lower(optimizer.type) == "adagrad";
  optimizer.lr = number_param(c, "lr", adagrad ? 0.01 : optimizer.lr);
  optimizer.eps = number_param(c, "eps", adagrad ? 1e-10 : optimizer.eps);
  optimizer.lr_decay = number_param(c, "lr_decay", 0.0);
  optimizer.weight_decay = number_param(c, "weight_decay", torch_adamw ? 0.01 : 0.0);
  optimizer.momentum = number_param(c, "momentum", 0.0);
  optimizer.dampening = number_param(c, "dampening", 0.0);
  optimizer.nesterov = flag_param(c, "nesterov", false);
  optimizer.bias_correction = flag_param(c, "bias_correction", true);
  optimizer.adam_w_mode = lower(optimizer.type) == "adamw" || flag_param(c, "adam_w_mode", true);
  const Json& betas = c.at("optimizer.params.betas");
  if (betas.is_array()) {
    optimizer.beta1 = betas.at(0).get<double>();
    optimizer.beta2 = betas.at(1).get<double>();
  }
  return optimizer;
}

SchedulerConfig::Param read_param(const std::string& name, const Json& value) {
  SchedulerConfig::Param param{.name = name, .values = {}, .text = {}};
  if (value.is_string()) {
    param.text = value.get<std::string>();
  } else if (value.is_boolean()) {
    param.values = {value.get<bool>() ? 1.0 : 0.0};
  } else if (value.is_number()) {
    param.values = {value.get<double>()};
  } else if (value.is_array()) {
    param.values = value.get<std::vector<double>>();
  }
  return param;
}

std::optional<SchedulerConfig> read_scheduler(const Checked& c) {
  const Json& type = c.raw("scheduler.type");
  if (!type.is_string()) {
    return std::nullopt;
  }
  SchedulerConfig scheduler{.type = type.get<std::string>(), .params = {}};
  const Json& params = c.raw("scheduler.params");
  for (const auto& [name, raw] : params.items()) {
    const Json& value = c.at("scheduler.params." + name);
    if (!value.is_null()) {
      scheduler.params.push_back(read_param(name, value));
    }
  }
  return scheduler;
}

ZeroOptimization read_zero(const Checked& c) {
  const auto flag = [&](const char* key) {
    return get<bool>(c, std::string("zero_optimization.") + key);
  };
  const auto size = [&](const char* key) {
    return get<std::int64_t>(c, std::string("zero_optimization.") + key);
  };
  ZeroOptimization zero;
  zero.stage = static_cast<int>(size("stage"));
  zero.contiguous_gradients = flag("contiguous_gradients");
  zero.reduce_scatter = flag("reduce_scatter");
  zero.reduce_bucket_size = size("reduce_bucket_size");
  zero.allgather_partitions = flag("allgather_partitions");
  zero.allgather_bucket_size = size("allgather_bucket_size");
  const Json& overlap = c.at("zero_optimization.overlap_comm");
  if (overlap.is_boolean()) {
    zero.overlap_comm = overlap.get<bool>();
  }
  zero.sub_group_size = size("sub_group_size");
  if (c.given("zero_optimization.stage3_prefetch_bucket_size")) {
    zero.stage3_prefetch_bucket_size = size("stage3_prefetch_bucket_size");
  }
  zero.stage3_param_persistence_threshold = size("stage3_param_persistence_threshold");
  zero.stage3_model_persistence_threshold = size("stage3_model_persistence_threshold");
  zero.stage3_max_live_parameters = size("stage3_max_live_parameters");
  zero.zero_hpz_partition_size = size("zero_hpz_partition_size");
  zero.mics_shard_size = size("mics_shard_size");
  zero.stage3_max_reuse_distance = size("stage3_max_reuse_distance");
  zero.stage3_gather_16bit_weights_on_model_save =
      flag("stage3_gather_16bit_weights_on_model_save") ||
      flag("stage3_gather_fp16_weights_on_model_save");
  zero.round_robin_gradients = flag("round_robin_gradients");
  zero.ignore_unused_parameters = flag("ignore_unused_parameters");
  zero.leaf_module = {.names = strings(c, "zero_optimization.leaf_module.names"),
                      .name_suffixes = strings(c, "zero_optimization.leaf_module.name_suffixes")};
  return zero;
}

Fp16Config read_fp16(const Checked& c) {
  Fp16Config fp16;
  fp16.enabled = get<bool>(c, "fp16.enabled");
  fp16.loss_scale = get<double>(c, "fp16.loss_scale");
  fp16.initial_scale_power = static_cast<int>(get<std::int64_t>(c, "fp16.initial_scale_power"));
  fp16.loss_scale_window = get<std::int64_t>(c, "fp16.loss_scale_window");
  fp16.hysteresis = get<std::int64_t>(c, "fp16.hysteresis");
  fp16.consecutive_hysteresis = get<bool>(c, "fp16.consecutive_hysteresis");
  fp16.min_loss_scale = get<double>(c, "fp16.min_loss_scale");
  return fp16;
}

/// `flag` is the deprecated short form of device cpu.
OffloadConfig read_offload(const Checked& c, const std::string& block, const char* flag) {
  const auto path = [&](const char* key) { return block + "." + key; };
  OffloadConfig offload;
  offload.device = c.is_true(flag) ? "cpu" : get<std::string>(c, path("device"));
  if (c.at(path("nvme_path")).is_string()) {
    offload.nvme_path = get<std::string>(c, path("nvme_path"));
  }
  offload.buffer_count = get<std::int64_t>(c, path("buffer_count"));
  offload.pin_memory = get<bool>(c, path("pin_memory"));
  if (block == "zero_optimization.offload_param") {
    offload.buffer_size = get<std::int64_t>(c, path("buffer_size"));
    offload.max_in_cpu = get<std::int64_t>(c, path("max_in_cpu"));
  } else {
    offload.pipeline_read = get<bool>(c, path("pipeline_read"));
    offload.pipeline_write = get<bool>(c, path("pipeline_write"));
    offload.ratio = get<double>(c, path("ratio"));
  }
  return offload;
}

AioConfig read_aio(const Checked& c) {
  AioConfig aio;
  aio.block_size = get<std::int64_t>(c, "aio.block_size");
  aio.queue_depth = get<std::int64_t>(c, "aio.queue_depth");
  const bool older = c.given("aio.thread_count") && !c.given("aio.intra_op_parallelism");
  aio.intra_op_parallelism =
      get<std::int64_t>(c, older ? "aio.thread_count" : "aio.intra_op_parallelism");
  aio.single_submit = get<bool>(c, "aio.single_submit");
  aio.overlap_events = get<bool>(c, "aio.overlap_events");
  return aio;
}

ActivationCheckpointing read_checkpointing(const Checked& c) {
  const auto value = [&](const char* key) -> const Json& {
    return c.at(std::string("activation_checkpointing.") + key);
  };
  ActivationCheckpointing checkpointing;
  checkpointing.cpu_checkpointing = truthy(value("cpu_checkpointing"));
  const Json& number = value("number_checkpoints");
  checkpointing.number_checkpoints = number.is_number() ? number.get<std::int64_t>() : 0;
  checkpointing.enabled = truthy(value("partition_activations")) ||
                          checkpointing.cpu_checkpointing || checkpointing.number_checkpoints > 0;
  return checkpointing;
}

Config read_config(const Checked& c) {
  Config config;
  config.train_batch_size = c.batch.total.integer;
  config.train_micro_batch_size_per_gpu = c.batch.micro.integer;
  config.gradient_accumulation_steps = c.batch.steps.integer;
  config.gradient_clipping = std::max(0.0, get<double>(c, "gradient_clipping"));
  const Json& print = c.at("steps_per_print");
  config.steps_per_print = print.is_number() ? print.get<std::int64_t>() : 0;
  config.wall_clock_breakdown = truthy(c.at("wall_clock_breakdown"));
  config.memory_breakdown = truthy(c.at("memory_breakdown"));
  config.comms_logger = c.given("comms_logger");
  config.prescale_gradients = truthy(c.at("prescale_gradients"));
  config.gradient_predivide_factor = get<double>(c, "gradient_predivide_factor");
  config.communication_data_type = dtype_named(c.at("communication_data_type"));
  config.grad_accum_dtype = dtype_named(c.at("data_types.grad_accum_dtype"));
  config.fp16 = read_fp16(c);
  config.bf16_enabled = get<bool>(c, c.bf16_block() + ".enabled");
  config.bf16_check_grad_overflow = get<bool>(c, c.bf16_block() + ".check_grad_overflow");
  config.optimizer = read_optimizer(c);
  config.scheduler = read_scheduler(c);
  config.zero_optimization = read_zero(c);
  config.offload_optimizer =
      read_offload(c, "zero_optimization.offload_optimizer", "zero_optimization.cpu_offload");
  config.offload_param =
      read_offload(c, "zero_optimization.offload_param", "zero_optimization.cpu_offload_param");
  config.aio = read_aio(c);
  config.activation_checkpointing = read_checkpointing(c);
  config.checkpoint_async_save = truthy(c.at("checkpoint.async_save"));
  return config;
}

/// All findings in one line: that is what an exception carries.
std::string summary(const std::vector<Issue>& issues, const std::string& name) {
  std::string text;
  for (const Issue& issue : issues) {
    text += (text.empty() ? "" : " | ") + issue_text(issue, name);
  }
  return text;
}

}  // namespace

Config parse(const std::string& text, const std::string& name, const LoadOptions& options) {
  const Checked checked = check(text, options);
  if (!checked.errors.empty()) {
    throw ConfigError(summary(checked.errors, name));
  }
  if (!checked.blockers.empty()) {
    throw ConfigError(summary(checked.blockers, name));
  }
  return read_config(checked);
}

Config load(const std::string& path, const LoadOptions& options) {
  return parse(read_text(path), path, options);
}

}  // namespace zero::config
