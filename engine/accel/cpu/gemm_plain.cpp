#include "engine/accel/cpu/gemm.h"
#include "engine/accel/cpu/scratch.h"
#include "engine/accel/cpu/tile.h"
#include <zero/core/round_up.h>

#include <algorithm>

// Products without oneDNN: panels of B and blocks of A are copied together, then multiplied in
// tiles.
namespace zero::accel {
namespace {

constexpr std::int64_t kBlockRows = 64;    // a multiple of kTileRows
constexpr std::int64_t kBlockTerms = 256;  // a panel of B is 32 KiB

/// Element (row, column) of a matrix that may be stored transposed.
struct Stored {
  const float* data;
  std::int64_t ld;
  bool transposed;
};

/// to[rows, to_columns] = from[row …, column …]; zeros beyond `rows_left` and `columns_left`.
struct CopyBlock {
  std::int64_t row, column;
  std::int64_t rows, columns;
  std::int64_t rows_left, columns_left;
};

ZERO_VECTOR_CLONES void copy_block(const Stored& from, const CopyBlock& block, float* to) {
  const std::int64_t row_step = from.transposed ? 1 : from.ld;
  const std::int64_t column_step = from.transposed ? from.ld : 1;
  const float* const first = from.data + block.row * row_step + block.column * column_step;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const std::int64_t filled =
        r < block.rows_left ? std::min(block.columns, block.columns_left) : 0;
    for (std::int64_t c = 0; c < filled; ++c) {
      to[r * block.columns + c] = first[r * row_step + c * column_step];
    }
    for (std::int64_t c = filled; c < block.columns; ++c) {
      to[r * block.columns + c] = 0.0F;
    }
  }
}

/// Memory of one thread for one panel of columns.
struct Work {
  float* b;  // [kBlockTerms, kTileColumns]
  float* a;  // [kBlockRows, kBlockTerms]
  float* c;  // [m padded, kTileColumns]
};

/// C's columns [column, column + kTileColumns) from their sums.
void store_panel(const HostGemm& g, std::int64_t column, const float* sums) {
  const std::int64_t columns = std::min(kTileColumns, g.n - column);
  for (std::int64_t r = 0; r < g.m; ++r) {
    float* const c = g.c + r * g.ldc + column;
    for (std::int64_t i = 0; i < columns; ++i) {
      const float base =
          (g.accumulate ? c[i] : 0.0F) + (g.bias != nullptr ? g.bias[column + i] : 0.0F);
      c[i] = base + sums[r * kTileColumns + i];
    }
  }
}

void multiply_panel(const HostGemm& g, std::int64_t column, const Work& work) {
  for (std::int64_t l = 0; l < g.k; l += kBlockTerms) {
    const std::int64_t terms = std::min(kBlockTerms, g.k - l);
    copy_block(
        {g.b, g.ldb, g.transpose_b}, {l, column, terms, kTileColumns, terms, g.n - column}, work.b);
    for (std::int64_t row = 0; row < g.m; row += kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, round_up(g.m - row, kTileRows));
      copy_block({g.a, g.lda, g.transpose_a}, {row, l, rows, terms, g.m - row, terms}, work.a);
      multiply<false>({.a = work.a,
                       .lda = terms,
                       .b = work.b,
                       .ldb = kTileColumns,
                       .panel = kTileColumns,
                       .c = work.c + row * kTileColumns,
                       .ldc = kTileColumns,
                       .m = rows,
                       .n = kTileColumns,
                       .k = terms,
                       .accumulate = l > 0});
    }
  }
  store_panel(g, column, work.c);
}

}  // namespace

void host_gemm(const HostGemm& gemm, Device& device, int threads) {
  const std::int64_t b_elems = kBlockTerms * kTileColumns;
  const std::int64_t a_elems = kBlockRows * kBlockTerms;
  const std::int64_t elems = a_elems + b_elems + round_up(gemm.m, kBlockRows) * kTileColumns;
  auto* const all = reinterpret_cast<float*>(
      scratch(device,
              ScratchUse::kLibrary,
              static_cast<std::size_t>(elems) * static_cast<std::size_t>(std::max(threads, 1)) *
                  sizeof(float)));
  const std::int64_t panels = (gemm.n + kTileColumns - 1) / kTileColumns;
  parallel_for_threads(threads, panels, [&](std::int64_t panel, int thread) {
    float* const mine = all + thread * elems;
    multiply_panel(gemm, panel * kTileColumns, {mine, mine + b_elems, mine + b_elems + a_elems});
  });
}

}  // namespace zero::accel
