#include "programs.h"
#include <support/catch.h>

namespace zero::testing {
namespace {

using support::CommandResult;

/// The contract for bad input: nothing on standard output, one line on standard error, exit 2.
void check_refused(const CommandResult& result, const std::string& names) {
  INFO(result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK_THAT(only_error_line(result.err), Catch::Contains(names));
}

}  // namespace

TEST_CASE("train_lm: --help names what works and nothing else", "[e2e][cli]") {
  const CommandResult result = support::run_command({program("train_lm"), "--help"});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  for (const char* option :
       {"--config",      "--data",    "--tokens",    "--model",         "--init",   "--steps",
        "--micro-batch", "--ranks",   "--comm",      "--accumulation",  "--device", "--threads",
        "--train-batch", "--metrics", "--eval-data", "--eval-every",    "--sample", "--shuffle",
        "--seed",        "--export",  "--plan",      "--memory-budget", "--trace",  "--link"}) {
    CHECK_THAT(result.out, Catch::Contains(option));
  }
}

TEST_CASE("train_lm: wrong words on the command line are one line and exit 2", "[e2e][cli]") {
  const SmallRun small;
  check_refused(small.run({"--no-such-option"}), "--no-such-option");
  check_refused(small.run({"--steps", "many"}), "many");
  check_refused(small.run({"--steps", "0"}), "--steps");
  check_refused(small.run({"--comm", "smoke-signals"}), "smoke-signals");
  check_refused(small.run({"--comm", "nccl"}), "nccl");
  check_refused(small.run({"--device", "cuda"}), "cuda");
  check_refused(small.run({"--tokens", "u64"}), "u64");
  check_refused(small.run({"--memory-budget", "24 bananas"}), "24 bananas");
  check_refused(small.run({"--model", "no-such-model"}), "no-such-model");
  check_refused(small.run({"--eval-every", "5"}), "--eval-data");
  check_refused(support::run_command({program("train_lm")}), "--config");
}

TEST_CASE("train_lm: rank counts that cannot be are one line and exit 2", "[e2e][cli]") {
  const SmallRun small;
  check_refused(small.run({"--ranks", "0"}), "--ranks is 0");
  check_refused(small.run({"--ranks", "-1"}), "--ranks is -1");
  check_refused(small.run({"--ranks", "100000"}), "--ranks is 100000");
  check_refused(small.run({"--ranks", "3", "--train-batch", "8"}), "train_batch_size");
}

TEST_CASE("train_lm: wrong files are one line and exit 2", "[e2e][cli]") {
  const SmallRun small;
  check_refused(small.run({"--config", "/nowhere/ds.json"}), "/nowhere/ds.json");
  check_refused(small.run({"--data", "/nowhere/text"}), "/nowhere/text");
  check_refused(small.run({"--eval-data", "/nowhere/text"}), "/nowhere/text");
  check_refused(small.run({"--init", "/nowhere/x.safetensors"}), "/nowhere/x.safetensors");
  check_refused(small.run({"--export", "/nowhere/x.safetensors"}), "/nowhere/x.safetensors");
  check_refused(small.run({"--export", "/dev/full"}), "/dev/full");
  check_refused(small.run({"--init", small.path("text.txt")}), "text.txt");

  const std::string cut = small.write("cut.json", "{\"train_batch_size\": ");
  check_refused(small.run({"--config", cut}), "cut.json");
  const std::string bad = small.write(
      "bad.json",
      R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": "three"}})");
  check_refused(small.run({"--config", bad}), "stage");
  const std::string tiny = small.write("short.txt", "32 bytes are one token too few..");
  check_refused(small.run({"--data", tiny}), "short.txt");
}

TEST_CASE("train_lm: what a rank alone can find is one line and exit 2", "[e2e][cli]") {
  const SmallRun small;
  // 200 is no token of a vocabulary of 128; the text is read by the ranks, not before.
  const std::string model =
      small.write("small_vocabulary.json",
                  R"({"n_layer": 1, "n_embd": 16, "n_head": 1, "n_positions": 16, "vocab_size": 128,
          "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})");
  const std::string text = small.write("high.txt", std::string(500, '\xc8'));
  const CommandResult result = small.run({"--model", model, "--data", text, "--ranks", "2"});
  INFO(result.err);
  CHECK(result.exit_code == 2);
  CHECK_THAT(last_error_line(result.err), Catch::Contains("high.txt"));
}

TEST_CASE("train_lm: a budget that does not suffice is refused before training", "[e2e][cli]") {
  const SmallRun small;
  const CommandResult result =
      small.run({"--memory-budget", "10KiB", "--metrics", small.path("m")});
  CHECK(result.exit_code == 3);
  CHECK_THAT(only_error_line(result.err), Catch::Contains("budget"));
  CHECK(small.new_files().empty());
}

TEST_CASE("train_lm: metrics that cannot be written end the run before it starts", "[e2e][cli]") {
  const SmallRun small;
  const CommandResult result = small.run({"--ranks", "2", "--metrics", "/nowhere/m.jsonl"});
  CHECK(result.exit_code == 3);
  CHECK_THAT(only_error_line(result.err), Catch::Contains("/nowhere/m.jsonl"));
}

TEST_CASE("minimal: a bad configuration is one line and exit 2", "[e2e][cli]") {
  check_refused(support::run_command({program("minimal"), "/nowhere/ds.json"}), "/nowhere/ds.json");
}

TEST_CASE("quickstart: a text that is not there is one line and exit 2", "[e2e][cli]") {
  const std::string script = std::string(ZERO_SOURCE_DIR) + "/scripts/quickstart.sh";
  check_refused(support::run_command({script, "/nowhere/text"}), "/nowhere/text");
  check_refused(support::run_command({script, "a", "b"}), "2 arguments");
}

}  // namespace zero::testing
