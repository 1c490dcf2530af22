#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace zero {

/// Element types of tensors. Training uses fp32, fp16 and bf16; the others carry tokens, counters
/// and bytes.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kI32, kI64, kU8, kF64 };

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t dtype_size(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI64:
    case DType::kF64:
      return 8;
    case DType::kU8:
      return 1;
  }
  return 0;
}

/// The name used in logs, plans and ds_config ("fp32", "bf16", …).
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;

[[nodiscard]] constexpr bool is_floating(DType dtype) noexcept {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kF64;
}

/// bfloat16: the upper half of an fp32 pattern. Storage only; arithmetic happens in fp32.
struct BFloat16 {
  std::uint16_t bits;
  friend constexpr bool operator==(BFloat16, BFloat16) = default;
};

/// IEEE 754 binary16. Storage only; arithmetic happens in fp32.
struct Float16 {
  std::uint16_t bits;
  friend constexpr bool operator==(Float16, Float16) = default;
};

[[nodiscard]] constexpr float to_float(float x) noexcept {
  return x;
}

/// Exact.
[[nodiscard]] constexpr float to_float(BFloat16 x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16U);
}

/// Exact, subnormal numbers included; a NaN keeps its payload and becomes quiet.
[[nodiscard]] constexpr float to_float(Float16 x) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16U;
  const std::uint32_t rest = static_cast<std::uint32_t>(x.bits & 0x7FFFU) << 13U;
  if (rest >= 0x0F800000U) {  // infinity or NaN
    const std::uint32_t quiet = rest > 0x0F800000U ? 0x00400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | (rest & 0x007FFFFFU) | quiet);
  }
  // Re-bias the exponent by a multiplication: it also normalises subnormal numbers, exactly.
  const float magnitude = std::bit_cast<float>(rest) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

/// Round to nearest, ties to even; NaN stays NaN (quiet).
[[nodiscard]] constexpr BFloat16 to_bfloat16(float x) noexcept {
  const auto pattern = std::bit_cast<std::uint32_t>(x);
  if ((pattern & 0x7FFFFFFFU) > 0x7F800000U) {
    return {static_cast<std::uint16_t>((pattern >> 16U) | 0x0040U)};
  }
  return {static_cast<std::uint16_t>((pattern + 0x7FFFU + ((pattern >> 16U) & 1U)) >> 16U)};
}

/// Round to nearest, ties to even, overflow to infinity, gradual underflow; NaN stays NaN (quiet).
[[nodiscard]] constexpr Float16 to_float16(float x) noexcept {
  const auto pattern = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (pattern >> 16U) & 0x8000U;
  const std::uint32_t magnitude = pattern & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return {static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13U) & 0x01FFU))};
  }
  if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    return {static_cast<std::uint16_t>(sign | 0x7C00U)};
  }
  if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 shifts the subnormal bits into place,
                                  // rounding to even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U))};
  }
  const std::uint32_t rounded = magnitude + 0x0FFFU + ((magnitude >> 13U) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13U))};
}

/// One rounding from fp32 to `T` in {float, BFloat16, Float16}.
template <class T>
[[nodiscard]] constexpr T from_float(float x) noexcept;
template <>
constexpr float from_float<float>(float x) noexcept {
  return x;
}
template <>
constexpr BFloat16 from_float<BFloat16>(float x) noexcept {
  return to_bfloat16(x);
}
template <>
constexpr Float16 from_float<Float16>(float x) noexcept {
  return to_float16(x);
}

/// DType of a C++ element type.
template <class T>
inline constexpr DType kDTypeOf = [] {
  if constexpr (std::is_same_v<T, float>) {
    return DType::kF32;
  } else if constexpr (std::is_same_v<T, Float16>) {
    return DType::kF16;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return DType::kBF16;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return DType::kI32;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return DType::kI64;
  } else if constexpr (std::is_same_v<T, double>) {
    return DType::kF64;
  } else {
    static_assert(std::is_same_v<T, std::uint8_t>, "no DType for this element type");
    return DType::kU8;
  }
}();

}  // namespace zero
