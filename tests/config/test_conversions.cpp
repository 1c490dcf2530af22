// Every key with every sort of value, against the conversion table of docs/CONFIG.md written down
// here a second time.
#include "config/keys.h"
#include "config_support.h"
#include <support/catch.h>

#include <cmath>
#include <map>

namespace zero::testing {
namespace {

using config::Block;
using config::Key;
using config::Kind;

struct Sample {
  const char* json;
  double number;  ///< what it means as a number
};

constexpr double kNone = NAN;
constexpr Sample kSamples[] = {
    {"true", 1},
    {"false", 0},
    {"0", 0},
    {"1", 1},
    {"2", 2},
    {"-1", -1},
    {"1.0", 1},
    {"0.5", 0.5},
    {"1e12", 1e12},
    {"1e300", 1e300},
    {"\"true\"", kNone},
    {"\"No\"", kNone},
    {"\"1\"", 1},
    {"\"123\"", 123},
    {"\" 12 \"", 12},
    {"\"+12\"", 12},
    {"\"012\"", 12},
    {"\"1_000\"", 1000},
    {"\"12.0\"", 12},
    {"\"5e8\"", 5e8},
    {"\"12.5\"", 12.5},
    {"\"auto\"", kNone},
    {"\"\"", kNone},
    {"\"AUTO\"", kNone},
    {"\"text\"", kNone},
    {"null", kNone},
    {"[]", kNone},
    {"{}", kNone},
};

/// One letter a sample: y accepted, n refused, ? accepted if the key may be null.
const std::map<Kind, std::string> kTable = {
    {Kind::kBool, "yyyynnynnnyyynnnnnnnnynnn?nn"},
    {Kind::kInt, "yyyyyyynynnnyyyyyyynnynnn?nn"},
    {Kind::kIntNotBool, "nnyyyyynynnnyyyyyyynnynnn?nn"},
    {Kind::kFloat, "yyyyyyyyyynnyyyyyyyyyynnn?nn"},
    {Kind::kScale, "nnyyyyyyyynnyyyyyyyyyynnn?nn"},
    {Kind::kString, "nnnnnnnnnnyyyyyyyyyyyyyyy?nn"},
    {Kind::kPath, "nnnnnnnnnnyyyyyyyyyyyyyyy?nn"},
    {Kind::kWord, "nnnnnnnnnnnnnnnnnnnnnynnn?nn"},
    {Kind::kStage, "yyyyynynnnnnynnnnnnnnynnnnnn"},
    {Kind::kList, "nnnnnnnnnnnnnnnnnnnnnynnn?yn"},
    {Kind::kStrings, "nnnnnnnnnnyyyyyyyyyyyyyyynyn"},
    {Kind::kIntOrAuto, "yyyyyyynynnnnnnnnnnnnynnnnnn"},
    {Kind::kObject, "nnnnnnnnnnnnnnnnnnnnnynnn?ny"},
    {Kind::kNever, "nnnnnnnnnnnnnnnnnnnnnynnn?nn"},
};

bool in_range(const Key& key, double number) {
  if (std::isnan(number) || key.kind == Kind::kBool) {
    return true;
  }
  if (key.allowed == ">=0") {
    return number >= 0;
  }
  return key.allowed == ">0" ? number > 0 : key.allowed != "0..1" || (number >= 0 && number <= 1);
}

/// {"a": {"b": {"key": value}}} for the path a.b.
std::string file_with(const std::string& path, const std::string& key, const std::string& value) {
  std::string inner = "\"" + key + "\": " + value;
  std::string rest = path;
  while (!rest.empty()) {
    const auto dot = rest.rfind('.');
    const std::string name = dot == std::string::npos ? rest : rest.substr(dot + 1);
    inner = "\"" + name + "\": {" + inner + "}";
    rest = dot == std::string::npos ? "" : rest.substr(0, dot);
  }
  return with_batch(inner);
}

bool refused(const config::Verdict& verdict, const std::string& path) {
  const config::Issue* issue = find_issue(verdict.errors, path);
  return issue != nullptr && (issue->kind == "bad_value" || issue->kind == "unknown_key");
}

void check_key(const Block& block, const Key& key, const std::string& name) {
  const std::string& row = kTable.at(key.kind);
  const std::string path = config::join_path(block.path, name);
  for (std::size_t i = 0; i < std::size(kSamples); ++i) {
    const std::string text = file_with(std::string(block.path), name, kSamples[i].json);
    const bool accepted =
        row[i] == '?' ? key.fallback == "null" : row[i] == 'y' && in_range(key, kSamples[i].number);
    INFO(text << "\n" << texts(judge(text).errors));
    CHECK(refused(judge(text), path) == !accepted);
  }
}

}  // namespace

TEST_CASE("conversions: every value of every key of every strict block", "[config][conversions]") {
  int keys = 0;
  for (const Block& block : config::blocks()) {
    for (const Key& key : block.keys) {
      if (!block.strict || key.kind == Kind::kAny) {
        continue;
      }
      check_key(block, key, std::string(key.name));
      if (!key.extras.other_name.empty()) {
        check_key(block, key, std::string(key.extras.other_name));
      }
      ++keys;
    }
  }
  CHECK(keys > 130);
}

TEST_CASE("conversions: loose keys are never refused for their value, but for a few",
          "[config][conversions]") {
  const std::map<std::string, std::string> refusals = {
      // kSamples in order; what DeepSpeed itself looks at while it reads the file
      {"wall_clock_breakdown", "yyyyyyynnnnnnnnnnnnnnnnnnnnn"},
      {"vocabulary_size", "yyyyyyyyyynnnnnnnnnnnnynnyyy"},
      {"gradient_allreduce_op", "nnnnnnnnnnnnnnnnnnnnnnnnnnnn"},
      {"communication_data_type", "nnnnnnnnnnnnnnnnnnnnnnnnnynn"},
      {"seq_parallel_communication_data_type", "nnnnnnnnnnnnnnnnnnnnnnnnnnnn"},
  };
  for (const Key& key : config::find_block("")->keys) {
    const std::string name(key.name);
    if (key.allowed == ">0" && key.feature == config::Feature::kNow) {
      continue;  // the batch
    }
    const auto row = refusals.find(name);
    for (std::size_t i = 0; i < std::size(kSamples); ++i) {
      const std::string text = with_batch("\"" + name + "\": " + kSamples[i].json);
      INFO(text << "\n" << texts(judge(text).errors));
      CHECK(judge(text).accepted == (row == refusals.end() || row->second[i] == 'y'));
    }
  }
}

TEST_CASE("conversions: values arrive converted", "[config][conversions]") {
  const Json zero = resolved_of(zero_block(
      R"("stage": "2", "reduce_bucket_size": " 123 ", "allgather_bucket_size": 1e12, "overlap_comm": "Yes",
         "contiguous_gradients": 0, "prefetch_bucket_size": true, "sub_group_size": 1e14)"));
  CHECK(zero["zero_stage"] == 2);
  CHECK(zero["reduce_bucket_size"] == 123);
  CHECK(zero["allgather_bucket_size"].get<std::int64_t>() == 1'000'000'000'000);
  CHECK(zero["overlap_comm"] == true);
  CHECK(zero["contiguous_gradients"] == false);
  CHECK(zero["prefetch_bucket_size"] == 1);
  CHECK(zero["sub_group_size"].get<std::int64_t>() == 100'000'000'000'000);
  CHECK(resolved_of(zero_block(R"("stage": true)"))["zero_stage"] == 1);
  CHECK(resolved_of(with_batch(R"("steps_per_print": 20000000000000000)"))["steps_per_print"] ==
        20'000'000'000'000'000);
  CHECK(resolved_of(with_batch(R"("fp16": {"loss_scale": "128"})"))["loss_scale"] == 128.0);
}

TEST_CASE("conversions: integers beyond 64 bits are refused", "[config][conversions]") {
  for (const char* value : {"9223372036854775808",
                            "18446744073709551616",
                            "1e19",
                            "\"9223372036854775808\"",
                            "-9223372036854775809"}) {
    INFO(value);
    CHECK(refused(judge(zero_block(std::string("\"reduce_bucket_size\": ") + value)),
                  "zero_optimization.reduce_bucket_size"));
  }
  CHECK(judge(zero_block("\"stage3_model_persistence_threshold\": 9223372036854775807")).accepted);
}

TEST_CASE("conversions: \"auto\" drops a key of a strict block, known or not",
          "[config][conversions]") {
  CHECK(
      judge(zero_block(R"("stage": "auto", "sttage": "auto", "offload_param": "auto")")).accepted);
  CHECK(judge(with_batch(R"("fp16": {"enabled": "auto", "nonsense": "auto"})")).accepted);
  CHECK_FALSE(judge(zero_block(R"("sttage": "AUTO")")).accepted);
  CHECK_FALSE(judge(with_batch(R"("zero_optimization": "auto")")).accepted);
}

TEST_CASE("conversions: blocks that may be null, and those that may not", "[config][conversions]") {
  for (const Block& block : config::blocks()) {
    if (block.path.empty() || !block.variant.empty() || block.path.find('.') != std::string::npos) {
      continue;
    }
    const std::string name(block.path);
    INFO(name);
    CHECK(judge(with_batch("\"x\": 1, \"" + name + "\": null")).accepted ==
          (block.nullable && name != "optimizer"));
    const bool boolean = name == "zero_optimization" || name == "datastates_ckpt";
    CHECK(judge("{\"train_batch_size\": 1, \"" + name + "\": true}").accepted == boolean);
    CHECK(judge("{\"train_batch_size\": 1, \"" + name + "\": \"auto\"}").accepted ==
          (name == "datastates_ckpt"));
  }
}

TEST_CASE("conversions: a key and its other name may not both stand", "[config][conversions]") {
  const auto verdict =
      judge(zero_block(R"("stage3_max_live_parameters": 1, "max_live_parameters": 1)"));
  CHECK_FALSE(verdict.accepted);
  CHECK_THAT(texts(verdict.errors),
             Catch::Contains("zero_optimization.max_live_parameters") &&
                 Catch::Contains("keep one of them"));
}

}  // namespace zero::testing
