#include <zero/core/rng.h>

#include <cmath>

namespace zero {

float normal_at(std::uint64_t state, std::uint64_t index, double std) noexcept {
  const std::uint64_t bits = splitmix64_at(state, index);
  const auto sum = static_cast<std::int64_t>((bits & 0xFFFFU) + ((bits >> 16U) & 0xFFFFU) +
                                             ((bits >> 32U) & 0xFFFFU) + (bits >> 48U));
  // Each piece is uniform over 2^16 values: variance (2^32 - 1) / 12, four of them (2^32 - 1) / 3.
  const double unit = std / std::sqrt(4294967295.0 / 3.0);
  return static_cast<float>(static_cast<double>(sum - 131070) * unit);
}

}  // namespace zero
