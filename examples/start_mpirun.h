#pragma once

#include <exception>

namespace zero::examples {

/// Replaces this process by `mpirun -n ranks` of itself with the same arguments; the status of the
/// job becomes that of the program. Does not return; ResourceError if there is no mpirun.
[[noreturn]] void start_mpirun(int ranks, char** argv);

/// Prints "error: …" and returns the exit status. An error that all processes of an mpirun job find
/// before their ranks have met is printed by the first of them alone.
[[nodiscard]] int report_once(const std::exception& error) noexcept;

}  // namespace zero::examples
