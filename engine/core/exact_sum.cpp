#include <zero/core/exact_sum.h>

#include <bit>
#include <cmath>

namespace zero::exact_sum {

void add(std::span<std::int64_t, kLimbs> limbs, double value) noexcept {
  if (value == 0.0) {
    return;
  }
  int exponent = 0;
  // value = significand · 2^exponent with a 53-bit integer significand, exactly.
  const double fraction = std::frexp(value, &exponent);
  const auto significand = static_cast<std::int64_t>(std::ldexp(fraction, 53));
  exponent -= 53;
  const std::uint64_t magnitude =
      static_cast<std::uint64_t>(significand < 0 ? -significand : significand);
  const std::int64_t sign = significand < 0 ? -1 : 1;
  int position = exponent + kBias;
  std::uint64_t bits = magnitude;
  if (position < 0) {  // below the last limb: cannot happen for squares of fp32 numbers, see kBias
    bits = position <= -64 ? 0 : bits >> static_cast<unsigned>(-position);
    position = 0;
  }
  const auto limb = static_cast<std::size_t>(position / 32);
  const auto shift = static_cast<unsigned>(position % 32);
  const std::uint64_t low = bits << shift;
  const std::uint64_t high = shift == 0 ? 0 : bits >> (64U - shift);
  limbs[limb] += sign * static_cast<std::int64_t>(low & 0xFFFFFFFFU);
  if (limb + 1 < kLimbs) {
    limbs[limb + 1] += sign * static_cast<std::int64_t>(low >> 32U);
  }
  if (limb + 2 < kLimbs) {
    limbs[limb + 2] += sign * static_cast<std::int64_t>(high);
  }
}

double value(std::span<const std::int64_t, kLimbs> limbs) noexcept {
  // Carry into proper digits 0 … 2^32 − 1; the top one keeps the sign.
  std::array<std::int64_t, kLimbs + 2> digits{};
  std::int64_t carry = 0;
  for (std::size_t i = 0; i < kLimbs; ++i) {
    const std::int64_t sum = limbs[i] + carry;
    digits[i] = sum & 0xFFFFFFFF;
    carry = sum >> 32;
  }
  const bool negative = carry < 0;
  if (negative) {  // two's complement over the digits
    std::int64_t borrow = 1;
    for (std::size_t i = 0; i < kLimbs; ++i) {
      const std::int64_t flipped = (digits[i] ^ 0xFFFFFFFF) + borrow;
      digits[i] = flipped & 0xFFFFFFFF;
      borrow = flipped >> 32;
    }
    carry = ~carry + borrow;
  }
  digits[kLimbs] = carry & 0xFFFFFFFF;
  digits[kLimbs + 1] = carry >> 32;
  int top = kLimbs + 1;
  while (top >= 0 && digits[static_cast<std::size_t>(top)] == 0) {
    --top;
  }
  if (top < 0) {
    return 0.0;
  }
  const auto digit = [&](int i) {
    return i < 0 ? std::uint64_t{0}
                 : static_cast<std::uint64_t>(digits[static_cast<std::size_t>(i)]);
  };
  // The 64 highest bits with everything below them as one sticky bit: the conversion then rounds
  // once, to even.
  const auto shift =
      static_cast<unsigned>(std::countl_zero(static_cast<std::uint32_t>(digit(top))));
  std::uint64_t bits = ((digit(top) << 32U) | digit(top - 1)) << shift;
  if (shift > 0) {
    bits |= digit(top - 2) >> (32U - shift);
  }
  bool sticky = shift == 0 ? digit(top - 2) != 0 : (digit(top - 2) << (32U + shift) >> 32U) != 0;
  for (int i = top - 3; i >= 0 && !sticky; --i) {
    sticky = digit(i) != 0;
  }
  bits |= sticky ? 1U : 0U;
  const int exponent = 32 * (top - 1) - static_cast<int>(shift) - kBias;
  const double magnitude = std::ldexp(static_cast<double>(bits), exponent);
  return negative ? -magnitude : magnitude;
}

}  // namespace zero::exact_sum
