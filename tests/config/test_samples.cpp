// The files of ds_config_samples: plain JSON, accepted without a warning, and listed in the README.
#include "config_support.h"
#include <support/catch.h>

#include <filesystem>

namespace zero::testing {
namespace {

const std::string kSamples = std::string(ZERO_SOURCE_DIR) + "/ds_config_samples/";

std::vector<std::string> samples() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kSamples)) {
    if (entry.path().extension() == ".json") {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

config::Config loaded(const std::string& name, int world = 2) {
  config::LoadOptions options{.world = world};
  options.hidden_size = 64;
  return config::load(kSamples + name, options);
}

}  // namespace

TEST_CASE("samples: each is plain JSON, accepted without a warning, and listed",
          "[config][samples]") {
  const std::string readme = read_bytes_of(kSamples + "README.md");
  for (const std::string& name : samples()) {
    const std::string text = read_bytes_of(kSamples + name);
    const auto verdict = judge(text, {.world = 2});
    INFO(name << "\n" << texts(verdict.errors) << texts(verdict.warnings));
    CHECK(Json::accept(text));
    CHECK(verdict.accepted);
    if (name.find("nvme") == std::string::npos) {  // sub_group_size has no effect without offload
      CHECK(verdict.warnings.empty());
    }
    CHECK(readme.find("`" + name + "`") != std::string::npos);
  }
  CHECK(samples().size() == 20);
}

TEST_CASE("samples: all but offload run here, and offload is the only reason",
          "[config][samples]") {
  for (const std::string& name : samples()) {
    const auto verdict = judge(read_bytes_of(kSamples + name), {.world = 2});
    INFO(name << "\n" << verdict.reason);
    if (name.find("offload") == std::string::npos) {
      CHECK(verdict.runs_here);
      const config::Config config = loaded(name);
      CHECK(config.train_batch_size == 2 * config.train_micro_batch_size_per_gpu);
    }
    for (const auto& issue : verdict.blockers) {
      CHECK(issue.kind == "not_supported");
      CHECK(issue.path.find("offload") != std::string::npos);
    }
  }
}

TEST_CASE("samples: files say what their names promise", "[config][samples]") {
  for (int stage = 0; stage <= 3; ++stage) {
    const config::Config config = loaded("zero" + std::to_string(stage) + ".json");
    CHECK(config.zero_optimization.stage == stage);
    CHECK(config.optimizer.type == "AdamW");
    CHECK(config.optimizer.weight_decay == 0.01);
    CHECK(config.model_dtype() == DType::kF32);
  }
  CHECK(loaded("bf16.json").model_dtype() == DType::kBF16);
  CHECK(loaded("fp16.json").model_dtype() == DType::kF16);
  CHECK(loaded("zero3_auto.json").zero_optimization.reduce_bucket_size == 4096);
  CHECK_FALSE(loaded("optimizer_adam_l2.json").optimizer.adam_w_mode);
  CHECK(loaded("optimizer_sgd.json").optimizer.nesterov);
  const std::pair<const char*, const char*> schedules[] = {{"warmup", "WarmupLR"},
                                                           {"warmup_decay", "WarmupDecayLR"},
                                                           {"warmup_cosine", "WarmupCosineLR"},
                                                           {"range_test", "LRRangeTest"},
                                                           {"one_cycle", "OneCycle"}};
  for (const auto& [name, type] : schedules) {
    const auto config = loaded(std::string("scheduler_") + name + ".json");
    REQUIRE(config.scheduler.has_value());
    CHECK(config.scheduler->type == type);
  }
}

}  // namespace zero::testing
