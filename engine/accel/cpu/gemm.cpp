#include "engine/accel/cpu/gemm.h"

#include "engine/accel/cpu/kernel_table.h"
#include "engine/accel/cpu/scratch.h"

#include <algorithm>

namespace zero::accel {
namespace {

/// Largest block of a 16-bit product: its fp32 copies take 14 MiB at most.
constexpr std::int64_t kPanelRows = 512;
constexpr std::int64_t kPanelColumns = 1024;
constexpr std::int64_t kPanelTerms = 2048;

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
ZERO_VECTOR_CLONES void widen(const T* in, std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = to_float(in[i]);
  }
}

template <class T>
ZERO_VECTOR_CLONES void narrow(const float* in, std::size_t n, T* out) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = from_float<T>(in[i]);
  }
}

/// One block of a 16-bit product: rows [i, i + m), columns [j, j + n), terms [l, l + k).
struct Block {
  std::int64_t i, m, j, n, l, k;
};

/// fp32 copies of one block's operands, and its sum.
struct Panels {
  float* a;
  float* b;
  float* c;
  float* bias;
};

/// Sizes of the largest block of a product.
Sizes block_sizes(const Sizes& size) {
  return {
      std::min(kPanelRows, size.m), std::min(kPanelColumns, size.n), std::min(kPanelTerms, size.k)};
}

std::size_t panel_bytes(const Sizes& block) {
  const std::int64_t elems = block.m * block.k + block.k * block.n + block.m * block.n + block.n;
  return static_cast<std::size_t>(elems) * sizeof(float);
}

Panels take_panels(Device& device, const Sizes& block) {
  const auto [m, n, k] = block;
  auto* const a =
      reinterpret_cast<float*>(scratch(device, ScratchUse::kPanels, panel_bytes(block)));
  return {a, a + m * k, a + m * k + k * n, a + m * k + k * n + m * n};
}

/// Widens the operands of a block; those that are in their panels already stay.
template <class T>
void fill_panels(const Gemm& gemm, const Block& at, bool keep_b, const Panels& to, int threads) {
  const auto part = [&](ConstTensorView from,
                        std::int64_t row,
                        std::int64_t rows,
                        std::int64_t column,
                        std::int64_t columns,
                        float* panel) {
    const std::int64_t ld = from.shape[1];
    const T* first = elements<T>(from) + row * ld + column;
    parallel_for(threads, rows, [&](std::int64_t r) {
      widen(first + r * ld, static_cast<std::size_t>(columns), panel + r * columns);
    });
  };
  gemm.transpose_a ? part(gemm.a, at.l, at.k, at.i, at.m, to.a)
                   : part(gemm.a, at.i, at.m, at.l, at.k, to.a);
  if (!keep_b) {
    gemm.transpose_b ? part(gemm.b, at.j, at.n, at.l, at.k, to.b)
                     : part(gemm.b, at.l, at.k, at.j, at.n, to.b);
  }
  if (gemm.accumulate && at.l == 0) {
    part(gemm.c, at.i, at.m, at.j, at.n, to.c);
  }
  if (gemm.bias && at.l == 0) {
    widen(elements<T>(gemm.bias) + at.j, static_cast<std::size_t>(at.n), to.bias);
  }
}

HostGemm block_product(const Gemm& gemm, const Block& at, const Panels& panels) {
  return {panels.a,
          panels.b,
          gemm.bias && at.l == 0 ? panels.bias : nullptr,
          panels.c,
          at.m,
          at.n,
          at.k,
          gemm.transpose_a ? at.m : at.k,
          gemm.transpose_b ? at.k : at.n,
          at.n,
          gemm.transpose_a,
          gemm.transpose_b,
          gemm.accumulate || at.l > 0};
}

/// A 16-bit product: blocks are converted to fp32 on the way, sums are fp32, C is rounded once.
template <class T>
void run_half(const Gemm& gemm, const Sizes& size, Device& device) {
  const int threads = device.threads();
  const auto [mb, nb, kb] = block_sizes(size);
  const Panels panels = take_panels(device, {mb, nb, kb});
  for (std::int64_t j = 0; j < size.n; j += nb) {
    for (std::int64_t i = 0; i < size.m; i += mb) {
      Block at{i, std::min(mb, size.m - i), j, std::min(nb, size.n - j), 0, 0};
      for (; at.l < size.k; at.l += kb) {
        at.k = std::min(kb, size.k - at.l);
        fill_panels<T>(gemm, at, kb == size.k && i > 0, panels, threads);
        host_gemm(block_product(gemm, at, panels), device, threads);
      }
      parallel_for(threads, at.m, [&](std::int64_t r) {
        narrow(panels.c + r * at.n,
               static_cast<std::size_t>(at.n),
               elements<T>(gemm.c) + (i + r) * size.n + j);
      });
    }
  }
}

}  // namespace

void CpuKernels::gemm(const Gemm& gemm, Stream& stream) const {
  const Sizes size = sizes_of(gemm);
  if (gemm.a.dtype != DType::kF32) {
    expect_scratch(stream, ScratchUse::kPanels, panel_bytes(block_sizes(size)));
  }
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
