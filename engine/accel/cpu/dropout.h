#pragma once

#include <zero/accel/kernels.h>
#include <zero/core/rng.h>

#include <cmath>
#include <cstdint>

namespace zero::accel {

/// The mask of one row: factor(i) is 0 where element i is dropped, else 1 / (1 − rate).
///
/// 32 bits of a hash of the element decide, keyed by 64 bits of (stream, row): two rounds of
/// multiply and shift with a key before each. Elements below 2^32.
class DropoutMask {
 public:
  DropoutMask(const Dropout& dropout, std::uint64_t row)
      : threshold_(static_cast<std::uint32_t>(
            std::lround(static_cast<double>(dropout.rate) * 4294967295.0))),
        kept_(1.0F / (1.0F - dropout.rate)) {
    const std::uint64_t key = splitmix64_at(dropout.stream, row);
    first_ = static_cast<std::uint32_t>(key);
    second_ = static_cast<std::uint32_t>(key >> 32U);
  }

  [[nodiscard]] float factor(std::uint32_t element) const {
    std::uint32_t x = round(element ^ first_);
    x = round(x + second_);
    return x < threshold_ ? 0.0F : kept_;
  }

 private:
  static std::uint32_t round(std::uint32_t x) {
    x ^= x >> 16U;
    x *= 0x7FEB352DU;
    x ^= x >> 15U;
    x *= 0x846CA68BU;
    return x ^ (x >> 16U);
  }

  std::uint32_t threshold_;
  float kept_;
  std::uint32_t first_ = 0;
  std::uint32_t second_ = 0;
};

}  // namespace zero::accel
