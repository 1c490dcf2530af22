#pragma once

#include "engine/accel/cpu/loops.h"

#include <algorithm>
#include <cstdint>

namespace zero::accel {

inline constexpr std::int64_t kTileRows = 4;
inline constexpr std::int64_t kTileColumns = 32;

/// C[m, n] (+)= op(A)[m, k] · B[k, n] over fp32 memory of one thread. m is a multiple of kTileRows,
/// n of kTileColumns. Sums run over k in order, so that bits do not depend on m, n or position.
struct TileProduct {
  const float* a;  ///< [m, k], or [k, m] where A is transposed
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  std::int64_t
      panel;  ///< from one kTileColumns columns of B to the next; kTileColumns if row-major
  float* c;
  std::int64_t ldc;
  std::int64_t m, n, k;
  bool accumulate;
};

/// One tile of C.
template <bool kTransposed>
[[gnu::always_inline]] inline void multiply_tile(const float* a,
                                                 std::int64_t lda,
                                                 const float* b,
                                                 std::int64_t ldb,
                                                 std::int64_t k,
                                                 bool accumulate,
                                                 float* c,
                                                 std::int64_t ldc) {
  float sum[kTileRows][kTileColumns];
  for (std::int64_t row = 0; row < kTileRows; ++row) {
    for (std::int64_t column = 0; column < kTileColumns; ++column) {
      sum[row][column] = accumulate ? c[row * ldc + column] : 0.0F;
    }
  }
  for (std::int64_t i = 0; i < k; ++i) {
    for (std::int64_t row = 0; row < kTileRows; ++row) {
      const float factor = kTransposed ? a[i * lda + row] : a[row * lda + i];
      for (std::int64_t column = 0; column < kTileColumns; ++column) {
        sum[row][column] = __builtin_fmaf(factor, b[i * ldb + column], sum[row][column]);
      }
    }
  }
  for (std::int64_t row = 0; row < kTileRows; ++row) {
    for (std::int64_t column = 0; column < kTileColumns; ++column) {
      c[row * ldc + column] = sum[row][column];
    }
  }
}

/// The product, in blocks of kTerms terms so that a panel of B stays in the first cache.
template <bool kTransposed>
ZERO_VECTOR_CLONES void multiply(const TileProduct& x) {
  constexpr std::int64_t kTerms = 128;
  for (std::int64_t i = 0; i < x.k; i += kTerms) {
    const std::int64_t terms = std::min(kTerms, x.k - i);
    const float* const a = x.a + (kTransposed ? i * x.lda : i);
    for (std::int64_t column = 0; column < x.n; column += kTileColumns) {
      const float* const b = x.b + column / kTileColumns * x.panel + i * x.ldb;
      for (std::int64_t row = 0; row < x.m; row += kTileRows) {
        multiply_tile<kTransposed>(a + (kTransposed ? row : row * x.lda),
                                   x.lda,
                                   b,
                                   x.ldb,
                                   terms,
                                   x.accumulate || i > 0,
                                   x.c + row * x.ldc + column,
                                   x.ldc);
      }
    }
  }
}

}  // namespace zero::accel
