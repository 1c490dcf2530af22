#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace zero::examples {

/// One finished step as the user sees it.
struct StepView {
  std::int64_t step = 0;
  double loss = 0.0;
  double lr = 0.0;
  double tokens_per_s = 0.0;
  std::int64_t memory_bytes = 0;  ///< of this rank, now
};

/// The live line on standard error: rewritten in place on a terminal, else a plain line every few
/// seconds. Used by rank 0, by one thread.
class Progress {
 public:
  struct Facts {
    std::int64_t steps = 0;        ///< total
    double tokens_per_step = 0.0;  ///< of all ranks
    double flops_per_token = 0.0;
    double machine_flops = 0.0;  ///< of all ranks together, a second
  };
  explicit Progress(const Facts& facts);

  void show(const StepView& view);
  /// A line of its own.
  void say(const std::string& text);
  /// Ends the live line.
  void finish();

 private:
  [[nodiscard]] std::string line(const StepView& view) const;

  Facts facts_;
  bool terminal_;
  bool open_ = false;          ///< a live line is on the terminal
  double tokens_per_s_ = 0.0;  ///< smoothed
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace zero::examples
