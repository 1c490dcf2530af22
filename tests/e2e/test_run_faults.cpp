#include "programs.h"
#include <support/catch.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

namespace zero::testing {
namespace {

using support::CommandResult;

std::vector<std::string> endless_mpi_run(const SmallRun& small, int ranks) {
  std::vector<std::string> words = mpirun(ranks);
  for (const std::string& word : small.command({"--steps", "1000000"})) {
    words.push_back(word);
  }
  return words;
}

}  // namespace

TEST_CASE("train_lm: when a rank under mpirun is killed, all are gone in time",
          "[e2e][faults][mpi]") {
  const SmallRun small;
  support::Process job(endless_mpi_run(small, 3), {.timeout_s = 30.0});
  // A progress line means that all ranks are in the middle of training.
  for (int i = 0; i < 3000 && job.error_text().find("step 1/") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::vector<pid_t> ranks = support::children_of(job.pid());
  REQUIRE(ranks.size() == 3);
  kill(ranks[1], SIGKILL);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const CommandResult result = job.wait();
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code != 0);
  const auto all_gone = [&] {
    return std::none_of(ranks.begin(), ranks.end(), support::is_running);
  };
  while (!all_gone() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(all_gone());
}

TEST_CASE("train_lm: a full disk under --export leaves nothing half-written", "[e2e][faults]") {
  const SmallRun small;
  const std::string weights = small.path("w.safetensors");
  // A limit on the size of files stands for the disk: writing beyond it fails in the same calls.
  const CommandResult result =
      small.run({"--ranks", "2", "--export", weights}, {.file_size_bytes = 20'000});
  INFO(result.err);
  CHECK(result.exit_code == 3);
  CHECK_THAT(last_error_line(result.err), Catch::Contains("w.safetensors"));
  CHECK(small.new_files().empty());

  (void)small.write("w.safetensors", "an older file");
  CHECK(small.run({"--export", weights}, {.file_size_bytes = 20'000}).exit_code == 3);
  CHECK(support::read_bytes(weights) == "an older file");
}

TEST_CASE("train_lm: metrics on a full disk end all ranks with exit 3", "[e2e][faults]") {
  const SmallRun small;
  for (const std::string& comm :
       back_ends()) {  // rank 0 alone fails; the other is in the next step
    const CommandResult result =
        small.run({"--ranks", "2", "--comm", comm, "--metrics", "/dev/full"}, {.timeout_s = 30.0});
    CHECK(result.exit_code == 3);
    CHECK_THAT(last_error_line(result.err), Catch::Contains("/dev/full"));
  }

  const std::string metrics = small.path("m.jsonl");
  const CommandResult limited = small.run({"--ranks", "2", "--steps", "50", "--metrics", metrics},
                                          {.file_size_bytes = 20'000});
  CHECK(limited.exit_code == 3);
  const std::string text = support::read_bytes(metrics);
  CHECK(!text.empty());
  CHECK(text.back() == '\n');  // whole lines only
}

}  // namespace zero::testing
