#pragma once

namespace zero {

/// The smallest multiple of `multiple` (> 0) that is not below `value` (>= 0).
template <class Integer>
[[nodiscard]] constexpr Integer round_up(Integer value, Integer multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace zero
