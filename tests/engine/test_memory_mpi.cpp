// What the ledger says is what the system gives: 100 million parameters on the ranks of mpirun.
#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/core/error.h>
#include <zero/engine/launch.h>

#include <fmt/format.h>

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

/// Trains two steps and returns the ledger's peak on this rank.
double train(World& world, int stage) {
  RunSpec spec;
  spec.stage = stage;
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
  return static_cast<double>(ledger.use(MemorySpace::kDevice).total_peak_bytes +
                             ledger.use(MemorySpace::kHost).total_peak_bytes);
}

}  // namespace

TEST_CASE("memory: resident bytes stay within a tenth of the ledger's peak in every stage",
          "[mpi][memory]") {
  const int code =
      launch({.ranks = 0, .comm = "mpi", .device = "cpu", .threads = 1}, [](World& world) {
        const double empty = peak_resident();  // MPI is up, no engine has been built
        for (const int stage :
             {3,
              2,
              1,
              0}) {  // each takes more than the one before, so peaks do not hide each other
          const double ledger = train(world, stage);
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
