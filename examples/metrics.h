#pragma once

#include <zero/engine/engine.h>

#include <cstdint>
#include <string>
#include <vector>

namespace zero::examples {

/// A step with what was measured around it.
struct StepRecord {
  StepResult result;
  double step_s = 0.0;
  double tokens_per_s = 0.0;  ///< of all ranks
};

/// The file behind --metrics: one JSON object a line, each line written whole. Used by rank 0, by
/// one thread.
///
/// A line that does not fit on the disk is taken back, so the file always ends with a whole line.
class MetricsFile {
 public:
  /// Creates or empties the file. IoError if that fails.
  explicit MetricsFile(std::string path);
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  MetricsFile(MetricsFile&&) = delete;
  MetricsFile& operator=(MetricsFile&&) = delete;
  ~MetricsFile();

  void step(const StepRecord& record, const RankMemory& memory);
  void evaluation(std::int64_t step, double loss);

  struct Summary {
    std::int64_t steps = 0;
    double loss = 0.0;  ///< mean of the last steps, NaN if there was none
    double train_s = 0.0;
    double tokens_per_s = 0.0;
    int signal = 0;         ///< that ended the run early, or 0
    comm::Traffic traffic;  ///< of rank 0
    std::vector<RankMemory> memory;
  };
  void summary(const Summary& summary);

 private:
  void write_line(std::string line);

  std::string path_;
  int descriptor_;
  std::int64_t written_bytes_ = 0;
};

}  // namespace zero::examples
