// What the ledger says is what the system gives: 100 million parameters on the ranks of mpirun.
#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/core/error.h>
#include <zero/engine/launch.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

constexpr double kMiB = 1024.0 * 1024.0;

/// Peak resident memory of this process in bytes, as the system counts it.
double peak_resident() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) {
      return std::stod(line.substr(6)) * 1024.0;
    }
  }
  throw InternalError("no VmHWM in /proc/self/status");
}

/// Bytes of parameters, gradients, master and moments for each of Ψ parameters on N ranks.
/// Source: Rajbhandari et al. 2020, figure 1; fp32: parameter and gradient take 4 each.
double state_bytes_each(int stage, double ranks, bool bf16) {
  const double parameter = (bf16 ? 2.0 : 4.0) / (stage == 3 ? ranks : 1.0);
  const double gradient = (bf16 ? 2.0 : 4.0) / (stage >= 2 ? ranks : 1.0);
  const double rest = (bf16 ? 12.0 : 8.0) / (stage >= 1 ? ranks : 1.0);
  return parameter + gradient + rest;
}

/// Trains two steps and returns the ledger's peak on this rank.
double train(World& world, int stage, const std::string& precision) {
  RunSpec spec;
  spec.stage = stage;
  spec.precision = precision;
  spec.micro_batch = 1;
  spec.model.layers = 8;
  spec.model.hidden = 1024;
  spec.model.inner = 4096;
  spec.model.heads = 16;
  spec.model.positions = 16;
  spec.model.vocabulary = 256;
  const std::string config =
      write_temporary(fmt::format("memory{}.json", world.group.rank()), ds_config(spec));
  nn::Gpt model(spec.model);
  ZERO_CHECK(spec.model.elems() > 100'000'000, "the model is smaller than stated");
  const auto engine = initialize({.world = world, .model = model, .config = config});
  for (int step = 0; step < 2; ++step) {
    engine->backward(engine->forward(make_batch(step, 1, 16, 256)));
    engine->step();
  }
  engine->synchronize();
  const Ledger& ledger = world.context.ledger;
  double states = 0.0;
  for (const Category category :
       {Category::kParameters, Category::kGradients, Category::kMaster, Category::kMoments}) {
    states += static_cast<double>(
        ledger.use(MemorySpace::kDevice).current_bytes.at(static_cast<std::size_t>(category)));
  }
  const double table = static_cast<double>(spec.model.elems()) *
                       state_bytes_each(stage, world.group.size(), !precision.empty());
  ZERO_CHECK(std::abs(states - table) <= 0.01 * table,
             fmt::format("stage {}: {:.1f} MiB of states, {:.1f} MiB by the table",
                         stage,
                         states / kMiB,
                         table / kMiB));
  return static_cast<double>(ledger.use(MemorySpace::kDevice).total_peak_bytes +
                             ledger.use(MemorySpace::kHost).total_peak_bytes);
}

}  // namespace

namespace {

void check_every_stage(const std::string& precision) {
  const int code =
      launch({.ranks = 0, .comm = "mpi", .device = "cpu", .threads = 1}, [&](World& world) {
        const double empty = peak_resident();  // MPI is up, no engine has been built
        for (const int stage :
             {3,
              2,
              1,
              0}) {  // each takes more than the one before, so peaks do not hide each other
          const double ledger = train(world, stage, precision);
          const double resident = peak_resident() - empty;
          if (world.group.rank() == 0) {
            std::printf("stage %d: resident %.1f MiB, ledger %.1f MiB\n",
                        stage,
                        resident / kMiB,
                        ledger / kMiB);
          }
          ZERO_CHECK(resident <= 1.10 * ledger + 64.0 * kMiB,
                     fmt::format("stage {}: {:.1f} MiB resident, {:.1f} MiB in the ledger",
                                 stage,
                                 resident / kMiB,
                                 ledger / kMiB));
        }
        return 0;
      });
  CHECK(code == 0);
}

}  // namespace

// Each in a process of its own: the peak of a process never falls.
TEST_CASE("memory: in fp32 resident bytes stay within a tenth of the ledger's peak", "[fp32]") {
  check_every_stage("");
}

TEST_CASE("memory: in bf16 resident bytes stay within a tenth of the ledger's peak", "[bf16]") {
  check_every_stage("bf16");
}
