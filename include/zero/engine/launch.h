#pragma once

#include <zero/comm/group.h>
#include <zero/core/rank_context.h>

#include <functional>
#include <optional>
#include <string>

namespace zero {

/// One rank's place in the run: what initialize() needs. Everything outlives the function given to
/// launch().
struct World {
  RankContext& context;
  accel::Device& device;
  comm::Group& group;  ///< all ranks
};

struct LaunchOptions {
  int ranks = 0;              ///< 0: as many as mpirun started, else 1
  std::string comm = "auto";  ///< local, mpi; auto: mpi under mpirun, else local
  std::string device = "cpu";
  int threads = 0;  ///< compute threads a rank; 0: available cores ÷ ranks on this node
  std::optional<comm::NetworkShape> network{};  ///< a network to imitate
};

/// Runs `body` once on every rank of this process and returns the process's exit status: what the
/// ranks returned (the largest), or the exit code of the first error, which is printed as one line
/// "error: …" on standard error.
///
/// local: ranks are threads; a rank that throws ends all others with PeerError. mpi: this process
/// is one rank; an error ends the whole job. Throws InputError for options that make no sense.
[[nodiscard]] int launch(const LaunchOptions& options, const std::function<int(World&)>& body);

/// Prints "error: what" and returns the exit code of an exception; the last resort of main().
[[nodiscard]] int report_error(const std::exception& error) noexcept;

}  // namespace zero
