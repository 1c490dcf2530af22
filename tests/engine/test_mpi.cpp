// Ranks that are processes give the bits of ranks that are threads. Runs under mpirun.
#include "engine/random_spec.h"
#include <support/catch.h>
#include <zero/engine/launch.h>

#include <fmt/format.h>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

std::vector<RunSpec> matrix(int ranks) {
  std::vector<RunSpec> specs;
  for (const char* precision : {"", "bf16", "fp16"}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const std::int64_t bucket : {1'000L, 50'000L, 500'000'000L}) {
        for (const std::int64_t persistence : {0L, 1'000L, 100'000L}) {
          const bool repeats =
              (stage < 3 && persistence != 0) || (precision[0] != '\0' && bucket == 1'000);
          if (!repeats) {
            RunSpec spec;
            spec.ranks = ranks;
            spec.stage = stage;
            spec.precision = precision;
            spec.accumulation = bucket == 500'000'000 ? 2 : 1;
            spec.model.attention_dropout = 0.1F;
            spec.model.residual_dropout = 0.1F;
            spec.zero_keys =
                fmt::format(R"("reduce_bucket_size": {}, "stage3_param_persistence_threshold": {})",
                            bucket,
                            persistence);
            specs.push_back(spec);
          }
        }
      }
    }
  }
  return specs;
}

/// Random settings give the bits of the plainest run on threads.
void check_random_points(World& world) {
  std::mt19937_64 random(20261206);
  for (int point = 0; point < 5; ++point) {
    const RunSpec spec = random_spec(random, world.group.size());
    const RunResult result = run_on(world, spec);
    if (world.group.rank() == 0) {
      INFO("point " << point << ": " << describe(spec));
      CHECK(same_bits(run(plainest(spec)), result));
    }
  }
}

}  // namespace

TEST_CASE(
    "mpi: every stage, bucket, threshold and precision, with dropout, and random settings give the "
    "bits of one run on threads",
    "[mpi]") {
  (void)launch({.ranks = 0, .comm = "mpi", .device = "cpu", .threads = 1}, [](World& world) {
    std::map<std::string, RunResult> references;
    for (const RunSpec& spec : matrix(world.group.size())) {
      const RunResult result = run_on(world, spec);
      if (world.group.rank() != 0) {
        continue;  // only rank 0 holds the result; its assertions are the test's
      }
      // With accumulation stages 0 and 1 sum before they reduce, 2 and 3 after it.
      const int first_stage = spec.accumulation > 1 && spec.stage >= 2 ? 2 : 0;
      const std::string kind =
          fmt::format("{} {} {}", spec.precision, spec.accumulation, first_stage);
      if (references.count(kind) == 0) {
        RunSpec reference = spec;
        reference.stage = first_stage;
        references[kind] = run(reference);
      }
      INFO(kind << ", stage " << spec.stage << " " << spec.zero_keys);
      CHECK(same_bits(references[kind], result));
    }
    check_random_points(world);
    return 0;
  });
}
