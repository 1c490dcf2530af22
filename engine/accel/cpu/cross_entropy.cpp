#include "engine/accel/cpu/kernel_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace zero::accel {
namespace {

template <class T>
ZERO_VECTOR_CLONES float largest(const T* x, std::size_t n) {
  return lane_max(n, [&](std::size_t i) { return to_float(x[i]); });
}

template <class T>
ZERO_VECTOR_CLONES float exp_sum(const T* x, float shift, std::size_t n) {
  return lane_sum<float>(n, [&](std::size_t i) { return vector_exp(to_float(x[i]) - shift); });
}

/// x[i] → e^(x[i] − shift) · weight / Σ e^(x − shift). Returns weight / Σ.
template <class T>
ZERO_VECTOR_CLONES float softmax_in_place(T* x, float shift, float weight, std::size_t n) {
  if constexpr (std::is_same_v<T, float>) {  // keeps the exponentials; 16 bits would round them
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = vector_exp(x[i] - shift);
    }
    const float factor = weight / lane_sum<float>(n, [&](std::size_t i) { return x[i]; });
    for (std::size_t i = 0; i < n; ++i) {
      x[i] *= factor;
    }
    return factor;
  } else {
    const float factor = weight / lane_sum<float>(n, [&](std::size_t i) {
                           return vector_exp(to_float(x[i]) - shift);
                         });
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = from_float<T>(vector_exp(to_float(x[i]) - shift) * factor);
    }
    return factor;
  }
}

std::int64_t columns_of(ConstTensorView logits, ConstTensorView targets) {
  const std::int64_t rows = targets.elems();
  const std::int64_t columns = rows == 0 ? 0 : logits.elems() / rows;
  ZERO_CHECK(logits.elems() == rows * columns, "cross entropy: logits do not fit the targets");
  return columns;
}

void check_targets(const std::int32_t* targets, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row) {
    if (targets[row] < -1 || targets[row] >= columns) {
      throw InputError(
          fmt::format("target {} in row {} is outside the {} classes", targets[row], row, columns),
          "cross entropy",
          "check the data and the model's sizes");
    }
  }
}

}  // namespace

void CpuKernels::cross_entropy_forward(ConstTensorView logits,
                                       ConstTensorView targets,
                                       TensorView losses,
                                       Stream& stream) const {
  const std::int64_t columns = columns_of(logits, targets);
  ZERO_CHECK(losses.elems() == targets.elems(), "cross entropy: one loss a row");
  with_floating(logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads()] {
      const auto* target = elements<std::int32_t>(targets);
      check_targets(target, targets.elems(), columns);
      parallel_for(t, targets.elems(), [&](std::int64_t row) {
        const T* x = elements<T>(logits) + row * columns;
        const auto n = static_cast<std::size_t>(columns);
        float loss = 0.0F;
        if (target[row] >= 0) {
          const float shift = largest(x, n);
          loss = static_cast<float>(std::log(static_cast<double>(exp_sum(x, shift, n)))) + shift -
                 to_float(x[target[row]]);
        }
        elements<float>(losses)[row] = loss;
      });
    });
  });
}

void CpuKernels::cross_entropy_backward(const CrossEntropy& args,
                                        ConstTensorView targets,
                                        TensorView logits,
                                        Stream& stream) const {
  const std::int64_t columns = columns_of(logits, targets);
  const float weight = args.seed / static_cast<float>(std::max<std::int64_t>(1, args.counted));
  with_floating(logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads()] {
      const auto* target = elements<std::int32_t>(targets);
      check_targets(target, targets.elems(), columns);
      parallel_for(t, targets.elems(), [&](std::int64_t row) {
        T* x = elements<T>(logits) + row * columns;
        const auto n = static_cast<std::size_t>(columns);
        if (target[row] < 0) {
          std::fill(x, x + n, from_float<T>(0.0F));
          return;
        }
        const float shift = largest(x, n);
        const float own = to_float(x[target[row]]);
        const float factor = softmax_in_place(x, shift, weight, n);
        // The target's entry with one rounding, not as a difference of two rounded numbers.
        x[target[row]] = from_float<T>(vector_exp(own - shift) * factor - weight);
      });
    });
  });
}

void CpuKernels::mean(ConstTensorView values,
                      double divisor,
                      TensorView out,
                      Stream& stream) const {
  stream.host_task([=] {
    const float* x = elements<float>(values);
    const double sum = lane_sum<double>(static_cast<std::size_t>(values.elems()),
                                        [&](std::size_t i) { return static_cast<double>(x[i]); });
    elements<float>(out)[0] = static_cast<float>(sum / divisor);
  });
}

void CpuKernels::argmax(ConstTensorView logits, TensorView out, Stream& stream) const {
  const std::int64_t rows = out.elems();
  const std::int64_t columns = rows == 0 ? 0 : logits.elems() / rows;
  with_floating(logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=] {
      for (std::int64_t row = 0; row < rows; ++row) {
        const T* x = elements<T>(logits) + row * columns;
        const T* best =
            std::max_element(x, x + columns, [](T a, T b) { return to_float(a) < to_float(b); });
        elements<std::int32_t>(out)[row] = static_cast<std::int32_t>(best - x);
      }
    });
  });
}

}  // namespace zero::accel
