// zero plan as a user runs it: tables, JSON, a written ds_config, an existing one, a drawing.
#include "planner/planner_support.h"
#include <support/catch.h>
#include <support/process.h>
#include <support/temporary_folder.h>
#include <zero/config/report.h>

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file
using namespace zero::planner;  // NOLINT(google-build-using-namespace): test file
using Json = nlohmann::json;

support::CommandResult zero_program(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), std::string(ZERO_BIN_DIR) + "/zero");
  return support::run_command(arguments);
}

std::vector<std::string> plan_20b(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"plan",
                                        "--model",
                                        "layers=44,hidden=6144,heads=64,seq=2048,vocab=50432",
                                        "--gpus-per-node",
                                        "4",
                                        "--cpu-memory",
                                        "1TB"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

TEST_CASE("zero plan: a table of set-ups, the recommended one and why", "[planner][cli]") {
  const auto result = zero_program(plan_20b({"--recompute", "on"}));
  CHECK(result.exit_code == 0);
  for (const char* words : {"DDP, recompute",
                            "ZeRO-3 + all on cpu, recompute",
                            "device bytes of a rank, GiB",
                            "host bytes of a node, GiB",
                            "DDP misses by",
                            "ZeRO-3 misses by",
                            "recommended: ZeRO-3 + optimizer on cpu",
                            "rule of thumb"}) {
    INFO(words);
    CHECK(result.out.find(words) != std::string::npos);
  }
}

TEST_CASE("zero plan --json: categories add up to the totals", "[planner][cli]") {
  const auto result = zero_program(plan_20b({"--json"}));
  const Json plan = Json::parse(result.out);
  const Json& chosen = plan["recommended"];
  CHECK(chosen["stage"] == 3);
  CHECK(chosen["offload_optimizer"] == "cpu");
  CHECK(chosen["offload_param"] == "none");
  CHECK(chosen["tensor"] == 1);
  CHECK(chosen["pipeline"] == 1);
  CHECK(chosen["data"] == 4);
  CHECK(chosen["seconds"]["total"].get<double>() > 0);
  for (const Json& candidate : plan["candidates"]) {
    for (const char* space : {"device", "host"}) {
      std::int64_t sum = 0;
      for (const auto& [category, bytes] : candidate["bytes"][space].items()) {
        sum += category == "total" ? 0 : bytes.get<std::int64_t>();
      }
      CHECK(candidate["bytes"][space]["total"] == sum);
    }
  }
}

TEST_CASE("zero plan --write: what it writes is accepted, and means the set-up", "[planner][cli]") {
  const support::TemporaryFolder folder;
  const std::string path = folder / "ds_config.json";
  for (const char* batch : {"4", "64"}) {
    for (const char* precision : {"bf16", "fp16", "fp32"}) {
      const auto result =
          zero_program(plan_20b({"--write", path, "--batch", batch, "--precision", precision}));
      INFO(result.err);
      REQUIRE(result.exit_code == 0);
      config::LoadOptions options;
      options.world = 4;
      const config::Config config = config::load(path, options);
      CHECK(config.zero_optimization.stage == 3);
      CHECK(config.offload_optimizer.device == "cpu");
      CHECK(config.train_batch_size == std::stoll(batch));
      CHECK(zero_program({"validate", path, "--world", "4"}).exit_code == 0);
    }
  }
}

TEST_CASE("zero plan --write: every set-up of a plan but tensor x pipeline", "[planner]") {
  Cluster cluster = cluster_of("a100-80gb", 2, 8, 1e12);
  cluster.nvme_bytes = 28e12;
  cluster.nvme_bytes_s = 25e9;
  const Evaluator evaluator(parse_model("30B"), cluster, {});
  for (const Estimate& candidate : choose(evaluator).candidates) {
    INFO(candidate.setup.name());
    if (candidate.setup.model_parallel()) {
      CHECK_THROWS_AS(write_ds_config(candidate, evaluator), InputError);
      continue;
    }
    const Json json = Json::parse(write_ds_config(candidate, evaluator));
    CHECK(json["zero_optimization"]["stage"] == candidate.setup.stage);
    CHECK(json["train_batch_size"] == 16);
    CHECK(json.contains("activation_checkpointing") == candidate.setup.recompute);
  }
}

TEST_CASE("zero plan --fit: the smallest change that fits, as a diff", "[planner][cli]") {
  const support::TemporaryFolder folder;
  const std::string path = folder / "ds_config.json";
  support::write_bytes(path, R"({
    // comments are fine
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2},
    "activation_checkpointing": {"partition_activations": true}
  })");
  const auto text = zero_program(plan_20b({"--fit", path}));
  CHECK(text.exit_code == 2);
  CHECK(text.out.find("the file: does not fit") != std::string::npos);
  CHECK(text.out.find("+ zero_optimization.offload_optimizer: {\"device\":\"cpu\"") !=
        std::string::npos);
  CHECK(text.out.find("- zero_optimization.stage") == std::string::npos);
  const Json fit = Json::parse(zero_program(plan_20b({"--fit", path, "--json"})).out);
  CHECK(fit["now"]["fits"] == false);
  CHECK(fit["changes"][0]["then"]["fits"] == true);
  CHECK(fit["changes"][0]["diff"].size() == 1);
}

TEST_CASE("zero plan --fit: nvme and deprecated keys are understood, nonsense is refused",
          "[planner][cli]") {
  const support::TemporaryFolder folder;
  const std::string path = folder / "ds_config.json";
  support::write_bytes(path, R"({
    "train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
      "offload_param": {"device": "nvme", "nvme_path": "/nvme"}}})");
  const Json nvme =
      Json::parse(zero_program(plan_20b({"--fit", path, "--json", "--nvme", "10TB,6GB"})).out);
  CHECK(nvme["now"]["offload_optimizer"] == "nvme");
  CHECK(nvme["now"]["bytes"]["nvme"].get<std::int64_t>() > 14LL * 20'000'000'000);
  CHECK(nvme["now"]["bytes"]["host"]["moments"] == 0);
  support::write_bytes(path, R"({
    "train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2, "cpu_offload": true}})");
  const Json old = Json::parse(zero_program(plan_20b({"--fit", path, "--json"})).out);
  CHECK(old["now"]["offload_optimizer"] == "cpu");
  support::write_bytes(path, R"({"train_micro_batch_size_per_gpu": "many"})");
  const auto bad = zero_program(plan_20b({"--fit", path}));
  CHECK(bad.exit_code == 2);
  CHECK(bad.err.find("train_micro_batch_size_per_gpu") != std::string::npos);
  CHECK(zero_program(plan_20b({"--fit", folder / "missing.json"})).exit_code == 2);
}

TEST_CASE("zero plan --plot: memory of every set-up and a sweep, as SVG", "[planner][cli]") {
  const support::TemporaryFolder folder;
  const std::string path = folder / "plan.svg";
  CHECK(zero_program(plan_20b({"--plot", path})).exit_code == 0);
  const std::string svg = support::read_bytes(path);
  CHECK(svg.rfind("<svg", 0) == 0);
  CHECK(svg.find("</svg>") != std::string::npos);
  for (const char* words : {"usable 79.1 GiB", "ZeRO-3 + all on cpu", "polyline", "activations"}) {
    INFO(words);
    CHECK(svg.find(words) != std::string::npos);
  }
  CHECK(zero_program(plan_20b({"--plot", folder / "no/such/plan.svg"})).exit_code == 2);
}

TEST_CASE("zero plan: nonsense gets one line and exit 2", "[planner][cli]") {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"plan", "--model", "1e30"},
        {"plan", "--model", "7B", "--gpus-per-node", "0"},
        {"plan", "--model", "7B", "--gpu", "abacus"},
        {"plan", "--model", "7B", "--cpu-memory", "-5GB"},
        {"plan", "--model", "layers=2,hidden=100,heads=7"},
        {"plan", "--model", "7B", "--seq", "0"},
        {"plan", "--model", "7B", "--batch", "-1"},
        {"plan", "--model", "7B", "--lora", "-4"},
        {"plan"}}) {
    const auto result = zero_program(arguments);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(support::lines_of(result.err).size() == 1);
  }
}

TEST_CASE("zero plan: a HuggingFace config.json is read", "[planner]") {
  const support::TemporaryFolder folder;
  const std::string path = folder / "config.json";
  support::write_bytes(path,
                       R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": false})");
  CHECK(parse_model(path).params() == parse_model("llama3-8b").params());
  support::write_bytes(path, R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
    "vocab_size": 50257, "n_positions": 1024, "n_inner": null})");
  CHECK(parse_model(path).params() == parse_model("gpt2").params());
  support::write_bytes(path, R"({"hidden_size": "wide"})");
  CHECK_THROWS_AS(parse_model(path), InputError);
}

TEST_CASE("zero estimate: DeepSpeed's tables, this engine's bytes, ZeRO-Infinity's needs",
          "[planner][cli]") {
  const auto result = zero_program({"estimate", "--model", "gpt2-xl", "--gpus-per-node", "8"});
  CHECK(result.exit_code == 0);
  for (const char* words : {"Model with 1558M total params, 80M largest layer params",
                            "offload_param=cpu, offload_optimizer=cpu, zero_init=1",
                            "this engine, states and buffers alone, exactly",
                            "ZeRO-Infinity's requirements"}) {
    INFO(words);
    CHECK(result.out.find(words) != std::string::npos);
  }
}
