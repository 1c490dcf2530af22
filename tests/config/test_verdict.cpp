// Messages, warnings, --strict, and the typed Config.
#include "config_support.h"
#include <support/catch.h>
#include <zero/core/error.h>

namespace zero::testing {
namespace {

std::string refusal(const std::string& text, const config::LoadOptions& options = {}) {
  try {
    (void)config::parse(text, "ds.json", options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("verdict: an error names path, line, column, value, what is allowed and the nearest key",
          "[config][verdict]") {
  const auto verdict = judge(
      "{\n  \"train_batch_size\": 8,\n  \"zero_optimization\": {\n    \"stagee\": 2,\n"
      "    \"reduce_bucket_size\": \"5e8\"\n  }\n}");
  CHECK(texts(verdict.errors) ==
        "ds.json:4:5: zero_optimization.stagee = 2: is not a key of zero_optimization; did you "
        "mean stage?\n"
        "ds.json:5:27: zero_optimization.reduce_bucket_size = \"5e8\": must be a whole number of "
        "at least 0; write it without quotes\n");
}

TEST_CASE("verdict: all errors of a file are reported, in its order", "[config][verdict]") {
  const auto verdict = judge(
      "{\"amp\": {}, \"fp16\": {\"enable\": true, \"loss_scale\": true}, \"bf16\": 3,\n"
      " \"zero_optimization\": {\"stage\": 4, \"offload_param\": {\"device\": \"CPU\"}}, \"fp16\": "
      "{}}");
  std::string kinds;
  for (const auto& issue : verdict.errors) {
    kinds += issue.kind + " ";
  }
  CHECK(kinds ==
        "batch_missing removed_feature unknown_key bad_value bad_value bad_value bad_value "
        "duplicate_key ");
}

TEST_CASE("verdict: misspelt names get the key that was meant", "[config][verdict]") {
  const std::pair<const char*, const char*> cases[] = {
      {R"("gradient_clippping": 1)", "gradient_clipping"},
      {R"("gradient_accumulation_steps ": 1)", "gradient_accumulation_steps"},
      {R"("zero_optimisation": {})", "zero_optimization"},
      {R"("max_grad_norm": 1)", "gradient_clipping"},
      {R"("offload_optimizer": {})", "zero_optimization.offload_optimizer"},
      {R"("overlap_comm": true)", "zero_optimization.overlap_comm"},
      {R"("loss_scale": 1)", "fp16.loss_scale"},
      {R"("Optimizer": {})", "optimizer"},
      {R"("wall-clock-breakdown": true)", "wall_clock_breakdown"},
  };
  for (const auto& [members, meant] : cases) {
    const auto verdict = judge(with_batch(members));
    INFO(members << "\n" << texts(verdict.warnings));
    CHECK(verdict.accepted);
    CHECK_THAT(texts(verdict.warnings),
               Catch::Contains(std::string("did you mean ") + meant + "?") ||
                   Catch::Contains(std::string("; did you mean ") + meant));
  }
  CHECK_THAT(texts(judge(zero_block("\"cpu_offload_params\": true")).errors),
             Catch::Contains("cpu_offload") || Catch::Contains("offload_param"));
  CHECK_THAT(texts(judge(zero_block("\"offload_optimizer\": {\"buffer_size\": 1}")).errors),
             Catch::Contains("zero_optimization.offload_param.buffer_size"));
}

TEST_CASE("verdict: unknown names at the top level warn, with --strict they are errors",
          "[config][verdict]") {
  const std::string text = with_batch(R"("qwertyuiop": 1, "_comment": "mine")");
  const auto loose = judge(text);
  CHECK(loose.runs_here);
  CHECK(find_issue(loose.warnings, "qwertyuiop") != nullptr);
  CHECK(find_issue(loose.warnings, "_comment") == nullptr);
  config::LoadOptions options;
  options.strict = true;
  const auto strict = judge(text, options);
  REQUIRE_FALSE(strict.accepted);
  CHECK(strict.errors.front().kind == "unknown_key");
}

TEST_CASE("verdict: removed features are refused with what to use instead", "[config][verdict]") {
  for (const char* name : {"amp",
                           "sparse_attention",
                           "compression_training",
                           "elasticity",
                           "nebula",
                           "curriculum_learning",
                           "quantize_training",
                           "progressive_layer_drop"}) {
    const auto verdict = judge(with_batch("\"" + std::string(name) + "\": {\"enabled\": false}"));
    INFO(name);
    REQUIRE(verdict.errors.size() == 1);
    CHECK(verdict.errors.front().kind == "removed_feature");
    CHECK_THAT(verdict.errors.front().todo, Catch::Contains("use "));
  }
}

TEST_CASE("verdict: keys without effect warn with the consequence", "[config][verdict]") {
  const auto verdict = judge(with_batch(
      R"("activation_checkpointing": {"contiguous_memory_optimization": true, "profile": false}, "aio": {"thread_count": 2},
         "datastates_ckpt": null)"));
  CHECK(verdict.runs_here);
  CHECK_THAT(texts(verdict.warnings),
             Catch::Contains("activation_checkpointing.contiguous_memory_optimization") &&
                 Catch::Contains("one arena") && Catch::Contains("intra_op_parallelism") &&
                 Catch::Contains("datastates_ckpt") && !Catch::Contains("profile"));
}

TEST_CASE("verdict: deprecated keys warn with what to write instead", "[config][verdict]") {
  const std::pair<const char*, const char*> cases[] = {
      {"\"cpu_offload\": false", "write offload_optimizer instead"},
      {"\"cpu_offload_param\": null", "write offload_param instead"},
      {"\"cpu_offload_use_pin_memory\": true", "write offload_optimizer.pin_memory instead"},
      {"\"stage3_gather_fp16_weights_on_model_save\": true",
       "write stage3_gather_16bit_weights_on_model_save instead"},
  };
  for (const auto& [members, todo] : cases) {
    CHECK_THAT(texts(judge(zero_block(members)).warnings), Catch::Contains(todo));
  }
  CHECK_THAT(texts(judge(with_batch("\"zero_optimization\": true")).warnings),
             Catch::Contains("{\"stage\": 1}"));
}

TEST_CASE("verdict: a string in a loose boolean is not silently true", "[config][verdict]") {
  const auto verdict = judge(with_batch(R"("zero_allow_untested_optimizer": "false")"));
  CHECK(verdict.accepted);
  CHECK_FALSE(verdict.runs_here);
  CHECK(resolved_of(with_batch(R"("prescale_gradients": "false")"))["prescale_gradients"] ==
        "false");
}

TEST_CASE("verdict: JSON has the agreed names", "[config][verdict]") {
  const Json good = Json::parse(config::verdict_json(judge(with_batch(""))));
  CHECK(good["verdict"] == "accept");
  CHECK(good["file"] == "ds.json");
  CHECK(good["runs_here"] == true);
  CHECK((good["reason"].is_null() && good["error"].is_null() && good["resolved"].is_object()));
  CHECK(good["warnings"].is_array());
  const Json bad =
      Json::parse(config::verdict_json(judge("{\"zero_optimization\": {\"stage\": 7}}")));
  CHECK(bad["verdict"] == "reject");
  CHECK((bad["resolved"].is_null() && bad["error"].is_string() && bad["runs_here"] == false));
  CHECK(bad["errors"].size() == 2);
}

TEST_CASE("config: the engine gets typed values", "[config][load]") {
  const config::Config config = config::parse(R"({
      "train_batch_size": 48, "gradient_accumulation_steps": 3, "gradient_clipping": -1, "steps_per_print": 20,
      "optimizer": {"type": "adam", "params": {"lr": 0.002, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1,
                    "adam_w_mode": false, "bias_correction": false}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 7, "warmup_type": "linear"}},
      "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000, "allgather_bucket_size": 2000, "overlap_comm": false,
        "stage3_prefetch_bucket_size": 3, "param_persistence_threshold": 4, "model_persistence_threshold": 5,
        "max_live_parameters": 6, "stage3_max_reuse_distance": 7, "sub_group_size": 8,
        "stage3_gather_fp16_weights_on_model_save": true}})",
                                              "ds.json",
                                              {.world = 4});
  CHECK(config.train_batch_size == 48);
  CHECK(config.train_micro_batch_size_per_gpu == 4);
  CHECK(config.gradient_accumulation_steps == 3);
  CHECK(config.gradient_clipping == 0.0);
  CHECK(config.steps_per_print == 20);
  CHECK(config.model_dtype() == DType::kF32);
  CHECK(config.optimizer.type == "adam");
  CHECK((config.optimizer.lr == 0.002 && config.optimizer.beta1 == 0.8 &&
         config.optimizer.beta2 == 0.9));
  CHECK((config.optimizer.eps == 1e-6 && config.optimizer.weight_decay == 0.1));
  CHECK(config.bf16_check_grad_overflow);
  CHECK_FALSE(config.optimizer.adam_w_mode);
  CHECK_FALSE(config.optimizer.bias_correction);
  const config::ZeroOptimization& zero = config.zero_optimization;
  CHECK((zero.stage == 3 && zero.reduce_bucket_size == 1000 && zero.allgather_bucket_size == 2000));
  CHECK((zero.stage3_prefetch_bucket_size == 3 && zero.stage3_param_persistence_threshold == 4));
  CHECK((zero.stage3_model_persistence_threshold == 5 && zero.stage3_max_live_parameters == 6));
  CHECK((zero.stage3_max_reuse_distance == 7 && zero.sub_group_size == 8));
  CHECK(zero.overlap_comm == false);
  CHECK(zero.stage3_gather_16bit_weights_on_model_save);
  REQUIRE(config.scheduler.has_value());
  CHECK(config.scheduler->type == "WarmupLR");
  REQUIRE(config.scheduler->params.size() == 3);
  CHECK(config.scheduler->params[1].values == std::vector<double>{7.0});
  CHECK(config.scheduler->params[2].text == "linear");
}

TEST_CASE("config: optimizer defaults are those of DeepSpeed's classes", "[config][load]") {
  const auto optimizer = [](const std::string& block) {
    return config::parse("{\"train_batch_size\": 1, \"optimizer\": {" + block + "}}", "ds.json", {})
        .optimizer;
  };
  CHECK(optimizer(R"("type": "AdamW")").weight_decay == 0.0);
  CHECK(optimizer(R"("type": "AdamW", "params": {"torch_adam": true})").weight_decay == 0.01);
  CHECK(optimizer(R"("type": "Adam")").adam_w_mode);
  CHECK(optimizer(R"("type": "AdamW", "params": {"adam_w_mode": false})").adam_w_mode);
  CHECK(optimizer(R"("type": "SGD", "params": {"momentum": 0.9, "nesterov": true})").nesterov);
  CHECK(optimizer(R"("type": "SGD")").momentum == 0.0);
}

TEST_CASE("config: \"auto\" is filled in from the model and the caller", "[config][load]") {
  const std::string text = R"({
      "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
      "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                    "warmup_num_steps": "auto", "total_num_steps": "auto"}},
      "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                            "stage3_param_persistence_threshold": "auto"}})";
  config::LoadOptions options;
  options.train_micro_batch_size_per_gpu = 2;
  CHECK_THAT(
      refusal(text, options),
      Catch::Contains("optimizer.params.lr = \"auto\"") && Catch::Contains("total_num_steps"));
  options.hidden_size = 100;
  options.lr = 0.01;
  options.weight_decay = 0.1;
  options.beta1 = 0.8;
  options.beta2 = 0.99;
  options.eps = 1e-7;
  options.warmup_num_steps = 5;
  options.total_num_steps = 50;
  const config::Config config = config::parse(text, "ds.json", options);
  CHECK(config.train_batch_size == 2);
  CHECK(config.gradient_clipping == 1.0);
  CHECK(config.zero_optimization.reduce_bucket_size == 10'000);
  CHECK(config.zero_optimization.stage3_prefetch_bucket_size == 9'000);
  CHECK(config.zero_optimization.stage3_param_persistence_threshold == 1'000);
  CHECK((config.optimizer.lr == 0.01 && config.optimizer.beta2 == 0.99 &&
         config.optimizer.eps == 1e-7));
  CHECK(config.scheduler->params[1].values == std::vector<double>{0.01});
  CHECK(config.scheduler->params[3].values == std::vector<double>{50.0});
}

TEST_CASE("config: \"auto\" that nobody fills in is the default in strict blocks",
          "[config][load]") {
  const config::Config config =
      config::parse(zero_block(R"("reduce_bucket_size": "auto", "stage": "auto")"), "ds.json", {});
  CHECK(config.zero_optimization.reduce_bucket_size == 500'000'000);
  CHECK(config.zero_optimization.stage == 0);
}

TEST_CASE("config: Lion and Adagrad have DeepSpeed's defaults; LAMB and Muon say why not",
          "[config][load]") {
  const auto text = [](const std::string& block) {
    return "{\"train_batch_size\": 1, \"optimizer\": {" + block + "}}";
  };
  const auto optimizer = [&](const std::string& block) {
    return config::parse(text(block), "ds.json", {}).optimizer;
  };
  const auto adagrad = optimizer(R"("type": "Adagrad", "params": {"lr_decay": 0.5})");
  CHECK((adagrad.lr == 0.01 && adagrad.eps == 1e-10 && adagrad.lr_decay == 0.5));
  CHECK(optimizer(R"("type": "lion")").beta2 == 0.999);
  CHECK(optimizer(R"("type": "Lion", "params": {"betas": [0.9, 0.99]})").beta2 == 0.99);
  for (const char* type : {"Lamb", "Muon", "OneBitLamb"}) {
    CHECK_THAT(refusal(text(std::string(R"("type": ")") + type + "\"")),
               Catch::Contains("whole parameters"));
  }
  const char* started = R"("type": "Adagrad", "params": {"initial_accumulator_value": 0.1})";
  CHECK_FALSE(refusal(text(started)).empty());
}

TEST_CASE("config: prefetch is told apart from its default under either name", "[config][load]") {
  const auto prefetch = [](const std::string& members) {
    return config::parse(zero_block("\"stage\": 3" + members), "ds.json", {})
        .zero_optimization.stage3_prefetch_bucket_size;
  };
  CHECK_FALSE(prefetch("").has_value());
  CHECK(prefetch(R"(, "stage3_prefetch_bucket_size": 50000000)") == 50'000'000);
  CHECK(prefetch(R"(, "prefetch_bucket_size": 7)") == 7);
}

TEST_CASE("config: each key of activation_checkpointing asks for recomputation", "[config][load]") {
  const auto checkpointing = [](const std::string& members) {
    return config::parse(
               with_batch("\"activation_checkpointing\": {" + members + "}"), "ds.json", {})
        .activation_checkpointing;
  };
  CHECK_FALSE(checkpointing("").enabled);
  CHECK_FALSE(
      checkpointing(R"("partition_activations": false, "number_checkpoints": null)").enabled);
  CHECK(checkpointing(R"("partition_activations": true)").enabled);
  CHECK(checkpointing(R"("cpu_checkpointing": true)").cpu_checkpointing);
  CHECK(checkpointing(R"("cpu_checkpointing": true)").enabled);
  CHECK(checkpointing(R"("number_checkpoints": 4)").number_checkpoints == 4);
  CHECK(checkpointing(R"("number_checkpoints": 4)").enabled);
}

TEST_CASE("config: refusals carry every reason in one line", "[config][load]") {
  const std::string both = refusal(
      "{\"fp16\": {\"enabledd\": true}, \"zero_optimization\": {\"stage\": 9}, "
      "\"train_batch_size\": 1}");
  CHECK_THAT(both,
             Catch::Contains("fp16.enabledd") && Catch::Contains("zero_optimization.stage") &&
                 !Catch::Contains("\n"));
  CHECK_THAT(refusal(zero_block(R"("stage": 3, "zero_quantized_weights": true)")),
             Catch::Contains("zero_quantized_weights") && Catch::Contains("not supported yet"));
  CHECK_THAT(refusal(R"({"train_batch_size": 1})"), Catch::Contains("no optimizer"));
  CHECK(refusal(with_batch("")).empty());
}

}  // namespace zero::testing
