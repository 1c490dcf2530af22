#pragma once

#include <zero/core/dtype.h>
#include <zero/core/error.h>

#include <bit>
#include <cstddef>
#include <cstdint>

// One source, several instruction sets, chosen when the program starts. All give the same bits: no
// fused multiply-add, no reassociation, reductions over a fixed number of lanes. Sanitizers start
// too late for run-time dispatch.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define ZERO_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ZERO_VECTOR_CLONES
#endif

namespace zero::accel {

/// Lanes of every sum: enough for the widest vectors, the same on all processors.
inline constexpr std::size_t kLanes = 16;

/// Sum of the lanes by a fixed tree.
template <class T>
[[nodiscard]] inline T sum_lanes(const T (&lanes)[kLanes]) noexcept {
  T sums[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) {
    sums[i] = lanes[i];
  }
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) {
      sums[i] += sums[i + width];
    }
  }
  return sums[0];
}

/// Σ term(i) for i in [0, n): element i goes to lane i mod kLanes, in order.
template <class T, class Term>
[[nodiscard]] inline T lane_sum(std::size_t n, Term term) noexcept {
  T lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += term(i + lane);
    }
  }
  for (std::size_t lane = 0; i + lane < n; ++lane) {
    lanes[lane] += term(i + lane);
  }
  return sum_lanes(lanes);
}

/// Runs body(i) for i in [0, n), independent of each other, on `threads` threads.
template <class Body>
inline void parallel_for(int threads, std::int64_t n, Body body) {
  if (threads <= 1 || n <= 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      body(i);
    }
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < n; ++i) {
    body(i);
  }
}

/// Calls body with a value of the element type that `dtype` names: float, Float16 or BFloat16.
template <class Body>
inline void with_floating(DType dtype, Body body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF16:
      return body(Float16{});
    case DType::kBF16:
      return body(BFloat16{});
    default:
      ZERO_CHECK(false, "kernel for a dtype that is not floating");
  }
}

/// e^x within 2 ulp for x <= 88; exactly 0 below −104, infinity above 88.72; NaN stays. Cody-Waite
/// reduction and a polynomial of degree 6, without branches, so that loops over it vectorise.
[[nodiscard]] inline float vector_exp(float x) noexcept {
  const float clamped = x < -104.0F ? -104.0F : (x > 89.0F ? 89.0F : x);
  const float scaled = clamped * 1.44269504088896341F;
  // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer.
  const float rounded = (scaled + 12582912.0F) - 12582912.0F;
  const float r = (clamped - rounded * 0.693359375F) - rounded * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float mantissa = (p * (r * r) + r) + 1.0F;
  // 2^rounded in two factors, so that results down to the subnormal numbers are right.
  const auto n = static_cast<std::int32_t>(rounded);
  const std::int32_t half = n >> 1;
  const float f1 = std::bit_cast<float>((half + 127) << 23);
  const float f2 = std::bit_cast<float>((n - half + 127) << 23);
  const float result = mantissa * f1 * f2;
  return x < -104.0F ? 0.0F : (x != x ? x : result);
}

/// tanh(x) within 3 ulp of 1: 1 − 2 / (e^{2x} + 1), and x − x³/3 + 2x⁵/15 near 0.
[[nodiscard]] inline float vector_tanh(float x) noexcept {
  const float square = x * x;
  const float small =
      x * (1.0F + square * (-0.333333333F + square * (0.133333333F + square * -0.0539682540F)));
  const float magnitude = x < 0.0F ? -x : x;
  const float large = 1.0F - 2.0F / (vector_exp(2.0F * magnitude) + 1.0F);
  const float signed_large = x < 0.0F ? -large : large;
  return magnitude < 0.1F ? small : signed_large;
}

}  // namespace zero::accel
