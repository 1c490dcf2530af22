#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/core/error.h>

#include <fmt/format.h>

#include <atomic>
#include <regex>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

/// Four blocks, no unit so small that it stays gathered.
RunSpec stage3(const std::string& keys) {
  RunSpec spec;
  spec.stage = 3;
  spec.model.layers = 4;
  spec.zero_keys = R"("stage3_param_persistence_threshold": 0)" + (keys.empty() ? "" : ", " + keys);
  return spec;
}

std::int64_t bytes_of(const RunResult& result, Category category) {
  return result.memory.front().device.peak_bytes.at(static_cast<std::size_t>(category));
}

}  // namespace

TEST_CASE("limits: gathered elements never exceed stage3_max_live_parameters", "[engine][limits]") {
  const RunResult free = run(stage3(""));
  std::string refusal;
  try {
    (void)run(stage3(R"("stage3_max_live_parameters": 1000)"));
  } catch (const ConfigError& error) {
    refusal = error.what();
  }
  std::smatch found;
  REQUIRE(std::regex_search(refusal, found, std::regex("set it to ([0-9]+) or more")));
  const std::int64_t least = std::stoll(found[1]);
  CHECK_THROWS_AS(run(stage3(fmt::format(R"("stage3_max_live_parameters": {})", least - 1))),
                  ConfigError);
  for (const std::int64_t limit : {least, least + 100, 3 * least / 2, 2 * least, 3 * least}) {
    RunSpec spec = stage3(fmt::format(R"("stage3_max_live_parameters": {})", limit));
    spec.each_step = [limit](Engine& engine, nn::Gpt& /*model*/, int step) {
      (void)engine.evaluate(make_batch(step, 3, 7, 61));
      ZERO_CHECK(engine.gather_statistics().peak_live_elems <= limit, "the limit was exceeded");
    };
    const RunResult limited = run(spec);
    INFO("limit " << limit);
    CHECK(same_bits(free, limited));
    CHECK(bytes_of(limited, Category::kGathered) <= bytes_of(free, Category::kGathered));
  }
}

TEST_CASE("limits: stage3_prefetch_bucket_size bounds what is gathered ahead, and its memory",
          "[engine][limits]") {
  std::vector<std::int64_t> bytes;
  std::vector<std::int64_t> on_demand;
  for (const std::int64_t bucket : {0, 1, 60'000, 500'000'000}) {
    RunSpec spec = stage3(fmt::format(R"("stage3_prefetch_bucket_size": {})", bucket));
    std::int64_t late = 0;
    spec.ranks = 1;
    spec.steps = 6;
    spec.each_step = [&](Engine& engine, nn::Gpt& /*model*/, int /*step*/) {
      late = engine.gather_statistics().on_demand;
    };
    bytes.push_back(bytes_of(run(spec), Category::kGathered));
    on_demand.push_back(late);
  }
  CHECK(bytes[0] < bytes[1]);
  CHECK(bytes[1] < bytes[2]);
  CHECK(bytes[2] <= bytes[3]);
  CHECK(on_demand[0] > 6 * 8);  // every block of every pass
  CHECK(on_demand[1] <= 14);    // those of the first step: nothing was known yet
}

TEST_CASE("limits: alternating shapes and evaluation keep their prefetch", "[engine][limits]") {
  RunSpec spec = stage3("");
  spec.steps = 8;
  std::atomic<std::int64_t> after_two = 0;  // written by every rank, the same
  std::atomic<std::int64_t> at_end = 0;
  spec.each_step = [&](Engine& engine, nn::Gpt& /*model*/, int step) {
    (void)engine.evaluate(make_batch(step, 1 + step % 2, 7, 61));
    const Loss loss = engine.forward(make_batch(step, 2, 9, 61));
    (void)engine.evaluate(make_batch(step, 2, 5, 61));
    engine.backward(loss);
    engine.step();
    (step == 1 ? after_two : at_end) = engine.gather_statistics().on_demand;
  };
  (void)run(spec);
  CHECK(at_end == after_two);
}

TEST_CASE("limits: stage3_max_reuse_distance keeps what is used again soon", "[engine][limits]") {
  std::vector<std::uint64_t> sent;
  for (const std::int64_t distance : {0, 1'000, 1'000'000'000}) {
    sent.push_back(run(stage3(fmt::format(R"("stage3_max_reuse_distance": {})", distance)))
                       .traffic[0]
                       .bytes_out);
  }
  CHECK(sent[1] < sent[0]);  // the last block is used again at once
  CHECK(sent[2] <= sent[1]);
}

TEST_CASE("limits: bucket sizes set the number of collectives", "[engine][limits]") {
  const auto collectives = [](int stage, const std::string& keys) {
    RunSpec spec = stage3(keys);
    spec.stage = stage;
    return run(spec).traffic[0].collectives;
  };
  for (const int stage : {0, 1, 2, 3}) {
    INFO("stage " << stage);
    CHECK(collectives(stage, R"("reduce_bucket_size": 10000)") > collectives(stage, ""));
  }
  CHECK(collectives(1, R"("allgather_bucket_size": 5000)") > collectives(1, ""));
  CHECK(collectives(2, R"("allgather_bucket_size": 5000)") > collectives(2, ""));
}

TEST_CASE("limits: a step of 24 blocks makes 24 + 4 gathers a pass and as many reductions",
          "[engine][limits]") {
  for (const int stage : {1, 2, 3}) {
    RunSpec spec;
    spec.stage = stage;
    spec.model.layers = 24;
    spec.steps = 3;
    const RunResult result = run(spec);
    const std::uint64_t gathers = stage == 3 ? 2 * 28 : 28;
    INFO("stage " << stage);
    CHECK(result.traffic[0].collectives <= 3 * (gathers + 28));
  }
}

TEST_CASE("limits: overlap_comm off gives the same bits", "[engine][limits]") {
  for (const int stage : {0, 1, 2, 3}) {
    RunSpec spec;
    spec.stage = stage;
    spec.accumulation = 2;
    const RunResult beside = run(spec);
    spec.zero_keys = R"("overlap_comm": false)";
    CHECK(same_bits(beside, run(spec)));
  }
}
