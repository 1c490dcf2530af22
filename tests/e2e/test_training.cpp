#include "programs.h"
#include <support/catch.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <csignal>
#include <thread>

namespace zero::testing {
namespace {

using Json = nlohmann::json;
using support::CommandResult;

/// Every line of a metrics file; a line that is no JSON fails the test.
std::vector<Json> metrics_of(const std::string& path) {
  std::vector<Json> lines;
  for (const std::string& line : support::lines_of(support::read_bytes(path))) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

std::string error_free(const CommandResult& result) {
  return result.exit_code == 0 ? std::string() : result.err;
}

}  // namespace

TEST_CASE("train_lm: two ranks of stage 3 learn a text", "[e2e][training]") {
  const SmallRun small;
  const CommandResult result =
      small.run({"--ranks", "2", "--steps", "60", "--metrics", small.path("m.jsonl")});
  REQUIRE(error_free(result).empty());
  const std::vector<Json> lines = metrics_of(small.path("m.jsonl"));
  REQUIRE(lines.size() == 61);
  CHECK(lines.front()["step"] == 1);
  CHECK(lines[59]["step"] == 60);
  CHECK(lines.front()["loss"].get<double>() == Approx(std::log(256.0)).margin(0.1));
  double last_twenty = 0.0;
  for (std::size_t i = 40; i < 60; ++i) {
    last_twenty += lines[i]["loss"].get<double>() / 20.0;
  }
  CHECK(last_twenty < 3.5);
  CHECK(printed_loss(result.out) == Approx(last_twenty).margin(1e-4));
  CHECK_THAT(result.err, Catch::Contains("step 60/60"));
  CHECK_THAT(result.out, Catch::Contains("plan, stage 3") && Catch::Contains("rank 1"));
}

TEST_CASE("train_lm: each line of the metrics has the keys of the contract", "[e2e][training]") {
  const SmallRun small;
  const CommandResult result = small.run({"--ranks",
                                          "2",
                                          "--metrics",
                                          small.path("m.jsonl"),
                                          "--eval-data",
                                          small.path("text.txt"),
                                          "--eval-every",
                                          "2"});
  REQUIRE(error_free(result).empty());
  const std::vector<Json> lines = metrics_of(small.path("m.jsonl"));
  int evaluations = 0;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    INFO(lines[i].dump());
    if (lines[i].contains("eval_loss")) {
      ++evaluations;
      CHECK(lines[i]["eval_loss"].get<double>() > 0.0);
      continue;
    }
    for (const char* key :
         {"step", "loss", "lr", "grad_norm", "loss_scale", "tokens_per_s", "step_s"}) {
      CHECK(lines[i].at(key).is_number());
    }
    CHECK(lines[i].at("skipped") == false);
    CHECK(lines[i].at("memory").at("device").at("current").at("parameters").get<double>() > 0.0);
  }
  CHECK(evaluations == 3);  // after steps 2 and 4, and at the end
  const Json& summary = lines.back();
  CHECK(summary.at("summary") == true);
  CHECK(summary.at("memory").size() == 2);
  CHECK(summary.at("steps") == 5);
}

TEST_CASE("train_lm: local and mpi ranks print the same losses and sample",
          "[e2e][training][mpi]") {
  const SmallRun small;
  const auto losses = [&](const std::string& comm, std::string& sample) {
    const std::string metrics = small.path(comm + ".jsonl");
    const CommandResult result = small.run(
        {"--ranks", "2", "--comm", comm, "--sample", "40", "--metrics", metrics, "--shuffle", "7"});
    CHECK(error_free(result).empty());
    const std::size_t at = result.out.find("sample, of which");
    sample = at == std::string::npos ? "" : result.out.substr(at);
    std::vector<double> values;
    for (const Json& line : metrics_of(metrics)) {
      values.push_back(line.at("loss").get<double>());
    }
    return values;
  };
  std::string local_sample;
  std::string mpi_sample;
  const std::vector<double> local = losses("local", local_sample);
  CHECK(local.size() == 6);
  CHECK(local == losses("mpi", mpi_sample));
  CHECK(!local_sample.empty());
  CHECK(local_sample == mpi_sample);
}

TEST_CASE("train_lm: under mpirun it uses the ranks it was given", "[e2e][training][mpi]") {
  const SmallRun small;
  const auto under_mpirun = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> words = mpirun(2);
    for (const std::string& word : small.command(more)) {
      words.push_back(word);
    }
    return support::run_command(words);
  };
  const CommandResult result = under_mpirun({"--metrics", small.path("m.jsonl")});
  REQUIRE(error_free(result).empty());
  CHECK(metrics_of(small.path("m.jsonl")).back().at("memory").size() == 2);

  const CommandResult other = under_mpirun({"--ranks", "3"});
  INFO(other.err);
  CHECK(other.exit_code == 2);
  CHECK_THAT(only_error_line(other.err), Catch::Contains("--ranks"));
  const CommandResult missing = under_mpirun({"--data", "/nowhere/text"});
  INFO(missing.err);
  CHECK(missing.exit_code == 2);
  CHECK_THAT(only_error_line(missing.err), Catch::Contains("/nowhere/text"));
}

TEST_CASE("train_lm: exported weights start another run where they were", "[e2e][training]") {
  const SmallRun small;
  const std::string weights = small.path("w.safetensors");
  REQUIRE(error_free(small.run({"--ranks", "2", "--steps", "30", "--export", weights})).empty());
  const std::string once = support::read_bytes(weights);
  const std::string metrics = small.path("m.jsonl");
  REQUIRE(
      error_free(
          small.run({"--steps", "1", "--init", weights, "--metrics", metrics, "--export", weights}))
          .empty());
  CHECK(metrics_of(metrics).front().at("loss").get<double>() < 4.5);  // a fresh model has 5.5
  CHECK(support::read_bytes(weights) != once);

  REQUIRE(error_free(small.run({"--ranks", "2", "--steps", "30", "--export", weights})).empty());
  CHECK(support::read_bytes(weights) == once);
}

TEST_CASE("train_lm: a plan made without an engine is what the ledger then measures",
          "[e2e][plan]") {
  for (const int stage : {0, 1, 2, 3}) {
    const SmallRun small(stage);
    for (const char* ranks : {"1", "2", "4"}) {
      INFO("stage " << stage << ", ranks " << ranks);
      const std::string plan_path = small.path("plan.json");
      const std::string metrics = small.path("m.jsonl");
      REQUIRE(error_free(small.run({"--ranks", ranks, "--plan", plan_path})).empty());
      const Json plan = Json::parse(support::read_bytes(plan_path)).at("bytes_per_rank");
      REQUIRE(
          error_free(small.run({"--ranks", ranks, "--metrics", metrics, "--steps", "2"})).empty());
      const std::vector<Json> lines = metrics_of(metrics);
      CHECK(lines.back().at("memory").size() == std::stoul(ranks));
      for (const Json& rank : lines.back().at("memory")) {
        for (const char* category : {"parameters", "gradients", "master", "moments"}) {
          INFO(category);
          for (const char* when : {"current", "peak"}) {
            CHECK(rank.at("device").at(when).at(category).get<std::int64_t>() +
                      rank.at("host").at(when).at(category).get<std::int64_t>() ==
                  plan.at(category).get<std::int64_t>());
          }
        }
      }
    }
  }
}

TEST_CASE("train_lm: \"auto\" bucket sizes come from the model's hidden size", "[e2e][plan]") {
  const SmallRun small(3);
  const auto plan_with = [&](const std::string& bucket, const std::string& persistence) {
    const std::string config = small.write(
        "auto.json",
        R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 3, "reduce_bucket_size": )" +
            bucket + R"(, "stage3_param_persistence_threshold": )" + persistence + "}}");
    const std::string plan = small.path("plan.json");
    REQUIRE(error_free(small.run({"--config", config, "--ranks", "2", "--plan", plan})).empty());
    return support::read_bytes(plan);
  };
  const std::string automatic = plan_with(R"("auto")", R"("auto")");
  CHECK(automatic == plan_with("1024", "320"));  // 32² and 10 · 32
  CHECK(automatic != plan_with("500000000", "100000"));
}

TEST_CASE("train_lm: a signal ends the run after a whole step", "[e2e][training]") {
  const SmallRun small;
  for (const std::string& comm : back_ends()) {
    for (const int signal : {SIGINT, SIGTERM}) {
      INFO(comm << ", signal " << signal);
      const std::string metrics = small.path(comm + std::to_string(signal));
      support::Process process(
          small.command(
              {"--ranks", "2", "--comm", comm, "--steps", "1000000", "--metrics", metrics}),
          {});
      for (int i = 0; i < 2000 && support::lines_of(support::read_bytes(metrics)).size() < 3; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      process.send_signal(signal);
      const CommandResult result = process.wait();
      INFO(result.err);
      CHECK_FALSE(result.timed_out);
      CHECK(result.exit_code == 128 + signal);
      const Json summary = metrics_of(metrics).back();
      CHECK(summary.at("summary") == true);
      CHECK(summary.at("signal") == signal);
    }
  }
}

TEST_CASE("minimal: a user's own model learns", "[e2e][training]") {
  const CommandResult result = support::run_command(
      {program("minimal"), std::string(ZERO_SOURCE_DIR) + "/ds_config_samples/zero3.json"});
  REQUIRE(error_free(result).empty());
  CHECK(printed_loss(result.out) < 0.5);
}

TEST_CASE("train_lm: the breakdowns that a file asks for, and a timeline", "[e2e]") {
  const SmallRun small;
  const std::string config = small.write("breakdown.json", R"({
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW"}, "steps_per_print": 2,
    "wall_clock_breakdown": true, "memory_breakdown": true, "comms_logger": {"verbose": false},
    "zero_optimization": {"stage": 3}})");
  const auto result =
      small.run({"--config", config, "--ranks", "2", "--trace", small.path("t.json")});
  CHECK(result.exit_code == 0);
  for (const char* line : {"step=2, skipped=0",
                           "step=4,",
                           "a step: forward",
                           "of these stall",
                           "comm: gather: ",
                           "comm: reduce: ",
                           "memory: MiB now: parameters"}) {
    CHECK_THAT(result.err, Catch::Contains(line));
  }
  CHECK_THAT(support::read_bytes(small.path("t.json")), Catch::Contains("traceEvents"));
  const auto refused = small.run({"--trace", small.path("no/such/folder/t.json")});
  CHECK(refused.exit_code == 3);
  CHECK_THAT(last_error_line(refused.err), Catch::Contains("no/such/folder"));
}

}  // namespace zero::testing
