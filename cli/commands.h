#pragma once

#include <CLI/CLI.hpp>

namespace zero::cli {

/// Each adds its subcommand to the program and runs in its callback, which throws zero::Error for
/// bad input. Results go to standard output; `status` becomes the program's exit status.
void add_validate(CLI::App& app, int& status);
void add_explain(CLI::App& app, int& status);
void add_convert(CLI::App& app, int& status);
void add_checkpoint(CLI::App& app, int& status);
void add_plan(CLI::App& app, int& status);
void add_estimate(CLI::App& app, int& status);
void add_bench(CLI::App& app);

}  // namespace zero::cli
