// zero explain, zero convert, and what is generated from the key table.
#include "config/keys.h"
#include "config_support.h"
#include <support/catch.h>
#include <zero/core/error.h>

namespace zero::testing {
namespace {

std::string converted(const std::string& text) {
  std::vector<std::string> notes;
  return config::convert(text, "ds.json", notes);
}

const std::string kRoot = ZERO_SOURCE_DIR;

/// The schema below a dotted path.
Json schema_at(const Json& schema, std::string_view path) {
  Json node = schema;
  while (!path.empty()) {
    const auto dot = path.find('.');
    node = node["properties"][std::string(path.substr(0, dot))];
    path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
  }
  return node;
}

}  // namespace

TEST_CASE("convert: deprecated keys are replaced and nothing else moves", "[config][convert]") {
  CHECK(converted("{\n    \"zero_optimization\": {\n        \"cpu_offload\" : true,  \"stage\": 2 "
                  "},\n \"x\": 5e8 }\n") ==
        "{\n    \"zero_optimization\": {\n        \"offload_optimizer\": {\"device\": \"cpu\"},  "
        "\"stage\": 2 },\n \"x\": 5e8 }\n");
  CHECK(converted(R"({"zero_optimization": {"stage": 1, "cpu_offload": false}})") ==
        R"({"zero_optimization": {"stage": 1}})");
  CHECK(converted(R"({"zero_optimization": {"cpu_offload": null, "stage": 1}})") ==
        R"({"zero_optimization": {"stage": 1}})");
  CHECK(converted(R"({"zero_optimization": {"cpu_offload_use_pin_memory": true}})") ==
        R"({"zero_optimization": {}})");
  CHECK(
      converted(
          R"({"zero_optimization": {"cpu_offload_param": 1, "cpu_offload": true, "stage": 3}})") ==
      R"({"zero_optimization": {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}, "stage": 3}})");
  CHECK(
      converted(R"({"zero_optimization": true, "allgather_size": 10})") ==
      R"({"zero_optimization": {"stage": 1, "allgather_bucket_size": 10}, "allgather_size": 10})");
  CHECK(converted(R"({"zero_optimization":{"stage3_gather_fp16_weights_on_model_save":true}})") ==
        R"({"zero_optimization":{"stage3_gather_16bit_weights_on_model_save":true}})");
  const std::string untouched = "{ \"train_batch_size\" :8,\n\n\t\"zero_optimization\":{} }";
  CHECK(converted(untouched) == untouched);
}

TEST_CASE("convert: what only the relaxed reader takes becomes plain JSON", "[config][convert]") {
  CHECK(converted("# mine\nlr: 1e-5\nb: [1.50, 2,]\nc: {}\n") ==
        "{\n  \"lr\": 1e-5,\n  \"b\": [\n    1.50,\n    2\n  ],\n  \"c\": {}\n}\n");
}

TEST_CASE("convert: conflicts and broken texts are refused", "[config][convert]") {
  CHECK_THROWS_AS(converted("{"), ConfigError);
  CHECK_THROWS_AS(converted(R"({"a": 1, "a": 1})"), ConfigError);
  CHECK_THROWS_AS(
      converted(R"({"zero_optimization": {"cpu_offload": true, "offload_optimizer": {}}})"),
      ConfigError);
  CHECK_THROWS_AS(converted(R"({"zero_optimization": {"cpu_offload": "maybe"}})"), ConfigError);
}

TEST_CASE("explain: every key in force with value and origin", "[config][explain]") {
  const std::string text = config::explain_file(
      "{\n \"train_batch_size\": 8,\n \"gradient_clipping\": \"auto\", \"optimizer\": {\"type\": "
      "\"Adam\"},\n"
      " \"zero_optimization\": {\"stage\": 3, \"round_robin_gradients\": true, "
      "\"reduce_bucket_size\": "
      "\"auto\"}}",
      "ds.json",
      {.world = 2});
  const auto has_line = [&](const std::string& start, const std::string& origin) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(start, 0) == 0) {
        INFO(line);
        CHECK_THAT(line, Catch::Contains(origin));
        return true;
      }
    }
    return false;
  };
  CHECK(has_line("train_batch_size = 8", "[file 2:22]"));
  CHECK(has_line("train_micro_batch_size_per_gpu = 4", "[derived]"));
  CHECK(has_line("gradient_accumulation_steps = 1", "[derived]"));
  CHECK(has_line("gradient_clipping = 1.0", "[auto]"));
  CHECK(has_line("optimizer.params.lr = 0.001", "[default]"));
  CHECK(has_line("zero_optimization.stage = 3", "[file 4:33]"));
  CHECK(has_line("zero_optimization.reduce_bucket_size = 500000000", "[auto]"));
  CHECK(has_line("zero_optimization.round_robin_gradients = true", "no effect here"));
  CHECK_FALSE(has_line("zero_optimization.legacy_stage1", ""));
  CHECK_FALSE(has_line("fp16.enabled", ""));
  CHECK_THROWS_AS(config::explain_file("{\"zero_optimization\": 3}", "ds.json", {}), ConfigError);
  CHECK_THAT(config::explain_file("", "", {}), Catch::Contains("zero_optimization.stage = 0"));
}

TEST_CASE("explain: one key", "[config][explain]") {
  CHECK_THAT(config::explain_key("zero_optimization.stage"),
             Catch::Contains("0, 1, 2 or 3") && Catch::Contains("default 0"));
  CHECK_THAT(config::explain_key("max_live_parameters"),
             Catch::Contains("zero_optimization.stage3_max_live_parameters"));
  CHECK_THAT(config::explain_key("enabled"),
             Catch::Contains("fp16.enabled") && Catch::Contains("bf16.enabled"));
  CHECK_THAT(config::explain_key("cpu_offload"),
             Catch::Contains("write instead: offload_optimizer"));
  CHECK_THROWS_WITH(config::explain_key("reduce_buket_size"),
                    Catch::Contains("zero_optimization.reduce_bucket_size"));
}

TEST_CASE("explain: every key of the table has a meaning, and one without effect its consequence",
          "[config][keys]") {
  for (const config::Block& block : config::blocks()) {
    CHECK_FALSE(block.meaning.empty());
    for (const config::Key& key : block.keys) {
      INFO(config::join_path(block.path, key.name));
      CHECK_FALSE(key.meaning.empty());
      CHECK((key.feature != config::Feature::kIdle || !key.cost.empty() ||
             !key.extras.replaced_by.empty()));
      CHECK(Json::accept(key.fallback));
    }
  }
}

TEST_CASE("generated: schema and document are those of the key table", "[config][keys]") {
  INFO("cmake --build DIR --target config_files writes both again");
  CHECK(read_bytes_of(kRoot + "/config/ds_config.schema.json") == config::schema());
  CHECK(read_bytes_of(kRoot + "/docs/CONFIG.md").find(config::markdown_tables()) !=
        std::string::npos);
}

TEST_CASE("generated: the schema has every key with its default", "[config][keys]") {
  const Json schema = Json::parse(config::schema());
  int keys = 0;
  for (const config::Block& block : config::blocks()) {
    for (const config::Key& key : block.keys) {
      if (block.variant.empty()) {
        INFO(config::join_path(block.path, key.name));
        CHECK(schema_at(schema, config::join_path(block.path, key.name))["default"] ==
              Json::parse(key.fallback));
        ++keys;
      }
    }
  }
  CHECK(keys > 250);
  CHECK(schema_at(schema, "optimizer")["allOf"].size() == 7);
  CHECK(schema_at(schema, "scheduler")["allOf"].size() == 5);
}

}  // namespace zero::testing
