#include "engine/comm/reduce.h"

#include <zero/core/error.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

namespace zero::comm {
namespace {

/// The accumulator of one block stays in the first-level cache while all sources pass.
constexpr std::size_t kBlockBytes = 16384;

template <class T>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<std::int32_t> {
  using Type = std::uint32_t;  // unsigned: overflow wraps, defined
};
template <>
struct AccumulatorOf<std::int64_t> {
  using Type = std::uint64_t;
};

template <class T>
auto widen(T x) noexcept {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<typename AccumulatorOf<T>::Type>(x);
  } else {
    return to_float(x);
  }
}

template <class T>
T narrow(typename AccumulatorOf<T>::Type x) noexcept {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(x);
  } else {
    return from_float<T>(x);
  }
}

template <class T>
auto larger(typename AccumulatorOf<T>::Type acc, T x) noexcept {
  const auto wide = widen(x);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(acc) < x ? wide : acc;
  } else {
    return acc < wide || wide != wide ? wide : acc;
  }
}

template <class T>
void reduce_block(std::span<const std::byte* const> sources,
                  std::size_t offset,
                  std::span<T> dst,
                  ReduceOp op) {
  using Accumulator = typename AccumulatorOf<T>::Type;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): the first source fills what is used
  std::array<Accumulator, kBlockBytes / sizeof(Accumulator)> acc;
  const std::size_t n = dst.size();
  const auto source = [&](std::size_t rank) {
    return reinterpret_cast<const T*>(sources[rank]) + offset;
  };
  const T* first = source(0);
  for (std::size_t i = 0; i < n; ++i) {
    acc[i] = widen(first[i]);
  }
  for (std::size_t rank = 1; rank < sources.size(); ++rank) {
    const T* x = source(rank);
    if (op == ReduceOp::kMax) {
      for (std::size_t i = 0; i < n; ++i) {
        acc[i] = larger<T>(acc[i], x[i]);
      }
    } else {
      for (std::size_t i = 0; i < n; ++i) {
        acc[i] += widen(x[i]);
      }
    }
  }
  if constexpr (!std::is_integral_v<T>) {
    if (op == ReduceOp::kMean) {
      const float factor = 1.0F / static_cast<float>(sources.size());
      for (std::size_t i = 0; i < n; ++i) {
        acc[i] *= factor;
      }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    dst[i] = narrow<T>(acc[i]);
  }
}

template <class T>
void reduce_typed(std::span<const std::byte* const> sources,
                  std::span<std::byte> dst,
                  ReduceOp op) {
  constexpr std::size_t kBlock = kBlockBytes / sizeof(typename AccumulatorOf<T>::Type);
  const std::span<T> out(reinterpret_cast<T*>(dst.data()), dst.size() / sizeof(T));
  for (std::size_t begin = 0; begin < out.size(); begin += kBlock) {
    reduce_block<T>(sources, begin, out.subspan(begin, std::min(kBlock, out.size() - begin)), op);
  }
}

}  // namespace

void reduce_in_order(std::span<const std::byte* const> sources,
                     std::span<std::byte> dst,
                     DType dtype,
                     ReduceOp op) {
  switch (dtype) {
    case DType::kF32:
      return reduce_typed<float>(sources, dst, op);
    case DType::kF16:
      return reduce_typed<Float16>(sources, dst, op);
    case DType::kBF16:
      return reduce_typed<BFloat16>(sources, dst, op);
    case DType::kI32:
      return reduce_typed<std::int32_t>(sources, dst, op);
    case DType::kI64:
      return reduce_typed<std::int64_t>(sources, dst, op);
    case DType::kU8:
    case DType::kF64:
      break;
  }
  throw InternalError("no reduction of this element type", "comm reduce");
}

}  // namespace zero::comm
