#include <zero/core/timeline.h>

#include <chrono>
#include <utility>

namespace zero {

std::string_view activity_name(Activity activity) noexcept {
  static constexpr std::array<std::string_view, kActivities> kNames = {
      "forward", "backward", "step", "module", "stall", "gather", "reduce", "control", "copy"};
  return kNames.at(static_cast<std::size_t>(activity));
}

void Timeline::enable(bool spans) noexcept {
  enabled_ = true;
  keeps_spans_ = keeps_spans_ || spans;
}

std::int64_t Timeline::now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Timeline::add(TimeSpan span) {
  const std::lock_guard lock(mutex_);
  ActivitySum& sum = sums_.at(static_cast<std::size_t>(span.activity));
  ++sum.spans;
  sum.ns += span.end_ns - span.begin_ns;
  sum.bytes += span.bytes;
  if (keeps_spans_ && spans_.size() < kMaxSpans) {
    spans_.push_back(std::move(span));
  } else if (keeps_spans_) {
    ++dropped_;
  }
}

void Timeline::count(CounterSample sample) {
  const std::lock_guard lock(mutex_);
  if (keeps_spans_ && counters_.size() < kMaxSpans) {
    counters_.push_back(std::move(sample));
  }
}

ActivitySums Timeline::take_sums() {
  const std::lock_guard lock(mutex_);
  return std::exchange(sums_, {});
}

std::vector<TimeSpan> Timeline::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::vector<CounterSample> Timeline::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::size_t Timeline::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace zero
