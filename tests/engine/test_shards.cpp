// hpZ and MiCS: columns of the plan that trade memory for traffic between nodes (see
// docs/ARCHITECTURE.md).
#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/core/error.h>

#include <fmt/format.h>

#include <cmath>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

RunSpec stage3(int ranks, const std::string& keys) {
  RunSpec spec;
  spec.ranks = ranks;
  spec.stage = 3;
  spec.micro_batch = 1;
  spec.zero_keys = R"("stage3_param_persistence_threshold": 50)" + keys;
  return spec;
}

std::string hpz(int ranks) {
  return fmt::format(R"(, "zero_hpz_partition_size": {})", ranks);
}

std::string mics(int ranks) {
  return fmt::format(R"(, "mics_shard_size": {})", ranks);
}

/// Largest difference of two runs' losses and norms, relative.
double distance(const RunResult& a, const RunResult& b) {
  double largest = 0.0;
  for (std::size_t step = 0; step < a.steps.size(); ++step) {
    largest = std::max({largest,
                        std::abs(a.steps[step].loss / b.steps[step].loss - 1.0),
                        std::abs(a.steps[step].grad_norm / b.steps[step].grad_norm - 1.0)});
  }
  return largest;
}

std::string error_of(const RunSpec& spec) {
  try {
    (void)run(spec);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("hpZ: a second copy in the node changes no bit", "[engine][shards]") {
  for (const char* precision : {"", "bf16"}) {
    for (const auto& [ranks, node] : {std::pair{2, 2}, {4, 2}, {6, 3}}) {
      for (const std::int64_t accumulation : {1, 2}) {
        RunSpec spec = stage3(ranks, "");
        spec.precision = precision;
        spec.accumulation = accumulation;
        const RunResult reference = run(spec);
        spec.zero_keys += hpz(node);
        spec.each_step = [](Engine& engine, nn::Gpt& /*model*/, int step) {
          (void)engine.evaluate(make_batch(step, 3, 7, 61));
        };
        INFO(ranks << " ranks, nodes of " << node << " " << precision);
        CHECK(same_bits(reference, run(spec)));
      }
    }
  }
}

TEST_CASE("hpZ: gathers stay in the node until the next update", "[engine][shards]") {
  RunSpec spec = stage3(4, R"(, "stage3_max_reuse_distance": 0)");
  spec.steps = 8;
  const RunResult plain = run(spec);
  spec.zero_keys += hpz(2);
  const RunResult second = run(spec);
  // A gather from all brings 3/4 of a unit to each rank, one from the node 1/2; reductions are the
  // same. Forward gathers from all, backward from the node.
  const auto in = [](const RunResult& result) {
    return static_cast<double>(result.traffic.front().bytes_in);
  };
  CHECK(in(second) < in(plain) * (0.75 + 0.5 + 0.75) / (3 * 0.75) * 1.02);
  const auto parameters = static_cast<std::size_t>(Category::kParameters);
  CHECK(second.plan.bytes[parameters] > plain.plan.bytes[parameters]);
  CHECK(second.memory.front().device.peak_bytes[parameters] == second.plan.bytes[parameters]);
}

TEST_CASE("MiCS: equal to its own runs, and nearly to those of one copy", "[engine][shards]") {
  for (const auto& [ranks, shard] : {std::pair{2, 1}, {4, 2}, {6, 2}, {6, 3}}) {
    for (const std::int64_t accumulation : {1, 2}) {
      RunSpec spec = stage3(ranks, "");
      spec.accumulation = accumulation;
      const RunResult one_copy = run(spec);
      spec.zero_keys += mics(shard);
      const RunResult reference = run(spec);
      INFO(ranks << " ranks, shards of " << shard);
      CHECK(distance(one_copy, reference) < 1e-6);
      spec.zero_keys += R"(, "reduce_bucket_size": 3000, "overlap_comm": false)";
      CHECK(same_bits(reference, run(spec)));
      spec.plan.local_accumulation = accumulation == 1;
      CHECK(same_bits(reference, run(spec)));
    }
  }
}

TEST_CASE("MiCS: a rank holds the state of its shard group", "[engine][shards][memory]") {
  const RunResult two = run(stage3(2, ""));
  const RunResult four = run(stage3(4, mics(2)));
  for (const Category category : {Category::kParameters, Category::kMoments, Category::kGathered}) {
    const auto index = static_cast<std::size_t>(category);
    CHECK(four.memory.front().device.peak_bytes[index] ==
          two.memory.front().device.peak_bytes[index]);
  }
}

TEST_CASE("hpZ and MiCS: sizes that do not divide the ranks are refused", "[engine][shards]") {
  CHECK_THAT(error_of(stage3(4, mics(3))), Catch::Contains("mics_shard_size"));
  CHECK_THAT(error_of(stage3(4, hpz(3))), Catch::Contains("zero_hpz_partition_size"));
  CHECK_THAT(error_of(stage3(4, hpz(2) + mics(2))), Catch::Contains("mics_shard_size"));
}
