#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

/// What a stretch of a stream's time went into.
enum class Activity : std::uint8_t {
  kForward,   ///< a whole forward pass on the compute stream
  kBackward,  ///< a whole backward pass
  kStep,      ///< everything between the end of a window and the updated parameters
  kModule,    ///< one unit's part of a pass
  kStall,     ///< the compute stream waits for a collective or a copy
  kGather,    ///< all-gathers of parameters
  kReduce,    ///< reductions of gradients
  kControl,   ///< the few bytes that steer a step
  kCopy,      ///< between homes
};
inline constexpr std::size_t kActivities = 9;
[[nodiscard]] std::string_view activity_name(Activity activity) noexcept;

/// One stretch: nanoseconds of the steady clock.
struct TimeSpan {
  std::string track;  ///< name of the stream
  std::string name;
  Activity activity = Activity::kModule;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t bytes = 0;
};

/// Values of a counter from a moment on: one for each of `names`.
struct CounterSample {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::int64_t>> values;
  std::int64_t at_ns = 0;
};

/// Sums over the spans of one activity.
struct ActivitySum {
  std::int64_t spans = 0;
  std::int64_t ns = 0;
  std::int64_t bytes = 0;
};
using ActivitySums = std::array<ActivitySum, kActivities>;

/// What the streams of one rank do when. Off until somebody wants it: then nothing is recorded and
/// nothing costs time. Any thread may call; switch it on before streams work.
class Timeline {
 public:
  /// Spans that are kept at most; later ones still count in the sums.
  static constexpr std::size_t kMaxSpans = 1'000'000;

  /// From now on sums are kept; with `spans` every span and counter too.
  void enable(bool spans) noexcept;
  [[nodiscard]] bool enabled() const noexcept { return enabled_; }
  [[nodiscard]] bool keeps_spans() const noexcept { return keeps_spans_; }
  [[nodiscard]] static std::int64_t now_ns() noexcept;

  void add(TimeSpan span);
  void count(CounterSample sample);
  /// Sums since the last call.
  [[nodiscard]] ActivitySums take_sums();
  /// What is kept; spans that came after kMaxSpans are only counted.
  [[nodiscard]] std::vector<TimeSpan> spans() const;
  [[nodiscard]] std::vector<CounterSample> counters() const;
  [[nodiscard]] std::size_t dropped() const;

 private:
  bool enabled_ = false;
  bool keeps_spans_ = false;
  mutable std::mutex mutex_;  // guards everything below
  ActivitySums sums_{};
  std::vector<TimeSpan> spans_;
  std::vector<CounterSample> counters_;
  std::size_t dropped_ = 0;
};

}  // namespace zero
