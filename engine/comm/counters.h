#pragma once

#include <zero/comm/group.h>

#include <atomic>
#include <cstdint>

namespace zero::comm {

/// Traffic of one rank's group; streams and transports add to it at the same time.
class Counters {
 public:
  void add_in(Payload payload, std::uint64_t bytes) noexcept {
    (payload == Payload::kData ? bytes_in_ : control_bytes_in_).fetch_add(bytes, kRelaxed);
  }
  void add_out(Payload payload, std::uint64_t bytes) noexcept {
    (payload == Payload::kData ? bytes_out_ : control_bytes_out_).fetch_add(bytes, kRelaxed);
  }
  void add_collective() noexcept { collectives_.fetch_add(1, kRelaxed); }
  [[nodiscard]] Traffic read() const noexcept {
    return {.bytes_in = bytes_in_.load(kRelaxed),
            .bytes_out = bytes_out_.load(kRelaxed),
            .control_bytes_in = control_bytes_in_.load(kRelaxed),
            .control_bytes_out = control_bytes_out_.load(kRelaxed),
            .collectives = collectives_.load(kRelaxed)};
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<std::uint64_t> bytes_in_ = 0;
  std::atomic<std::uint64_t> bytes_out_ = 0;
  std::atomic<std::uint64_t> control_bytes_in_ = 0;
  std::atomic<std::uint64_t> control_bytes_out_ = 0;
  std::atomic<std::uint64_t> collectives_ = 0;
};

}  // namespace zero::comm
