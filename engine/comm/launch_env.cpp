#include "engine/comm/mpi/chunks.h"
#include <zero/comm/group.h>

#include <array>
#include <cstdlib>

namespace zero::comm {

bool under_mpirun() {
  constexpr std::array kNames = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
  for (const char* name : kNames) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing in the engine changes the environment
    if (std::getenv(name) != nullptr) {
      return true;
    }
  }
  return false;
}

std::int64_t mpi_staging_bytes(int ranks) noexcept {
  return static_cast<std::int64_t>(kChunksUnderWay * kChunkBytes) * (ranks - 1);
}

}  // namespace zero::comm
