// --save, --load and `zero checkpoint`, from outside.
#include "e2e/programs.h"
#include <support/catch.h>
#include <support/temporary_folder.h>

#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

namespace zero::testing {
namespace {

using support::CommandResult;
using Json = nlohmann::json;

/// Losses by step of a metrics file; lines that are not finished are left out.
std::map<int, double> losses_of(const std::string& path) {
  std::map<int, double> losses;
  for (const std::string& line : support::lines_of(support::read_bytes(path))) {
    const Json step = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (step.is_object() && step.contains("step") && step.contains("loss")) {
      losses[step.at("step").get<int>()] = step.at("loss").get<double>();
    }
  }
  return losses;
}

CommandResult checkpoint(std::initializer_list<std::string> arguments) {
  std::vector<std::string> command = {program("zero"), "checkpoint"};
  command.insert(command.end(), arguments);
  return support::run_command(command);
}

/// Kills a run that saves at every step, at a random moment, again and again: what it leaves must
/// load and go on along the losses of an undisturbed run.
void check_kills(int kills, unsigned seed) {
  const SmallRun small;
  const std::string folder = small.path("saved");
  const std::string steps = std::to_string(200 * kills);  // more than all of them get to
  REQUIRE(small
              .run({"--ranks", "2", "--steps", steps, "--metrics", small.path("whole")},
                   {.timeout_s = 30.0 + 10.0 * kills})
              .exit_code == 0);
  const std::map<int, double> whole = losses_of(small.path("whole"));
  std::mt19937 random(seed);
  INFO("seed " << seed);
  const std::vector<std::string> comms = back_ends();
  int went_on = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const std::string metrics = small.path("metrics");
    std::error_code ignored;
    std::filesystem::remove(metrics, ignored);
    const std::string& comm = comms[static_cast<std::size_t>(kill) % comms.size()];
    std::vector<std::string> command = small.command({"--ranks",
                                                      "2",
                                                      "--comm",
                                                      comm,
                                                      "--steps",
                                                      steps,
                                                      "--metrics",
                                                      metrics,
                                                      "--save",
                                                      folder,
                                                      "--save-every",
                                                      "1",
                                                      "--keep",
                                                      "2"});
    if (std::filesystem::exists(folder + "/latest")) {
      command.insert(command.end(), {"--load", folder});
    }
    support::Process process(command, {});
    for (int i = 0; i < 1000 && losses_of(metrics).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
    // Under mpirun one of the ranks, else the process that has them all.
    const std::vector<pid_t> ranks = support::children_of(process.pid());
    ::kill(ranks.empty() ? process.pid() : ranks[random() % ranks.size()], SIGKILL);
    const CommandResult result = process.wait();
    INFO("kill " << kill << " " << comm << ": " << result.err);
    CHECK(result.exit_code != 0);
    CHECK(checkpoint({"verify", folder}).exit_code == 0);
    for (const auto& [step, loss] : losses_of(metrics)) {
      CHECK(loss == whole.at(step));
      ++went_on;
    }
  }
  CHECK(went_on >= kills);
}

}  // namespace

TEST_CASE("checkpoints: a run killed while it saves goes on from the one before",
          "[e2e][checkpoint]") {
  check_kills(10, 1);
}

TEST_CASE("checkpoints: 100 kills", "[.][soak]") {
  check_kills(100, 2028);
}

TEST_CASE("checkpoints: a signal saves, and the resumed run is the whole one",
          "[e2e][checkpoint]") {
  const SmallRun small;
  const std::string folder = small.path("saved");
  support::Process process(small.command({"--ranks",
                                          "2",
                                          "--steps",
                                          "1000000",
                                          "--metrics",
                                          small.path("head"),
                                          "--save",
                                          folder}),
                           {});
  for (int i = 0; i < 2000 && losses_of(small.path("head")).size() < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  process.send_signal(SIGTERM);
  CHECK(process.wait().exit_code == 128 + SIGTERM);
  const auto head = losses_of(small.path("head"));
  const std::string total = std::to_string(head.rbegin()->first + 3);
  CHECK(
      small
          .run(
              {"--ranks", "2", "--steps", total, "--metrics", small.path("tail"), "--load", folder})
          .exit_code == 0);
  CHECK(small.run({"--ranks", "2", "--steps", total, "--metrics", small.path("whole")}).exit_code ==
        0);
  auto joined = head;
  joined.merge(losses_of(small.path("tail")));
  CHECK(joined == losses_of(small.path("whole")));
}

TEST_CASE("checkpoints: inspect, verify, consolidate and diff say what they should",
          "[e2e][checkpoint]") {
  const SmallRun small;
  const std::string a = small.path("a");
  const std::string b = small.path("b");
  REQUIRE(
      small.run({"--steps", "2", "--save", a, "--export", small.path("a.safetensors")}).exit_code ==
      0);
  REQUIRE(small.run({"--steps", "3", "--save", b}).exit_code == 0);
  const Json facts = Json::parse(checkpoint({"inspect", a, "--json"}).out);
  CHECK(facts.at("counters").at("global_steps") == 2);
  CHECK(facts.at("tag") == "global_step2");
  CHECK(checkpoint({"verify", a}).exit_code == 0);
  CHECK(checkpoint({"diff", a, a}).exit_code == 0);
  const CommandResult different = checkpoint({"diff", a, b});
  CHECK(different.exit_code == 1);
  CHECK_THAT(different.out, Catch::Contains("global_steps: 2 and 3"));
  CHECK(checkpoint({"consolidate", a, small.path("hf")}).exit_code == 0);
  CHECK(support::read_bytes(small.path("hf/model.safetensors")) ==
        support::read_bytes(small.path("a.safetensors")));
  CHECK(only_error_line(checkpoint({"inspect", small.path("none")}).err).find("no checkpoint") !=
        std::string::npos);
  CHECK(
      last_error_line(small.run({"--steps", "2", "--load", a}).err).find("--steps is the total") !=
      std::string::npos);
  CHECK(only_error_line(small.run({"--keep", "2"}).err).find("without --save") !=
        std::string::npos);
}

TEST_CASE(
    "checkpoints: HuggingFace weights become a checkpoint with the loss that transformers has",
    "[e2e][checkpoint]") {
  const SmallRun small;
  const std::string data = std::string(ZERO_TEST_DATA) + "/parity/";
  const std::string folder = small.path("converted");
  const CommandResult converted =
      checkpoint({"convert", "--from", "hf", data + "final_fp32.safetensors", folder});
  INFO(converted.err);
  REQUIRE(converted.exit_code == 0);
  CHECK(checkpoint({"verify", folder}).exit_code == 0);
  const Json expected = Json::parse(support::read_bytes(data + "hf_loss.json"));
  for (const char* ranks : {"1", "2"}) {
    const CommandResult result = small.run({"--model",
                                            data + "config.json",
                                            "--data",
                                            data + "tokens.bin",
                                            "--train-batch",
                                            expected.at("windows").dump(),
                                            "--ranks",
                                            ranks,
                                            "--steps",
                                            "1",
                                            "--load",
                                            folder,
                                            "--metrics",
                                            small.path("metrics")});
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(losses_of(small.path("metrics")).at(1) ==
          Approx(expected.at("loss").get<double>()).margin(1e-5));
  }
}

TEST_CASE("checkpoints: what consolidate writes in shards converts back to the same weights",
          "[e2e][checkpoint]") {
  const SmallRun small;
  const std::string saved = small.path("saved");
  REQUIRE(small.run({"--steps", "2", "--save", saved}).exit_code == 0);
  const std::string shards = small.path("shards");
  REQUIRE(checkpoint({"consolidate", saved, shards, "--max-shard-size", "0.0001"}).exit_code == 0);
  CHECK(std::filesystem::exists(shards + "/model.safetensors.index.json"));
  const std::string back = small.path("back");
  REQUIRE(checkpoint({"convert", "--from", "hf", shards, back}).exit_code == 0);
  REQUIRE(checkpoint({"consolidate", saved, small.path("a")}).exit_code == 0);
  REQUIRE(checkpoint({"consolidate", back, small.path("b")}).exit_code == 0);
  CHECK(support::read_bytes(small.path("a/model.safetensors")) ==
        support::read_bytes(small.path("b/model.safetensors")));

  const auto refused = [&](const std::string& source, const std::string& dir) {
    const CommandResult result = checkpoint({"convert", "--from", "hf", source, dir});
    CHECK(result.exit_code == 2);
    return only_error_line(result.err);
  };
  CHECK_THAT(refused(shards, back), Catch::Contains("checkpoints already"));
  CHECK_THAT(refused(small.path("none"), small.path("c")), Catch::Contains("no such file"));
  (void)small.write("shards/model.safetensors.index.json", R"({"weight_map": {"x": "../y"}})");
  CHECK_THAT(refused(shards, small.path("c")), Catch::Contains("no name"));
  (void)small.write("shards/model.safetensors.index.json", R"({"weight_map": {"x": "gone"}})");
  CHECK_THAT(refused(shards, small.path("c")), Catch::Contains("no such file"));
  CHECK_FALSE(std::filesystem::exists(small.path("c")));
}

}  // namespace zero::testing
