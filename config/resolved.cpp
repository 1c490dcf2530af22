#include "config/check.h"
#include "config/convert.h"
#include "config/text.h"

#include <array>
#include <cmath>

namespace zero::config {
namespace {

/// Name in the verdict, and the path whose value it shows.
struct Shown {
  std::string_view name;
  std::string_view path;
  bool raw;  ///< as in the file, unconverted
};

constexpr std::array kFp16Part = {
    Shown{"loss_scale_window", "fp16.loss_scale_window", false},
    Shown{"hysteresis", "fp16.hysteresis", false},
    Shown{"consecutive_hysteresis", "fp16.consecutive_hysteresis", false},
    Shown{"min_loss_scale", "fp16.min_loss_scale", false},
    Shown{"fp16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads", false},
    Shown{"gradient_clipping", "gradient_clipping", true},
};

constexpr std::array kZeroPart = {
    Shown{"contiguous_gradients", "zero_optimization.contiguous_gradients", false},
    Shown{"reduce_scatter", "zero_optimization.reduce_scatter", false},
    Shown{"allgather_partitions", "zero_optimization.allgather_partitions", false},
    Shown{"round_robin_gradients", "zero_optimization.round_robin_gradients", false},
    Shown{"ignore_unused_parameters", "zero_optimization.ignore_unused_parameters", false},
    Shown{"elastic_checkpoint", "zero_optimization.elastic_checkpoint", false},
    Shown{"load_from_fp32_weights", "zero_optimization.load_from_fp32_weights", false},
    Shown{"zero_hpz_partition_size", "zero_optimization.zero_hpz_partition_size", false},
    Shown{"zero_quantized_weights", "zero_optimization.zero_quantized_weights", false},
    Shown{"zero_quantized_gradients", "zero_optimization.zero_quantized_gradients", false},
    Shown{"reduce_bucket_size", "zero_optimization.reduce_bucket_size", false},
    Shown{"allgather_bucket_size", "zero_optimization.allgather_bucket_size", false},
    Shown{"prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size", false},
    Shown{"param_persistence_threshold",
          "zero_optimization.stage3_param_persistence_threshold",
          false},
    Shown{"model_persistence_threshold",
          "zero_optimization.stage3_model_persistence_threshold",
          false},
    Shown{"max_live_parameters", "zero_optimization.stage3_max_live_parameters", false},
    Shown{"max_reuse_distance", "zero_optimization.stage3_max_reuse_distance", false},
    Shown{"sub_group_size", "zero_optimization.sub_group_size", false},
};

constexpr std::array kRootPart = {
    Shown{"zero_allow_untested_optimizer", "zero_allow_untested_optimizer", true},
    Shown{"zero_force_ds_cpu_optimizer", "zero_force_ds_cpu_optimizer", true},
    Shown{"steps_per_print", "steps_per_print", true},
    Shown{"memory_breakdown", "memory_breakdown", true},
    Shown{"dump_state", "dump_state", true},
    Shown{"prescale_gradients", "prescale_gradients", true},
    Shown{"gradient_predivide_factor", "gradient_predivide_factor", true},
    Shown{"dataloader_drop_last", "dataloader_drop_last", true},
    Shown{"grad_accum_dtype", "data_types.grad_accum_dtype", true},
    Shown{"partition_activations", "activation_checkpointing.partition_activations", true},
    Shown{"contiguous_memory_optimization",
          "activation_checkpointing.contiguous_memory_optimization",
          true},
    Shown{"cpu_checkpointing", "activation_checkpointing.cpu_checkpointing", true},
    Shown{"number_checkpoints", "activation_checkpointing.number_checkpoints", true},
    Shown{"synchronize_checkpoint_boundary",
          "activation_checkpointing.synchronize_checkpoint_boundary",
          true},
    Shown{"activation_profile", "activation_checkpointing.profile", true},
    Shown{"flops_profiler_enabled", "flops_profiler.enabled", true},
    Shown{"torch_autocast_enabled", "torch_autocast.enabled", true},
    Shown{"autotp_size", "tensor_parallel.autotp_size", false},
};

template <std::size_t N>
void show(Json& out, const Checked& c, const std::array<Shown, N>& rows) {
  for (const Shown& row : rows) {
    out[row.name] = row.raw ? c.raw(row.path) : c.at(row.path);
  }
}

/// A nested block with all its keys, or null; `flag` is its deprecated short form.
Json offload(const Checked& c, const std::string& path, std::string_view flag) {
  if (!flag.empty() && c.given(flag)) {
    return c.is_true(flag) ? [&] {
      Json block;
      for (const Key& key : find_block(path)->keys) {
        block[key.name] = fallback_value(key);
      }
      block["device"] = "cpu";
      return block;
    }() : Json(nullptr);
  }
  if (!c.given(path) || !c.raw(path).is_object()) {
    return nullptr;
  }
  Json block;
  for (const Key& key : find_block(path)->keys) {
    if (key.name != "steps_per_epoch") {  // an internal field, not shown
      block[key.name] = c.at(path + "." + std::string(key.name));
    }
  }
  return block;
}

Json device_of(const Json& block) {
  return block.is_null() ? block : block["device"];
}

Json initial_scale(const Checked& c) {
  const double scale = c.at("fp16.loss_scale").get<double>();
  if (scale != 0.0) {
    return scale;
  }
  const std::int64_t power = c.at("fp16.initial_scale_power").get<std::int64_t>();
  if (power >= 0 && power < 63) {
    return std::int64_t{1} << power;
  }
  return std::ldexp(
      1.0, static_cast<int>(std::max<std::int64_t>(std::min<std::int64_t>(power, 1100), -1100)));
}

/// Type in lower case if it is one of DeepSpeed's own names, else as written.
Json optimizer_name(const Checked& c) {
  const Json& type = c.raw("optimizer.type");
  if (!type.is_string()) {
    return nullptr;
  }
  const std::string name = lower(type.get<std::string>());
  for (const std::string_view own :
       split("adam|adamw|adagrad|lamb|lion|muon|muadam|muadamw|musgd", '|')) {
    if (name == own) {
      return name;
    }
  }
  return type;
}

Json optimizer_params(const Checked& c) {
  Json params = c.raw("optimizer.type").is_null() ? Json(nullptr) : c.raw("optimizer.params");
  const bool clips = params.is_object() && params.contains("max_grad_norm");
  if (clips && params["max_grad_norm"].is_number() && params["max_grad_norm"].get<double>() > 0.0 &&
      !c.is_true("fp16.enabled")) {
    params["max_grad_norm"] = 0.0;
  }
  return params;
}

Json communication_dtype(const Checked& c) {
  const Json& name = c.at("communication_data_type");
  if (name.is_null()) {
    return nullptr;
  }
  return name == "fp16" ? "torch.float16" : name == "bf16" ? "torch.bfloat16" : "torch.float32";
}

Json overlap(const Checked& c) {
  const Json& value = c.at("zero_optimization.overlap_comm");
  return value.is_null() ? Json(c.at("zero_optimization.stage") == 3) : value;
}

Json gather_on_save(const Checked& c) {
  const char* older = "zero_optimization.stage3_gather_fp16_weights_on_model_save";
  return c.given(older) ? c.at(older)
                        : c.at("zero_optimization.stage3_gather_16bit_weights_on_model_save");
}

void show_precision(Json& out, const Checked& c) {
  out["fp16_enabled"] = c.at("fp16.enabled");
  out["bf16_enabled"] = c.at(c.bf16_block() + ".enabled");
  out["fp16_auto_cast"] = c.at("fp16.auto_cast");
  out["loss_scale"] = c.at("fp16.loss_scale").get<double>();
  out["dynamic_loss_scale"] = c.at("fp16.loss_scale").get<double>() == 0.0;
  out["initial_loss_scale"] = initial_scale(c);
  show(out, c, kFp16Part);
}

Json breakdown(const Checked& c) {
  const Json& value = c.raw("wall_clock_breakdown");
  return truthy(c.raw("flops_profiler.enabled")) && !truthy(value) ? Json(true) : value;
}

}  // namespace

Json resolved_json(const Checked& c) {
  Json out;
  out["train_batch_size"] = c.batch.total.json();
  out["train_micro_batch_size_per_gpu"] = c.batch.micro.json();
  out["gradient_accumulation_steps"] = c.batch.steps.json();
  out["zero_stage"] = c.at("zero_optimization.stage");
  out["offload_optimizer"] =
      offload(c, "zero_optimization.offload_optimizer", "zero_optimization.cpu_offload");
  out["offload_param"] =
      offload(c, "zero_optimization.offload_param", "zero_optimization.cpu_offload_param");
  out["offload_optimizer_device"] = device_of(out["offload_optimizer"]);
  out["offload_param_device"] = device_of(out["offload_param"]);
  show_precision(out, c);
  out["optimizer"] = optimizer_name(c);
  out["optimizer_params"] = optimizer_params(c);
  const bool scheduled = !c.raw("scheduler.type").is_null();
  out["scheduler"] = c.raw("scheduler.type");
  out["scheduler_params"] = scheduled ? c.raw("scheduler.params") : Json(nullptr);
  show(out, c, kZeroPart);
  out["overlap_comm"] = overlap(c);
  out["gather_16bit_weights_on_model_save"] = gather_on_save(c);
  out["zenflow"] = offload(c, "zero_optimization.zenflow", "");
  show(out, c, kRootPart);
  out["wall_clock_breakdown"] = breakdown(c);
  out["communication_data_type"] = communication_dtype(c);
  for (const Key& key : find_block("aio")->keys) {
    if (key.name != "thread_count") {
      out["aio"][key.name] = c.raw("aio." + std::string(key.name));
    }
  }
  out["comms_logger_enabled"] = c.given("comms_logger");
  for (const char* monitor : {"tensorboard", "wandb", "csv_monitor"}) {
    out["monitor"][monitor] = c.at(std::string(monitor) + ".enabled");
  }
  return out;
}

}  // namespace zero::config
