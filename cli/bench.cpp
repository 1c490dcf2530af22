#include "cli/bench.h"

#include "cli/commands.h"

#include <algorithm>
#include <chrono>

namespace zero::cli {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values.at((values.size() - 1) / 2) + values.at(values.size() / 2)) / 2.0;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void add_bench(CLI::App& app) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measures this machine beside a yardstick of its own");
  bench->require_subcommand(1);
  add_bench_io(*bench);
}

}  // namespace zero::cli
