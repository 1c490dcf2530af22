#include "engine/accel/cpu/gemm.h"
#include "engine/accel/cpu/loops.h"

#include <algorithm>
#include <vector>

namespace zero::accel {
namespace {

/// c[0..n) += factor · b[0..n)
ZERO_VECTOR_CLONES void add_scaled(float factor, const float* b, float* c, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    c[i] += factor * b[i];
  }
}

}  // namespace

void host_gemm(const HostGemm& gemm, Device& /*device*/, int threads) {
  parallel_for(threads, gemm.m, [&](std::int64_t row) {
    std::vector<float> sum(static_cast<std::size_t>(gemm.n));
    for (std::int64_t i = 0; i < gemm.k; ++i) {
      const float factor =
          gemm.transpose_a ? gemm.a[i * gemm.lda + row] : gemm.a[row * gemm.lda + i];
      if (gemm.transpose_b) {
        for (std::int64_t j = 0; j < gemm.n; ++j) {
          sum[static_cast<std::size_t>(j)] += factor * gemm.b[j * gemm.ldb + i];
        }
      } else {
        add_scaled(factor, gemm.b + i * gemm.ldb, sum.data(), gemm.n);
      }
    }
    float* c = gemm.c + row * gemm.ldc;
    for (std::int64_t j = 0; j < gemm.n; ++j) {
      const float base =
          (gemm.accumulate ? c[j] : 0.0F) + (gemm.bias != nullptr ? gemm.bias[j] : 0.0F);
      c[j] = base + sum[static_cast<std::size_t>(j)];
    }
  });
}

}  // namespace zero::accel
