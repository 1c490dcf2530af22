#pragma once

#include <cstddef>

namespace zero::comm {

/// Bytes that a reduction receives from one peer at once, and how many such chunks are under way.
inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10U;
inline constexpr std::size_t kChunksUnderWay = 2;

}  // namespace zero::comm
