#include "config/convert.h"
#include "config/rules.h"
#include "config/text.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace zero::config {
namespace {

constexpr std::string_view kZero = "zero_optimization.";

std::string zero(std::string_view key) {
  return std::string(kZero) + std::string(key);
}

}  // namespace

std::int64_t stage(const Checked& c) {
  return c.at(zero("stage")).get<std::int64_t>();
}

std::string home(const Checked& c, std::string_view block) {
  return c.at(zero(block) + ".device").get<std::string>();
}

bool bf16(const Checked& c, std::string_view key) {
  return c.is_true(c.bf16_block() + "." + std::string(key));
}

namespace {

std::string_view model_dtype(const Checked& c) {
  return c.is_true("fp16.enabled") ? "fp16" : bf16(c, "enabled") ? "bf16" : "fp32";
}

/// "fp32" for any of the names of a dtype.
std::string_view dtype_of(const Json& name) {
  const std::string text = name.is_string() ? name.get<std::string>() : "";
  const auto has = [&](std::string_view words) {
    const auto list = split(words, '|');
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  if (has("fp16|float16|half|torch.float16")) {
    return "fp16";
  }
  if (has("bf16|bfloat16|torch.bfloat16")) {
    return "bf16";
  }
  return has("fp32|float32|float|torch.float32") ? "fp32" : "";
}

}  // namespace

bool other_dtype(const Checked& c, std::string_view path) {
  const auto dtype = dtype_of(c.at(path));
  return !dtype.empty() && dtype != model_dtype(c);
}

bool zenflow(const Checked& c) {
  return c.given("zero_optimization.zenflow") && c.raw("zero_optimization.zenflow").is_object();
}

namespace {

bool offloads_optimizer(const Checked& c) {
  return home(c, "offload_optimizer") != "none" || c.is_true("zero_optimization.cpu_offload");
}

std::string optimizer(const Checked& c) {
  const Json& type = c.raw("optimizer.type");
  return type.is_string() ? lower(type.get_ref<const std::string&>()) : std::string();
}

bool optimizer_is(const Checked& c, std::string_view words) {
  const auto list = split(words, '|');
  return std::find(list.begin(), list.end(), optimizer(c)) != list.end();
}

double number(const Checked& c, std::string_view path) {
  const Json& value = c.at(path);
  return value.is_number() ? value.get<double>() : 0.0;
}

bool sums(const Checked& c) {
  return c.at("gradient_allreduce_op") == "sum";
}

bool prescales(const Checked& c) {
  return c.is_true("prescale_gradients") || number(c, "gradient_predivide_factor") != 1.0;
}

bool dynamic_fp16(const Checked& c) {
  return c.is_true("fp16.enabled") && number(c, "fp16.loss_scale") == 0.0;
}

bool accumulates_otherwise(const Checked& c) {
  return other_dtype(c, "data_types.grad_accum_dtype");
}

bool uses_cpu_adam(const Checked& c) {
  return offloads_optimizer(c) && optimizer_is(c, "adam|adamw") &&
         !truthy(c.raw("optimizer.params.torch_adam"));
}

bool both(const Checked& c, std::string_view deprecated, std::string_view replacement) {
  return c.given(zero(deprecated)) && c.given(zero(replacement));
}

constexpr std::string_view kNoOffload =
    "set offload_optimizer.device to cpu, and optimizer Adam or AdamW";

constexpr std::array kRules = {
    Rule{"1",
         When::kParse,
         [](const Checked& c) { return c.is_true("fp16.enabled") && bf16(c, "enabled"); },
         "fp16.enabled",
         "fp16 and bf16 are both enabled",
         "enable one of them"},
    Rule{"3",
         When::kParse,
         [](const Checked& c) {
           return c.is_true("fp16.fp16_master_weights_and_grads") && stage(c) == 0;
         },
         "fp16.fp16_master_weights_and_grads",
         "needs zero_optimization.stage 1, 2 or 3",
         "set a stage, or leave the key out"},
    Rule{"4",
         When::kParse,
         [](const Checked& c) {
           return (bf16(c, "bf16_master_weights_and_grads") || bf16(c, "bf16_optimizer_states")) &&
                  stage(c) == 0;
         },
         "bf16",
         "bf16_master_weights_and_grads and bf16_optimizer_states need zero_optimization.stage 1, "
         "2 or 3",
         "set a stage, or leave the keys out"},
    Rule{"5",
         When::kParse,
         [](const Checked& c) {
           return bf16(c, "bf16_optimizer_states") && !bf16(c, "bf16_master_weights_and_grads");
         },
         "bf16",
         "bf16_optimizer_states needs bf16_master_weights_and_grads",
         "set both"},
    Rule{"6",
         When::kBuild,
         [](const Checked& c) {
           return c.is_true("fp16.fp16_master_weights_and_grads") && !uses_cpu_adam(c);
         },
         "fp16.fp16_master_weights_and_grads",
         "needs offload to the CPU and its Adam",
         kNoOffload},
    Rule{"7",
         When::kBuild,
         [](const Checked& c) {
           return bf16(c, "bf16_master_weights_and_grads") && !bf16(c, "bf16_optimizer_states") &&
                  !uses_cpu_adam(c);
         },
         "bf16",
         "bf16_master_weights_and_grads with fp32 moments needs offload to the CPU and its Adam",
         kNoOffload},
    Rule{"8",
         When::kBuild,
         [](const Checked& c) {
           return c.is_true("fp16.fp16_master_weights_and_grads") &&
                  bf16(c, "bf16_master_weights_and_grads");
         },
         "fp16.fp16_master_weights_and_grads",
         "stands beside bf16_master_weights_and_grads",
         "keep one of them"},
    Rule{"9",
         When::kParse,
         [](const Checked& c) {
           return number(c, "zero_optimization.offload_optimizer.ratio") < 1.0 && stage(c) != 3;
         },
         "zero_optimization.offload_optimizer.ratio",
         "below 1 needs zero_optimization.stage 3",
         "set stage 3, or ratio 1"},
    Rule{"10",
         When::kBuild,
         [](const Checked& c) {
           return number(c, "zero_optimization.offload_optimizer.ratio") < 1.0 && stage(c) == 3 &&
                  !uses_cpu_adam(c);
         },
         "zero_optimization.offload_optimizer.ratio",
         "below 1 needs offload to the CPU and its Adam",
         kNoOffload},
    Rule{"11",
         When::kWarn,
         [](const Checked& c) { return home(c, "offload_param") != "none" && stage(c) != 3; },
         "zero_optimization.offload_param.device",
         "has no effect below stage 3, as in DeepSpeed",
         "parameters stay on the device; set stage 3 to offload them"},
    Rule{"12",
         When::kWarn,
         [](const Checked& c) { return offloads_optimizer(c) && stage(c) == 0; },
         "zero_optimization.offload_optimizer.device",
         "offload with stage 0 fails in DeepSpeed on a GPU",
         "set stage 1, 2 or 3"},
    Rule{"13",
         When::kWarn,
         [](const Checked& c) {
           return home(c, "offload_optimizer") == "nvme" && (stage(c) == 1 || stage(c) == 2);
         },
         "zero_optimization.offload_optimizer.device",
         "DeepSpeed takes nvme for cpu in stages 1 and 2",
         "write cpu, or set stage 3"},
    Rule{"14",
         When::kBuild,
         [](const Checked& c) {
           return stage(c) == 3 && home(c, "offload_optimizer") == "nvme" &&
                  c.at("zero_optimization.offload_optimizer.nvme_path").is_null();
         },
         "zero_optimization.offload_optimizer.device",
         "nvme needs nvme_path",
         "give a folder on a fast disk"},
    Rule{"15",
         When::kBuild,
         [](const Checked& c) {
           return stage(c) == 3 && home(c, "offload_param") == "nvme" &&
                  c.at("zero_optimization.offload_param.nvme_path").is_null();
         },
         "zero_optimization.offload_param.device",
         "nvme needs nvme_path",
         "give a folder on a fast disk"},
    Rule{"16",
         When::kParse,
         [](const Checked& c) {
           return sums(c) && (stage(c) == 3 || zenflow(c) || c.is_true("compile.deepcompile"));
         },
         "gradient_allreduce_op",
         "sum does not work with stage 3, zenflow or compile.deepcompile",
         "use mean"},
    Rule{"17, 18",
         When::kBuild,
         [](const Checked& c) {
           return prescales(c) && c.is_true("zero_optimization.reduce_scatter") &&
                  ((stage(c) == 2 && !sums(c)) || stage(c) == 3);
         },
         "zero_optimization.stage",
         "stages 2 and 3 with reduce_scatter take neither prescale_gradients nor "
         "gradient_predivide_factor",
         "leave both at their defaults"},
    Rule{"17",
         When::kWarn,
         [](const Checked& c) {
           return prescales(c) && stage(c) == 1 && c.is_true("zero_optimization.reduce_scatter");
         },
         "zero_optimization.stage",
         "DeepSpeed ignores prescale_gradients and gradient_predivide_factor in stage 1",
         "leave both at their defaults"},
    Rule{"19",
         When::kBuild,
         [](const Checked& c) {
           return (stage(c) == 1 || stage(c) == 2) &&
                  c.at("zero_optimization.allgather_bucket_size").get<std::int64_t>() % 2 != 0;
         },
         "zero_optimization.allgather_bucket_size",
         "must be even in stages 1 and 2",
         "use an even number"},
    Rule{"20",
         When::kBuild,
         [](const Checked& c) {
           return c.is_true("zero_optimization.legacy_stage1") && stage(c) >= 1;
         },
         "zero_optimization.legacy_stage1",
         "is not supported any more, in DeepSpeed either",
         "take it out"},
    Rule{"21",
         When::kBuild,
         [](const Checked& c) { return c.raw("optimizer.type").is_null(); },
         "optimizer",
         "no optimizer is given",
         "add \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": …}}"},
    Rule{"22",
         When::kBuild,
         [](const Checked& c) { return accumulates_otherwise(c) && stage(c) == 0; },
         "data_types.grad_accum_dtype",
         "must be the dtype of the model in stage 0",
         "set a stage, or leave it out"},
    Rule{"23",
         When::kWarn,
         [](const Checked& c) {
           return stage(c) == 1 && model_dtype(c) == "bf16" && accumulates_otherwise(c) &&
                  home(c, "offload_optimizer") == "nvme";
         },
         "zero_optimization.offload_optimizer.device",
         "DeepSpeed keeps masters on the device in this combination",
         "use stage 3 for nvme"},
    Rule{"25",
         When::kBuild,
         [](const Checked& c) {
           return optimizer_is(c, "lamb|onebitlamb") && number(c, "fp16.loss_scale") > 0.0 &&
                  c.is_true("fp16.enabled");
         },
         "fp16.loss_scale",
         "a static scale does not work with LAMB",
         "set 0"},
    Rule{"26",
         When::kBuild,
         [](const Checked& c) {
           return optimizer_is(c, "onebitadam|onebitlamb|zerooneadam") && stage(c) >= 1;
         },
         "optimizer.type",
         "optimizers with compressed communication work in stage 0 only",
         "use Adam or AdamW"},
    Rule{"27",
         When::kBuild,
         [](const Checked& c) {
           return stage(c) >= 1 && !optimizer(c).empty() &&
                  !optimizer_is(c,
                                "adam|adamw|adagrad|lion|muon|onebitadam|onebitlamb|zerooneadam") &&
                  !truthy(c.raw("zero_allow_untested_optimizer"));
         },
         "optimizer.type",
         "is not on DeepSpeed's list of optimizers tested with ZeRO",
         "set zero_allow_untested_optimizer to true"},
    Rule{"28",
         When::kBuild,
         [](const Checked& c) {
           return optimizer_is(c, "muon") &&
                  ((c.is_true("zero_optimization.reduce_scatter") &&
                    (stage(c) == 3 || (stage(c) >= 1 && offloads_optimizer(c)))) ||
                   (stage(c) == 3 && c.is_true("zero_optimization.zero_quantized_gradients")));
         },
         "optimizer.type",
         "Muon does not work with reduce_scatter in stage 3 or under offload, nor with quantized "
         "gradients",
         "set reduce_scatter to false"},
    Rule{"29",
         When::kBuild,
         [](const Checked& c) {
           const Json& params = c.raw("optimizer.params");
           return params.is_object() && params.contains("max_grad_norm");
         },
         "optimizer.params",
         "max_grad_norm is refused here",
         "write gradient_clipping at the top level"},
    Rule{"30",
         When::kBuild,
         [](const Checked& c) { return zenflow(c) && home(c, "offload_optimizer") != "cpu"; },
         "zero_optimization.zenflow",
         "needs offload_optimizer.device cpu",
         "offload the optimizer"},
    Rule{
        "30",
        When::kBuild,
        [](const Checked& c) {
          const bool by_auto = c.at("zero_optimization.zenflow.select_strategy") == "auto";
          const Json& interval = c.at("zero_optimization.zenflow.select_interval");
          const Json& update = c.at("zero_optimization.zenflow.update_interval");
          return zenflow(c) && (by_auto != (interval == "auto") ||
                                (interval.is_number() && update.is_number() && interval < update));
        },
        "zero_optimization.zenflow",
        "select_strategy, select_interval and update_interval do not fit together",
        "strategy auto takes interval auto; otherwise select_interval is at least update_interval"},
    Rule{"31",
         When::kBuild,
         [](const Checked& c) {
           return c.is_true("zero_optimization.offload_optimizer.super_offload") && stage(c) == 3;
         },
         "zero_optimization.offload_optimizer.super_offload",
         "works on CUDA only, and not here",
         "leave it out"},
    Rule{"32",
         When::kBuild,
         [](const Checked& c) {
           return c.at("managed_gradient_accumulation") == false &&
                  ((c.is_true("zero_optimization.overlap_comm") && stage(c) < 2) ||
                   c.is_true("compile.deepcompile"));
         },
         "managed_gradient_accumulation",
         "false does not work with overlap_comm below stage 2, nor with deepcompile",
         "leave it out"},
    Rule{"35",
         When::kBuild,
         [](const Checked& c) {
           return c.is_true("zero_optimization.zero_quantized_weights") &&
                  truthy(c.raw("torch_autocast.enabled"));
         },
         "zero_optimization.zero_quantized_weights",
         "does not work with torch_autocast",
         "keep one of them"},
    Rule{"34",
         When::kBuild,
         [](const Checked& c) {
           const double node = number(c, "zero_optimization.zero_hpz_partition_size");
           return stage(c) == 3 && node > 1.0 && node < static_cast<double>(c.world) &&
                  std::fmod(static_cast<double>(c.world), node) != 0.0;
         },
         "zero_optimization.zero_hpz_partition_size",
         "does not divide the number of ranks",
         "use the number of ranks of a node"},
    Rule{"mics",
         When::kBuild,
         [](const Checked& c) {
           const double shard = number(c, "zero_optimization.mics_shard_size");
           return stage(c) == 3 && shard > 0.0 &&
                  (std::fmod(static_cast<double>(c.world), shard) != 0.0 ||
                   number(c, "zero_optimization.zero_hpz_partition_size") > 1.0);
         },
         "zero_optimization.mics_shard_size",
         "needs a divisor of the number of ranks, and no zero_hpz_partition_size beside it",
         "use the number of ranks of a node"},
    Rule{"37",
         When::kParse,
         [](const Checked& c) { return both(c, "cpu_offload", "offload_optimizer"); },
         "zero_optimization.cpu_offload",
         "stands beside offload_optimizer, which replaces it",
         "take cpu_offload out"},
    Rule{"37",
         When::kParse,
         [](const Checked& c) { return both(c, "cpu_offload_param", "offload_param"); },
         "zero_optimization.cpu_offload_param",
         "stands beside offload_param, which replaces it",
         "take cpu_offload_param out"},
    Rule{
        "37",
        When::kParse,
        [](const Checked& c) { return both(c, "cpu_offload_use_pin_memory", "offload_optimizer"); },
        "zero_optimization.cpu_offload_use_pin_memory",
        "stands beside offload_optimizer, which replaces it",
        "take cpu_offload_use_pin_memory out"},
    Rule{"37",
         When::kParse,
         [](const Checked& c) {
           return both(c,
                       "stage3_gather_fp16_weights_on_model_save",
                       "stage3_gather_16bit_weights_on_model_save");
         },
         "zero_optimization.stage3_gather_fp16_weights_on_model_save",
         "stands beside stage3_gather_16bit_weights_on_model_save, which replaces it",
         "take it out"},
    Rule{"41",
         When::kBuild,
         [](const Checked& c) {
           return number(c, "zero_optimization.mics_shard_size") > 0.0 && offloads_optimizer(c);
         },
         "zero_optimization.mics_shard_size",
         "MiCS does not work with offload to the CPU",
         "keep one of them"},
    Rule{"scale",
         When::kParse,
         [](const Checked& c) {
           return dynamic_fp16(c) && number(c, "fp16.loss_scale_window") <= 0.0;
         },
         "fp16.loss_scale_window",
         "must be above 0 for a dynamic scale",
         "the default is 1000"},
    Rule{
        "scale",
        When::kParse,
        [](const Checked& c) { return dynamic_fp16(c) && number(c, "fp16.min_loss_scale") <= 0.0; },
        "fp16.min_loss_scale",
        "must be above 0 for a dynamic scale",
        "the default is 1"},
    Rule{"autotuning",
         When::kParse,
         [](const Checked& c) {
           return c.raw("autotuning.results_dir") == "" || c.raw("autotuning.exps_dir") == "";
         },
         "autotuning",
         "results_dir and exps_dir must not be empty",
         "leave them out"},
    Rule{"print",
         When::kStep,
         [](const Checked& c) { return c.raw("steps_per_print") == 0; },
         "steps_per_print",
         "0 divides by zero in DeepSpeed's first step",
         "leave it out to print nothing"},
    Rule{"predivide",
         When::kStep,
         [](const Checked& c) { return c.raw("gradient_predivide_factor") == 0; },
         "gradient_predivide_factor",
         "must not be 0",
         "the default is 1.0"},
    Rule{"dtype",
         When::kBuild,
         [](const Checked& c) { return other_dtype(c, "data_types.param_dtype"); },
         "data_types.param_dtype",
         "contradicts fp16.enabled and bf16.enabled",
         "leave it out"},
};

}  // namespace

std::span<const Rule> rules() {
  return kRules;
}

}  // namespace zero::config
