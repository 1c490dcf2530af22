#pragma once

#include <zero/accel/device.h>

#include <cstddef>
#include <cstdint>

namespace zero::accel {

/// What a kernel needs memory of its own for. Uses that are live at the same time have names of
/// their own.
enum class ScratchUse : std::uint8_t { kPanels, kLibrary, kAttention };
inline constexpr std::size_t kScratchUses = 3;

/// Tells the stream, on enqueueing, what a kernel will ask scratch() for.
inline void expect_scratch(Stream& stream, ScratchUse use, std::size_t bytes) {
  stream.expect_scratch(static_cast<std::size_t>(use), bytes);
}

/// At least `bytes` of uninitialised memory, 64-byte aligned, that the calling thread keeps from
/// kernel to kernel; booked as kOther. Valid until the thread's next call for the same use.
///
/// The thread is a stream's worker, which ends before its device does. Throws ResourceError.
[[nodiscard]] std::byte* scratch(Device& device, ScratchUse use, std::size_t bytes);

}  // namespace zero::accel
