#pragma once

#include <zero/accel/stream.h>
#include <zero/core/timeline.h>

#include <memory>
#include <string>
#include <string_view>

namespace zero::accel {

/// When a span of a stream began; nullptr where nothing is recorded.
using SpanStart = std::shared_ptr<std::int64_t>;

/// Marks the begin of a span in the work of a stream, and its end. Neither stops anything.
[[nodiscard]] inline SpanStart begin_span(const Timeline& timeline, Stream& stream) {
  if (!timeline.enabled()) {
    return nullptr;
  }
  auto start = std::make_shared<std::int64_t>(0);
  stream.host_task([start] { *start = Timeline::now_ns(); });
  return start;
}

inline void end_span(Timeline& timeline,
                     Stream& stream,
                     const SpanStart& start,
                     Activity activity,
                     std::string_view name,
                     std::int64_t bytes = 0) {
  if (start == nullptr) {
    return;
  }
  stream.host_task([&timeline,
                    start,
                    span = TimeSpan{.track = stream.name(),
                                    .name = std::string(name),
                                    .activity = activity,
                                    .bytes = bytes}]() mutable {
    span.begin_ns = *start;
    span.end_ns = Timeline::now_ns();
    timeline.add(std::move(span));
  });
}

}  // namespace zero::accel
