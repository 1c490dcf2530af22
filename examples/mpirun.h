#pragma once

#include <exception>

namespace zero::examples {

// mpirun answers SIGINT and SIGTERM by killing its ranks two seconds later, too soon for a step to
// be finished; SIGUSR1 and SIGUSR2 it passes on to them at once. So between us and our ranks these
// two stand for the other two.

/// Runs `mpirun -n ranks` of this program with the same arguments and returns the status of the
/// job. SIGINT and SIGTERM are passed on to the ranks.
[[nodiscard]] int run_under_mpirun(int ranks, char** argv);

/// The signal that a rank is meant to see: SIGINT for SIGUSR1, SIGTERM for SIGUSR2, else itself.
[[nodiscard]] int meant_signal(int signal) noexcept;

/// Prints "error: …" and returns the exit status. An error that all processes of an mpirun job find
/// before their ranks have met is printed by the first of them alone.
[[nodiscard]] int report_once(const std::exception& error) noexcept;

}  // namespace zero::examples
