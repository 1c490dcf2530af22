#include "engine/accel/cpu/scratch.h"

#include <array>

namespace zero::accel {

std::byte* scratch(Device& device, ScratchUse use, std::size_t bytes) {
  thread_local std::array<Buffer, kScratchUses> kept;
  Buffer& buffer = kept.at(static_cast<std::size_t>(use));
  if (!buffer || buffer.bytes() < bytes) {
    buffer = {};  // before taking more, so that the peak is the larger of the two
    buffer = device.allocate(bytes, Category::kOther, MemorySpace::kHost);
  }
  return buffer.data();
}

}  // namespace zero::accel
