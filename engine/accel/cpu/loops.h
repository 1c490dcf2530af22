#pragma once

#include <zero/core/dtype.h>
#include <zero/core/error.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>

// One source, several instruction sets, chosen when the program starts. All give the same bits: a
// multiply-add is fused on all of them (where the source asks for it) or on none, no reassociation,
// reductions over a fixed number of lanes. Sanitizers start
// too late for run-time dispatch. What such a function calls is inlined into it ("flatten"): by
// itself it would be compiled for the oldest processor.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define ZERO_VECTOR_CLONES \
  __attribute__((flatten, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ZERO_VECTOR_CLONES
#endif

namespace zero::accel {

/// Lanes of every sum: enough for the widest vectors, the same on all processors.
inline constexpr std::size_t kLanes = 16;

/// kLanes numbers, as vectors that all processors have or that the compiler splits.
template <class T>
struct Lanes {
  typedef T Vector __attribute__((vector_size(32)));
  static constexpr std::size_t kParts = kLanes * sizeof(T) / sizeof(Vector);

  explicit Lanes(T value) noexcept {
    for (Vector& part : parts) {
      part = Vector{} + value;
    }
  }
  /// term(i) … term(i + kLanes − 1)
  template <class Term>
  Lanes(std::size_t i, Term term) noexcept {
    T values[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      values[lane] = term(i + lane);
    }
    std::memcpy(parts, values, sizeof(parts));
  }

  Vector parts[kParts];
};

/// Sum of the lanes by a fixed tree: lane i takes lane i + 8, then i + 4, i + 2, i + 1.
template <class T>
[[nodiscard]] inline T sum_lanes(const Lanes<T>& all) noexcept {
  Lanes<T> lanes = all;
  for (std::size_t width = Lanes<T>::kParts / 2; width > 0; width /= 2) {
    for (std::size_t part = 0; part < width; ++part) {
      lanes.parts[part] += lanes.parts[part + width];
    }
  }
  T sums[sizeof(lanes.parts[0]) / sizeof(T)];
  std::memcpy(sums, lanes.parts, sizeof(sums));
  for (std::size_t width = std::size(sums) / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) {
      sums[i] += sums[i + width];
    }
  }
  return sums[0];
}

/// Σ term(i) for i in [0, n): element i goes to lane i mod kLanes, in order.
template <class T, class Term>
[[nodiscard]] inline T lane_sum(std::size_t n, Term term) noexcept {
  Lanes<T> sums(T{0});
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes<T> terms(i, term);
    for (std::size_t part = 0; part < Lanes<T>::kParts; ++part) {
      sums.parts[part] += terms.parts[part];
    }
  }
  if (i < n) {
    T lanes[kLanes];
    std::memcpy(lanes, sums.parts, sizeof(lanes));
    for (std::size_t lane = 0; i + lane < n; ++lane) {
      lanes[lane] += term(i + lane);
    }
    std::memcpy(sums.parts, lanes, sizeof(lanes));
  }
  return sum_lanes(sums);
}

/// Largest of term(i) for i in [0, n), −infinity for n = 0; a NaN counts as nothing.
template <class Term>
[[nodiscard]] inline float lane_max(std::size_t n, Term term) noexcept {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  Lanes<float> largest(kLeast);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes<float> terms(i, term);
    for (std::size_t part = 0; part < Lanes<float>::kParts; ++part) {
      largest.parts[part] =
          terms.parts[part] > largest.parts[part] ? terms.parts[part] : largest.parts[part];
    }
  }
  float lanes[kLanes];
  std::memcpy(lanes, largest.parts, sizeof(lanes));
  float best = kLeast;
  for (; i < n; ++i) {
    const float x = term(i);
    best = x > best ? x : best;
  }
  for (const float lane : lanes) {
    best = lane > best ? lane : best;
  }
  return best;
}

/// Runs body(i, thread) for i in [0, n), independent of each other, on `threads` threads; `thread`
/// counts from 0. Rethrows what a body threw.
template <class Body>
inline void parallel_for_threads(int threads, std::int64_t n, Body body) {
  if (threads <= 1 || n <= 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      body(i, 0);
    }
    return;
  }
  std::exception_ptr error;  // an exception may not leave a parallel region
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int thread = 0; thread < threads; ++thread) {
    try {
      for (std::int64_t i = n * thread / threads; i < n * (thread + 1) / threads; ++i) {
        body(i, thread);
      }
    } catch (...) {
#pragma omp critical(zero_parallel_for)
      error = std::current_exception();
    }
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

/// The same for a body that does not ask for its thread.
template <class Body>
inline void parallel_for(int threads, std::int64_t n, Body body) {
  parallel_for_threads(threads, n, [&](std::int64_t i, int /*thread*/) { body(i); });
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
  const float above = x > -104.0F ? x : -104.0F;  // a NaN becomes a number here
  const float clamped = above < 89.0F ? above : 89.0F;
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

}  // namespace zero::accel
