#pragma once

#include <CLI/CLI.hpp>

#include <vector>

namespace zero::cli {

/// Each adds a measurement to `zero bench`, which ends with one JSON object as the last line of
/// standard output.
void add_bench_io(CLI::App& bench);

[[nodiscard]] double median(std::vector<double> values);
/// Seconds of a clock that only moves forward.
[[nodiscard]] double now_s();

}  // namespace zero::cli
