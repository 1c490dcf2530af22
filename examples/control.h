#pragma once

#include <zero/engine/launch.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace zero::examples {

/// A few bytes from every rank to every rank, apart from the model's data, on a stream of its own:
/// it never waits for the computation. One per rank, used by one thread; every call is collective.
class Control {
 public:
  explicit Control(World& world);

  /// One number from each rank, in rank order, the same on all ranks.
  [[nodiscard]] std::vector<double> gather(double value);
  /// Mean over the ranks, added in rank order: the same bits on all of them.
  [[nodiscard]] double mean(double value);

 private:
  World& world_;
  std::unique_ptr<accel::Stream> stream_;
  accel::Buffer mine_;  ///< fp64 [1]
  accel::Buffer all_;   ///< fp64 [N]
};

/// From now on SIGINT and SIGTERM (and what stands for them, mpirun.h) ask for an end after the
/// step in work. Called when there are steps: before, they end the process, which is how mpirun
/// ends the ranks of a job that fails.
void catch_stop_signals();
/// Lets a write past the file-size limit fail like one to a full disk, by an error.
void ignore_file_size_signal();
/// The signal that came to this process, or 0.
[[nodiscard]] int stop_signal() noexcept;

/// Lets all ranks stop after the same step, whichever of them the signal reached.
class StopVote {
 public:
  explicit StopVote(Control& control) : control_(control) {}
  /// Once after each step: whether all ranks stop now.
  [[nodiscard]] bool stop_now();
  /// The signal agreed on, 0 if none.
  [[nodiscard]] int signal() const noexcept { return signal_; }

 private:
  Control& control_;
  int signal_ = 0;
};

}  // namespace zero::examples
