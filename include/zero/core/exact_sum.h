#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace zero {

/// An exact, order-free sum of fp64 numbers: a fixed-point number of 24 limbs of 32 bits, each kept
/// in an int64.
///
/// Limb i has weight 2^(32·i − kBias). Adding splits a number into at most three limbs; limbs of
/// several sums add like integers (that is how they travel through an all-reduce), so the result
/// never depends on order or grouping. Range: the squares of all finite fp32 numbers and sums of up
/// to 2^31 of them. Source: Kulisch accumulators.
namespace exact_sum {
inline constexpr int kLimbs = 24;
inline constexpr int kBias =
    352;  ///< 2^-352 is below the last bit of the smallest block sum that is not zero

/// limbs += value. `value` must be finite, |value| < 2^384.
void add(std::span<std::int64_t, kLimbs> limbs, double value) noexcept;
/// The sum, rounded once to nearest even.
[[nodiscard]] double value(std::span<const std::int64_t, kLimbs> limbs) noexcept;
}  // namespace exact_sum

}  // namespace zero
