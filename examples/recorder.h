#pragma once

#include "examples/metrics.h"
#include "examples/progress.h"
#include <zero/engine/engine.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zero::examples {

/// What a run tells while it goes: the progress line, the metrics file and the losses for the end.
/// Every rank has one; only rank 0's writes.
class Recorder {
 public:
  /// Opens the metrics file on rank 0 ("": none).
  Recorder(World& world, const std::string& metrics_path, const Progress::Facts& facts);

  /// Finished steps, in order. The time since the last call belongs to them.
  void steps(const std::vector<StepResult>& results);
  /// A validation loss after `step` steps; its time belongs to no step.
  void evaluation(std::int64_t step, double loss);
  /// A line of its own; the time that what it tells took belongs to no step.
  void note(const std::string& text);
  /// The run is over.
  void summary(const Engine& engine, const std::vector<RankMemory>& memory, int signal);

  /// Mean loss of the last 20 steps, or of all if there were fewer; NaN if there was none.
  [[nodiscard]] double final_loss() const;

 private:
  using Clock = std::chrono::steady_clock;
  void record(const StepResult& result, double step_s);

  World& world_;
  Progress::Facts facts_;
  std::unique_ptr<MetricsFile> metrics_;
  std::optional<Progress> progress_;  // on rank 0
  Clock::time_point last_ = Clock::now();
  std::deque<double> last_losses_;
  std::int64_t steps_ = 0;
  double train_s_ = 0.0;
};

}  // namespace zero::examples
