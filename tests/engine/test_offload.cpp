// Offload moves homes and never a bit; plan and ledger agree on device and host
// (see
// docs/ARCHITECTURE.md).
#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/core/error.h>

#include <fmt/format.h>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

constexpr const char* kThreshold = R"("stage3_param_persistence_threshold": 50)";
constexpr const char* kOptimizer = R"(, "offload_optimizer": {"device": "cpu"})";
constexpr const char* kParameters = R"(, "offload_param": {"device": "cpu"})";

std::vector<std::string> homes(int stage) {
  std::vector<std::string> all = {kOptimizer};
  if (stage == 3) {
    all.insert(all.end(), {kParameters, std::string(kOptimizer) + kParameters});
  }
  return all;
}

RunResult run_at(RunSpec spec, const std::string& keys) {
  spec.zero_keys = kThreshold + keys;
  return run(spec);
}

std::int64_t planned(const PlannedBytes& bytes, Category category) {
  return bytes.at(static_cast<std::size_t>(category));
}

}  // namespace

TEST_CASE("offload: homes never change a bit", "[engine][offload]") {
  for (const int ranks : {1, 2, 3}) {
    for (const char* precision : {"", "bf16", "fp16"}) {
      for (const std::int64_t accumulation : {1, 2}) {
        for (const int stage : {0, 1, 2, 3}) {
          RunSpec spec;
          spec.ranks = ranks;
          spec.stage = stage;
          spec.precision = precision;
          spec.accumulation = accumulation;
          spec.micro_batch = 1;
          const RunResult reference = run_at(spec, "");
          CHECK_FALSE(reference.steps.back().skipped);
          for (const std::string& keys : homes(stage)) {
            INFO(ranks << " ranks, stage " << stage << " " << precision << ", accumulation "
                       << accumulation << keys);
            CHECK(same_bits(reference, run_at(spec, keys)));
          }
        }
      }
    }
  }
}

TEST_CASE("offload: a skipped step leaves every home as it was", "[engine][offload]") {
  for (const int stage : {1, 2, 3}) {
    RunSpec spec;
    spec.stage = stage;
    spec.steps = 6;
    spec.top_keys = R"("fp16": {"enabled": true, "initial_scale_power": 20, "hysteresis": 1})";
    const RunResult reference = run_at(spec, "");
    CHECK(reference.steps.front().skipped);
    CHECK_FALSE(reference.steps.back().skipped);
    for (const std::string& keys : homes(stage)) {
      INFO("stage " << stage << keys);
      CHECK(same_bits(reference, run_at(spec, keys)));
    }
  }
}

TEST_CASE("offload: every optimizer and parameter larger than a tile", "[engine][offload]") {
  for (const char* optimizer : {R"({"type": "AdamW", "params": {"lr": 0.01}})",
                                R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})"}) {
    RunSpec spec;
    spec.ranks = 1;
    spec.stage = 3;
    spec.steps = 2;
    spec.precision = "bf16";
    spec.optimizer = optimizer;
    spec.top_keys =
        R"("zero_allow_untested_optimizer": true, "zero_force_ds_cpu_optimizer": false)";
    spec.model.vocabulary = 60'000;  // 2.9 million elements in one parameter: three tiles
    const RunResult reference = run_at(spec, "");
    for (const std::string& keys : homes(spec.stage)) {
      INFO(optimizer << keys);
      CHECK(same_bits(reference, run_at(spec, keys)));
    }
  }
}

TEST_CASE("offload: device and host hold exactly what the plan says", "[engine][offload][memory]") {
  for (const char* precision : {"", "bf16"}) {
    for (const int stage : {1, 2, 3}) {
      for (const std::string& keys : homes(stage)) {
        RunSpec spec;
        spec.stage = stage;
        spec.precision = precision;
        spec.steps = 2;
        const std::int64_t resident = run_at(spec, "").memory.front().device.total_peak_bytes;
        const RunResult result = run_at(spec, keys);
        INFO("stage " << stage << " " << precision << keys);
        // In fp32 parameters alone on the host leave a master of the same size behind.
        const bool pays =
            precision[0] != '\0' || keys.find("offload_optimizer") != std::string::npos;
        CHECK((!pays || result.memory.front().device.total_peak_bytes < resident));
        for (const RankMemory& memory : result.memory) {
          for (const Category category : {Category::kParameters,
                                          Category::kGradients,
                                          Category::kMaster,
                                          Category::kMoments,
                                          Category::kPinned}) {
            INFO(category_name(category));
            const auto index = static_cast<std::size_t>(category);
            CHECK(memory.device.peak_bytes[index] == planned(result.plan.bytes, category));
            CHECK(memory.host.peak_bytes[index] == planned(result.plan.host_bytes, category));
          }
        }
      }
    }
  }
}

TEST_CASE("offload: where all states live on the host, updates need no tiles",
          "[engine][offload]") {
  for (const char* precision : {"", "bf16", "fp16"}) {
    RunSpec spec;
    spec.stage = 3;
    spec.precision = precision;
    spec.zero_keys = R"("stage3_param_persistence_threshold": 0)";
    const RunResult reference = run(spec);
    spec.zero_keys += std::string(kOptimizer) + kParameters;
    const RunResult result = run(spec);
    INFO(precision);
    CHECK(result.plan.tiles.count == 0);
    CHECK(result.plan.landing.count == 2);
    CHECK(planned(result.plan.bytes, Category::kGradients) == 0);
    CHECK(same_bits(reference, result));
  }
}

TEST_CASE("offload: sub_group_size bounds the tiles of an update", "[engine][offload][memory]") {
  std::vector<std::int64_t> pinned;
  RunSpec spec;
  spec.stage = 1;
  spec.precision = "bf16";
  const RunResult reference = run_at(spec, "");
  for (const std::int64_t elems : {0, 64, 3'000, 1'000'000'000}) {
    const RunResult result =
        run_at(spec, kOptimizer + fmt::format(R"(, "sub_group_size": {})", elems));
    CHECK(same_bits(reference, result));
    pinned.push_back(planned(result.plan.host_bytes, Category::kPinned));
    CHECK(result.memory.front().host.peak_bytes[static_cast<std::size_t>(Category::kPinned)] ==
          pinned.back());
  }
  // Three tiles of a bf16 gradient and a bf16 parameter each, in whole blocks of 64 elements.
  CHECK(pinned[0] == 3 * 64 * 4);
  CHECK(pinned[1] == 3 * 64 * 4);
  CHECK(pinned[2] == 3 * 3'008 * 4);
  CHECK(pinned[3] > pinned[2]);
}
