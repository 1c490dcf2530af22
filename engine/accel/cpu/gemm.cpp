#include "engine/accel/cpu/gemm.h"

#include "engine/accel/cpu/kernel_table.h"

#include <algorithm>
#include <vector>

namespace zero::accel {
namespace {

/// fp32 copies of 16-bit operands are made in panels of at most so many elements.
constexpr std::int64_t kPanelElems = 1 << 20;

struct Sizes {
  std::int64_t m, n, k;
};

Sizes sizes_of(const Gemm& gemm) {
  const auto dims = [](ConstTensorView view, bool transpose) {
    ZERO_CHECK(view.shape.rank() == 2, "gemm takes matrices");
    return std::pair(view.shape[transpose ? 1 : 0], view.shape[transpose ? 0 : 1]);
  };
  const auto [m, k] = dims(gemm.a, gemm.transpose_a);
  const auto [k2, n] = dims(gemm.b, gemm.transpose_b);
  ZERO_CHECK(k == k2 && gemm.c.shape == (Shape{m, n}) && (!gemm.bias || gemm.bias.elems() == n) &&
                 gemm.a.dtype == gemm.b.dtype && gemm.a.dtype == gemm.c.dtype,
             "gemm: shapes or dtypes do not fit");
  return {m, n, k};
}

/// C of a product without terms: bias, or what it held.
template <class T>
void empty_product(const Gemm& gemm, const Sizes& size) {
  for (std::int64_t i = 0; i < size.m * size.n; ++i) {
    T& c = elements<T>(gemm.c)[i];
    const float base = gemm.accumulate ? to_float(c) : 0.0F;
    c = from_float<T>(base + (gemm.bias ? to_float(elements<T>(gemm.bias)[i % size.n]) : 0.0F));
  }
}

void run_fp32(const Gemm& gemm, const Sizes& size, Device& device) {
  host_gemm({elements<float>(gemm.a),
             elements<float>(gemm.b),
             gemm.bias ? elements<float>(gemm.bias) : nullptr,
             elements<float>(gemm.c),
             size.m,
             size.n,
             size.k,
             gemm.a.shape[1],
             gemm.b.shape[1],
             size.n,
             gemm.transpose_a,
             gemm.transpose_b,
             gemm.accumulate},
            device,
            device.threads());
}

template <class T>
ZERO_VECTOR_CLONES void widen(
    const T* in, std::int64_t ldi, std::int64_t rows, std::int64_t columns, float* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      out[r * columns + c] = to_float(in[r * ldi + c]);
    }
  }
}

template <class T>
ZERO_VECTOR_CLONES void narrow(
    const float* in, std::int64_t rows, std::int64_t columns, T* out, std::int64_t ldo) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      out[r * ldo + c] = from_float<T>(in[r * columns + c]);
    }
  }
}

/// A 16-bit product: panels are converted to fp32 on the way, sums are fp32, C is rounded once.
template <class T>
void run_half(const Gemm& gemm, const Sizes& size, Device& device) {
  const std::int64_t columns =
      std::clamp<std::int64_t>(kPanelElems / size.k / 64 * 64, 64, size.n + 63);
  const std::int64_t rows =
      std::clamp<std::int64_t>(kPanelElems / size.k / 64 * 64, 64, size.m + 63);
  const std::int64_t nb = std::min(columns, size.n);
  const std::int64_t mb = std::min(rows, size.m);
  const auto bytes = [](std::int64_t elems) {
    return static_cast<std::size_t>(elems) * sizeof(float);
  };
  const Buffer panels = device.allocate(
      bytes(nb * size.k + mb * size.k + mb * nb + nb), Category::kOther, MemorySpace::kHost);
  auto* const b = reinterpret_cast<float*>(panels.data());
  float* const a = b + nb * size.k;
  float* const c = a + mb * size.k;
  float* const bias = c + mb * nb;
  const std::int64_t lda = gemm.a.shape[1];
  const std::int64_t ldb = gemm.b.shape[1];
  for (std::int64_t j = 0; j < size.n; j += nb) {
    const std::int64_t n = std::min(nb, size.n - j);
    const T* from_b = elements<T>(gemm.b);
    gemm.transpose_b ? widen(from_b + j * ldb, ldb, n, size.k, b)
                     : widen(from_b + j, ldb, size.k, n, b);
    if (gemm.bias) {
      widen(elements<T>(gemm.bias) + j, n, 1, n, bias);
    }
    for (std::int64_t i = 0; i < size.m; i += mb) {
      const std::int64_t m = std::min(mb, size.m - i);
      const T* from_a = elements<T>(gemm.a);
      gemm.transpose_a ? widen(from_a + i, lda, size.k, m, a)
                       : widen(from_a + i * lda, lda, m, size.k, a);
      T* to = elements<T>(gemm.c) + i * size.n + j;
      if (gemm.accumulate) {
        widen(static_cast<const T*>(to), size.n, m, n, c);
      }
      host_gemm({a,
                 b,
                 gemm.bias ? bias : nullptr,
                 c,
                 m,
                 n,
                 size.k,
                 gemm.transpose_a ? m : size.k,
                 gemm.transpose_b ? size.k : n,
                 n,
                 gemm.transpose_a,
                 gemm.transpose_b,
                 gemm.accumulate},
                device,
                device.threads());
      narrow(c, m, n, to, size.n);
    }
  }
}

}  // namespace

void CpuKernels::gemm(const Gemm& gemm, Stream& stream) const {
  const Sizes size = sizes_of(gemm);
  stream.host_task([gemm, size, &device = device_] {
    if (size.m == 0 || size.n == 0) {
      return;
    }
    with_floating(gemm.a.dtype, [&](auto tag) {
      using T = decltype(tag);
      if (size.k == 0) {
        empty_product<T>(gemm, size);
      } else if constexpr (std::is_same_v<T, float>) {
        run_fp32(gemm, size, device);
      } else {
        run_half<T>(gemm, size, device);
      }
    });
  });
}

}  // namespace zero::accel
