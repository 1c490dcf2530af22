// One file for each rule across keys, and what is said about it.
#include "config_support.h"
#include <support/catch.h>

namespace zero::testing {
namespace {

enum class Says { kError, kRefusal, kWarning };

struct Case {
  const char* rule;
  Says says;
  const char* members;  ///< beside the batch and AdamW
  const char* path;
  const char* message;
};

const Case kCases[] = {
    {"1",
     Says::kError,
     R"("fp16": {"enabled": true}, "bf16": {"enabled": true})",
     "fp16.enabled",
     "both enabled"},
    {"1",
     Says::kError,
     R"("fp16": {"enabled": true}, "bfloat16": {"enabled": "yes"})",
     "fp16.enabled",
     "both enabled"},
    {"3",
     Says::kError,
     R"("fp16": {"fp16_master_weights_and_grads": true})",
     "fp16.fp16_master_weights_and_grads",
     "stage 1, 2 or 3"},
    {"4",
     Says::kError,
     R"("bf16": {"bf16_master_weights_and_grads": true})",
     "bf16",
     "stage 1, 2 or 3"},
    {"5",
     Says::kError,
     R"("zero_optimization": {"stage": 1}, "bf16": {"bf16_optimizer_states": true})",
     "bf16",
     "needs bf16_master_weights_and_grads"},
    {"6",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 1}, "fp16": {"fp16_master_weights_and_grads": true})",
     "fp16.fp16_master_weights_and_grads",
     "offload"},
    {"7",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 1}, "bf16": {"bf16_master_weights_and_grads": true})",
     "bf16",
     "offload"},
    {"8",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 1}, "bf16": {"bf16_master_weights_and_grads": true}, "fp16": {"fp16_master_weights_and_grads": true})",
     "fp16.fp16_master_weights_and_grads",
     "offload"},
    {"9",
     Says::kError,
     R"("zero_optimization": {"stage": 2, "offload_optimizer": {"ratio": 0.5}})",
     "zero_optimization.offload_optimizer.ratio",
     "stage 3"},
    {"10",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 3, "offload_optimizer": {"ratio": 0.5}})",
     "zero_optimization.offload_optimizer.ratio",
     "Adam"},
    {"11",
     Says::kWarning,
     R"("zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}})",
     "zero_optimization.offload_param.device",
     "no effect below stage 3"},
    {"12",
     Says::kWarning,
     R"("zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}})",
     "zero_optimization.offload_optimizer.device",
     "stage 0"},
    {"13",
     Says::kWarning,
     R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}})",
     "zero_optimization.offload_optimizer.device",
     "takes nvme for cpu"},
    {"14",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}})",
     "zero_optimization.offload_optimizer.device",
     "nvme_path"},
    {"15",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}})",
     "zero_optimization.offload_param.device",
     "nvme_path"},
    {"16",
     Says::kError,
     R"("zero_optimization": {"stage": 3}, "gradient_allreduce_op": "SUM")",
     "gradient_allreduce_op",
     "stage 3"},
    {"16",
     Says::kError,
     R"("zero_optimization": {"stage": 1, "zenflow": {}}, "gradient_allreduce_op": "sum")",
     "gradient_allreduce_op",
     "zenflow"},
    {"16",
     Says::kError,
     R"("compile": {"deepcompile": true}, "gradient_allreduce_op": "sum")",
     "gradient_allreduce_op",
     "deepcompile"},
    {"17",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 2}, "prescale_gradients": true)",
     "zero_optimization.stage",
     "neither prescale_gradients"},
    {"17",
     Says::kWarning,
     R"("zero_optimization": {"stage": 1}, "prescale_gradients": true)",
     "zero_optimization.stage",
     "ignores"},
    {"18",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 3}, "gradient_predivide_factor": 2.0)",
     "zero_optimization.stage",
     "neither prescale_gradients"},
    {"19",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 1, "allgather_bucket_size": 7})",
     "zero_optimization.allgather_bucket_size",
     "even"},
    {"20",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 2, "legacy_stage1": true})",
     "zero_optimization.legacy_stage1",
     "not supported any more"},
    {"22",
     Says::kRefusal,
     R"("data_types": {"grad_accum_dtype": "bf16"})",
     "data_types.grad_accum_dtype",
     "stage 0"},
    {"23",
     Says::kWarning,
     R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}})",
     "zero_optimization.offload_optimizer.device",
     "nvme"},
    {"24", Says::kError, R"("amp": {"enabled": true})", "amp", "has been removed"},
    {"30",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 2, "zenflow": {}})",
     "zero_optimization.zenflow",
     "offload_optimizer.device cpu"},
    {"30",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {"select_strategy": "step"}})",
     "zero_optimization.zenflow",
     "do not fit"},
    {"31",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": true}})",
     "zero_optimization.offload_optimizer.super_offload",
     "CUDA"},
    {"32",
     Says::kRefusal,
     R"("managed_gradient_accumulation": false, "zero_optimization": {"stage": 1, "overlap_comm": true})",
     "managed_gradient_accumulation",
     "overlap_comm"},
    {"35",
     Says::kRefusal,
     R"("torch_autocast": {"enabled": true}, "zero_optimization": {"stage": 3, "zero_quantized_weights": true})",
     "zero_optimization.zero_quantized_weights",
     "torch_autocast"},
    {"36", Says::kError, R"("elasticity": {"enabled": true})", "elasticity", "has been removed"},
    {"37",
     Says::kError,
     R"("zero_optimization": {"cpu_offload": false, "offload_optimizer": {}})",
     "zero_optimization.cpu_offload",
     "replaces"},
    {"37",
     Says::kError,
     R"("zero_optimization": {"cpu_offload_param": true, "offload_param": {}})",
     "zero_optimization.cpu_offload_param",
     "replaces"},
    {"37",
     Says::kError,
     R"("zero_optimization": {"cpu_offload_use_pin_memory": true, "offload_optimizer": {}})",
     "zero_optimization.cpu_offload_use_pin_memory",
     "replaces"},
    {"37",
     Says::kError,
     R"("zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true, "stage3_gather_16bit_weights_on_model_save": true})",
     "zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "replaces"},
    {"41",
     Says::kRefusal,
     R"("zero_optimization": {"stage": 3, "mics_shard_size": 2, "offload_optimizer": {"device": "cpu"}})",
     "zero_optimization.mics_shard_size",
     "offload"},
    {"scale",
     Says::kError,
     R"("fp16": {"enabled": true, "loss_scale_window": 0})",
     "fp16.loss_scale_window",
     "above 0"},
    {"scale",
     Says::kError,
     R"("fp16": {"enabled": true, "min_loss_scale": 0})",
     "fp16.min_loss_scale",
     "above 0"},
    {"scale", Says::kError, R"("fp16": {"loss_scale": -1})", "fp16.loss_scale", "at least 0"},
    {"autotuning", Says::kError, R"("autotuning": {"results_dir": ""})", "autotuning", "empty"},
    {"print", Says::kRefusal, R"("steps_per_print": 0)", "steps_per_print", "divides by zero"},
    {"predivide",
     Says::kRefusal,
     R"("gradient_predivide_factor": 0)",
     "gradient_predivide_factor",
     "must not be 0"},
    {"dtype",
     Says::kRefusal,
     R"("data_types": {"param_dtype": "bf16"})",
     "data_types.param_dtype",
     "contradicts"},
    {"autotp",
     Says::kRefusal,
     R"("tensor_parallel": {"autotp_size": 2})",
     "tensor_parallel.autotp_size",
     "not supported yet"},
    {"balance",
     Says::kError,
     R"("expert_parallel": {"load_balance_coeff": 0.1})",
     "expert_parallel.load_balance_coeff",
     "leave it out"},
    {"tag",
     Says::kError,
     R"("checkpoint": {"tag_validation": "sometimes"})",
     "checkpoint.tag_validation",
     "one of"},
    {"tp",
     Says::kError,
     R"("tensor_parallel": {"dtype": "fp16"})",
     "tensor_parallel.dtype",
     "leave it out"},
};

struct OptimizerCase {
  const char* rule;
  const char* text;
  const char* path;
  const char* message;
};

const OptimizerCase kOptimizerCases[] = {
    {"21", R"("zero_optimization": {"stage": 1})", "optimizer", "no optimizer"},
    {"25",
     R"("optimizer": {"type": "Lamb"}, "fp16": {"enabled": true, "loss_scale": 8})",
     "fp16.loss_scale",
     "LAMB"},
    {"26",
     R"("optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 1})",
     "optimizer.type",
     "not available"},
    {"27",
     R"("optimizer": {"type": "SGD"}, "zero_optimization": {"stage": 1})",
     "optimizer.type",
     "tested"},
    {"28",
     R"("optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 3})",
     "optimizer.type",
     "whole parameters"},
    {"29",
     R"("optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}})",
     "optimizer.params",
     "gradient_clipping"},
    {"name", R"("optimizer": {"type": "AdmaW"})", "optimizer.type", "did you mean AdamW?"},
    {"name", R"("optimizer": {"type": "sgd"})", "optimizer.type", "did you mean SGD?"},
    {"argument",
     R"("optimizer": {"type": "Adam", "params": {"beta": [0.9, 0.99]}})",
     "optimizer.params.beta",
     "did you mean betas?"},
    {"argument",
     R"("optimizer": {"type": "Adam", "params": {"lr": "1e-3"}})",
     "optimizer.params.lr",
     "without quotes"},
    {"argument",
     R"("optimizer": {"type": "Adam", "params": {"lr": "auto"}})",
     "optimizer.params.lr",
     "nothing here fills it in"},
    {"argument",
     R"("optimizer": {"type": "Adam", "params": {"betas": [0.9]}})",
     "optimizer.params.betas",
     "two numbers"},
    {"argument",
     R"("optimizer": {"type": "Adam", "params": {"amsgrad": true}})",
     "optimizer.params.amsgrad",
     "not supported yet"},
    {"scheduler",
     R"("optimizer": {"type": "Adam"}, "scheduler": {"type": "warmuplr", "params": {}})",
     "scheduler.type",
     "did you mean WarmupLR?"},
    {"scheduler",
     R"("optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupLR"})",
     "scheduler.params",
     "missing"},
    {"scheduler",
     R"("optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupDecayLR", "params": {}})",
     "scheduler.params.total_num_steps",
     "missing"},
    {"scheduler",
     R"("optimizer": {"type": "Adam"}, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}})",
     "scheduler.params.cycle_max_lr",
     "missing"},
    {"scheduler",
     R"("optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}})",
     "scheduler.params.warmup_num_steps",
     "above 0"},
};

const std::vector<config::Issue>& list(const config::Verdict& verdict, Says says) {
  return says == Says::kError     ? verdict.errors
         : says == Says::kRefusal ? verdict.blockers
                                  : verdict.warnings;
}

bool says_so(const std::vector<config::Issue>& issues, const char* path, const char* message) {
  return std::any_of(issues.begin(), issues.end(), [&](const config::Issue& issue) {
    return issue.path == path && (issue.message + issue.todo).find(message) != std::string::npos;
  });
}

}  // namespace

TEST_CASE("rules: each has its message at its key", "[config][rules]") {
  for (const Case& one : kCases) {
    const auto verdict = judge(with_batch(one.members));
    INFO("rule " << one.rule << ": " << one.members << "\n" << texts(list(verdict, one.says)));
    CHECK(verdict.accepted == (one.says != Says::kError));
    CHECK(verdict.runs_here == (verdict.accepted && verdict.blockers.empty()));
    CHECK(says_so(list(verdict, one.says), one.path, one.message));
  }
}

TEST_CASE("rules: optimizers and schedules that fail when they are built", "[config][rules]") {
  for (const OptimizerCase& one : kOptimizerCases) {
    const auto verdict = judge(std::string(R"({"train_batch_size": 1, )") + one.text + "}");
    INFO("rule " << one.rule << ": " << one.text << "\n" << texts(verdict.blockers));
    CHECK(verdict.accepted);
    CHECK_FALSE(verdict.runs_here);
    CHECK(says_so(verdict.blockers, one.path, one.message));
  }
}

TEST_CASE("rules: hpZ and MiCS divide the ranks", "[config][rules]") {
  const auto runs = [](const std::string& keys, int world) {
    config::LoadOptions options;
    options.world = world;
    const auto verdict =
        judge(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},
                  "zero_optimization": {"stage": 3, )" +
                  keys + "}}",
              options);
    CHECK(verdict.accepted);
    return verdict.runs_here;
  };
  for (const std::string key : {"zero_hpz_partition_size", "mics_shard_size"}) {
    CHECK(runs('"' + key + "\": 2", 4));
    CHECK(runs('"' + key + "\": 4", 4));
    CHECK_FALSE(runs('"' + key + "\": 3", 4));
  }
  CHECK(runs("\"zero_hpz_partition_size\": 16", 4));  // as many as there are
  CHECK_FALSE(runs("\"mics_shard_size\": 16", 4));
  CHECK_FALSE(runs("\"mics_shard_size\": 2, \"zero_hpz_partition_size\": 2", 4));
}

TEST_CASE("rules: the untouched neighbours of a conflict pass", "[config][rules]") {
  const char* good[] = {
      R"("fp16": {"enabled": false}, "bf16": {"enabled": false})",
      R"("bf16": {}, "bfloat16": {"enabled": true}, "fp16": {"enabled": false})",
      R"("zero_optimization": {"stage": 0, "allgather_bucket_size": 7})",
      R"("zero_optimization": {"stage": 3, "allgather_bucket_size": 7})",
      R"("zero_optimization": {"stage": 0, "legacy_stage1": true})",
      R"("fp16": {"loss_scale_window": 0, "min_loss_scale": 0})",
      R"("zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}})",
      R"("data_types": {"grad_accum_dtype": "fp32"})",
      R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": [1.0]}})",
      R"("scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_staircase": true}})",
      R"("csv_monitor": {"enabled": true, "output_path": "x", "job_name": "y"})",
  };
  for (const char* members : good) {
    const auto verdict = judge(with_batch(members));
    INFO(members << "\n" << texts(verdict.errors) << texts(verdict.blockers));
    CHECK(verdict.runs_here);
  }
  CHECK(judge(R"({"train_batch_size": 1, "zero_allow_untested_optimizer": true,
                  "optimizer": {"type": "SGD"}, "zero_optimization": {"stage": 3}})")
            .runs_here);
}

TEST_CASE("rules: derived values follow", "[config][rules]") {
  CHECK(resolved_of(with_batch(R"("flops_profiler": {"enabled": true})"))["wall_clock_breakdown"] ==
        true);
  CHECK(resolved_of(zero_block("\"stage\": 3"))["overlap_comm"] == true);
  CHECK(resolved_of(zero_block("\"stage\": 2"))["overlap_comm"] == false);
  const Json old = resolved_of(zero_block("\"cpu_offload\": true, \"cpu_offload_param\": false"));
  CHECK(old["offload_optimizer_device"] == "cpu");
  CHECK(old["offload_optimizer"]["pin_memory"] == true);
  CHECK(old["offload_param"].is_null());
  const Json boolean =
      resolved_of(with_batch("\"zero_optimization\": true, \"allgather_size\": 10"));
  CHECK(boolean["zero_stage"] == 1);
  CHECK(boolean["allgather_bucket_size"] == 10);
  CHECK(resolved_of(with_batch(R"("comms_logger": {"enabled": false})"))["comms_logger_enabled"] ==
        true);
}

}  // namespace zero::testing
