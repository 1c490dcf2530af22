#include "engine/accel/cpu/kernel_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

// Attention of one head at a time, in blocks of kRows queries against all keys they may see (Dao et
// al. 2022 without the blocking over keys: kRows × T scores fit the cache). Every product is made
// of one tile kernel, over sizes padded with zeros, so that a row's bits never depend on where it
// lies in a block.
namespace zero::accel {
namespace {

constexpr std::int64_t kTileRows = 4;
constexpr std::int64_t kTileColumns = 32;
constexpr std::int64_t kRows = 32;  // queries of a block, a multiple of both

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

/// C[4, 32] (+)= A[4, k] · B[k, 32].
ZERO_VECTOR_CLONES void tile(const float* a,
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
      const float factor = a[row * lda + i];
      for (std::int64_t column = 0; column < kTileColumns; ++column) {
        sum[row][column] += factor * b[i * ldb + column];
      }
    }
  }
  for (std::int64_t row = 0; row < kTileRows; ++row) {
    for (std::int64_t column = 0; column < kTileColumns; ++column) {
      c[row * ldc + column] = sum[row][column];
    }
  }
}

/// C[m, n] (+)= A[m, k] · B[k, n]; m and n are multiples of the tile.
void multiply(const float* a,
              std::int64_t lda,
              const float* b,
              std::int64_t ldb,
              std::int64_t m,
              std::int64_t n,
              std::int64_t k,
              bool accumulate,
              float* c,
              std::int64_t ldc) {
  for (std::int64_t column = 0; column < n; column += kTileColumns) {
    for (std::int64_t row = 0; row < m; row += kTileRows) {
      tile(a + row * lda, lda, b + column, ldb, k, accumulate, c + row * ldc + column, ldc);
    }
  }
}

ZERO_VECTOR_CLONES void exp_row(float* x, float scale, float shift, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = vector_exp(x[i] * scale - shift);
  }
}

ZERO_VECTOR_CLONES float max_row(const float* x, std::size_t n) {
  float best = x[0];
  for (std::size_t i = 1; i < n; ++i) {
    best = x[i] > best ? x[i] : best;
  }
  return best;
}

/// dS = P · (dP − delta) · scale, over dP.
ZERO_VECTOR_CLONES void score_gradient(
    const float* p, float delta, float scale, float* dp, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    dp[i] = p[i] * (dp[i] - delta) * scale;
  }
}

/// A head's matrix in fp32, rows and columns padded with zeros.
struct Matrix {
  Matrix(std::int64_t rows_, std::int64_t columns_)
      : rows(rows_), columns(columns_), values(static_cast<std::size_t>(rows_ * columns_)) {}
  [[nodiscard]] float* row(std::int64_t i) { return values.data() + i * columns; }
  [[nodiscard]] const float* row(std::int64_t i) const { return values.data() + i * columns; }

  std::int64_t rows;
  std::int64_t columns;
  std::vector<float> values;
};

/// Where one head lies in a packed tensor: element (t, d) at base + t · stride + d.
struct HeadSizes {
  std::int64_t tokens;
  std::int64_t size;  ///< D
  std::int64_t padded_tokens;
  std::int64_t padded_size;
};

template <class T>
Matrix load(const T* base, std::int64_t stride, const HeadSizes& sizes) {
  Matrix m(sizes.padded_tokens, sizes.padded_size);
  for (std::int64_t t = 0; t < sizes.tokens; ++t) {
    for (std::int64_t d = 0; d < sizes.size; ++d) {
      m.row(t)[d] = to_float(base[t * stride + d]);
    }
  }
  return m;
}

template <class T>
void store(const Matrix& m, const HeadSizes& sizes, T* base, std::int64_t stride) {
  for (std::int64_t t = 0; t < sizes.tokens; ++t) {
    for (std::int64_t d = 0; d < sizes.size; ++d) {
      base[t * stride + d] = from_float<T>(m.row(t)[d]);
    }
  }
}

/// out[columns, rows] = in[rows, columns], leading dimensions given.
void transpose(const float* in,
               std::int64_t ldi,
               std::int64_t rows,
               std::int64_t columns,
               float* out,
               std::int64_t ldo) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      out[c * ldo + r] = in[r * ldi + c];
    }
  }
}

Matrix transposed(const Matrix& m) {
  Matrix out(m.columns, m.rows);
  transpose(m.values.data(), m.columns, m.rows, m.columns, out.values.data(), out.columns);
  return out;
}

/// One head of one sample.
template <class T>
struct Head {
  const T* qkv;  ///< of this sample and head: q at 0, k at width, v at 2 · width
  std::int64_t width;
  HeadSizes sizes;
  float scale;

  [[nodiscard]] Matrix part(int which) const { return load(qkv + which * width, 3 * width, sizes); }
};

template <class T>
Head<T> head_of(const Attention& shape, const T* qkv, std::int64_t index) {
  const std::int64_t size = shape.width / shape.heads;
  const std::int64_t sample = index / shape.heads;
  const std::int64_t head = index % shape.heads;
  return {qkv + sample * shape.tokens * 3 * shape.width + head * size,
          shape.width,
          {shape.tokens, size, round_up(shape.tokens, kRows), round_up(size, kTileColumns)},
          1.0F / std::sqrt(static_cast<float>(size))};
}

/// Turns the scores of query `i` into probabilities and returns log Σ exp; what it may not see
/// becomes 0.
float softmax_row(float* s, std::int64_t i, std::int64_t tokens, std::int64_t padded, float scale) {
  const auto seen = static_cast<std::size_t>(std::min(i + 1, tokens));
  const float shift = max_row(s, seen) * scale;
  exp_row(s, scale, shift, seen);
  const float sum = lane_sum<float>(seen, [&](std::size_t j) { return s[j]; });
  const float inverse = 1.0F / sum;
  for (std::size_t j = 0; j < seen; ++j) {
    s[j] *= inverse;
  }
  std::fill(s + seen, s + padded, 0.0F);
  return shift + static_cast<float>(std::log(static_cast<double>(sum)));
}

template <class T>
void forward_head(const Head<T>& head, T* out, float* lse) {
  const HeadSizes& n = head.sizes;
  const Matrix q = head.part(0);
  const Matrix kt = transposed(head.part(1));
  const Matrix v = head.part(2);
  Matrix o(n.padded_tokens, n.padded_size);
  Matrix s(kRows, n.padded_tokens);
  for (std::int64_t i = 0; i < n.tokens; i += kRows) {
    const std::int64_t keys = i + kRows;
    multiply(q.row(i),
             q.columns,
             kt.row(0),
             kt.columns,
             kRows,
             keys,
             n.size,
             false,
             s.row(0),
             s.columns);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float log_sum = softmax_row(s.row(r), i + r, n.tokens, keys, head.scale);
      if (i + r < n.tokens) {
        lse[i + r] = log_sum;
      }
    }
    multiply(s.row(0),
             s.columns,
             v.row(0),
             v.columns,
             kRows,
             n.padded_size,
             keys,
             false,
             o.row(i),
             o.columns);
  }
  store(o, n, out, head.width);
}

/// Probabilities of a block of queries again, from the saved log Σ exp.
void recompute_rows(Matrix& s, std::int64_t i, const HeadSizes& n, float scale, const float* lse) {
  const std::int64_t keys = i + kRows;
  for (std::int64_t r = 0; r < kRows; ++r) {
    const std::int64_t seen = i + r < n.tokens ? i + r + 1 : 0;
    if (seen > 0) {
      exp_row(s.row(r), scale, lse[i + r], static_cast<std::size_t>(seen));
    }
    std::fill(s.row(r) + seen, s.row(r) + keys, 0.0F);
  }
}

template <class T>
void backward_head(
    const Head<T>& head, const T* out, const float* lse, const T* dout, float* delta, T* dqkv) {
  const HeadSizes& n = head.sizes;
  const Matrix q = head.part(0);
  const Matrix k = head.part(1);
  const Matrix kt = transposed(k);
  const Matrix vt = transposed(head.part(2));
  const Matrix dout_rows = load(dout, head.width, n);
  Matrix dq(n.padded_tokens, n.padded_size);
  Matrix dk(n.padded_tokens, n.padded_size);
  Matrix dv(n.padded_tokens, n.padded_size);
  Matrix p(kRows, n.padded_tokens);
  Matrix ds(kRows, n.padded_tokens);
  Matrix flipped(n.padded_tokens, kRows);
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    delta[t] = lane_sum<float>(static_cast<std::size_t>(n.size), [&](std::size_t d) {
      return dout_rows.row(t)[d] * to_float(out[t * head.width + static_cast<std::int64_t>(d)]);
    });
  }
  for (std::int64_t i = 0; i < n.tokens; i += kRows) {
    const std::int64_t keys = i + kRows;
    multiply(q.row(i),
             q.columns,
             kt.row(0),
             kt.columns,
             kRows,
             keys,
             n.size,
             false,
             p.row(0),
             p.columns);
    recompute_rows(p, i, n, head.scale, lse);
    multiply(dout_rows.row(i),
             dout_rows.columns,
             vt.row(0),
             vt.columns,
             kRows,
             keys,
             n.size,
             false,
             ds.row(0),
             ds.columns);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float own = i + r < n.tokens ? delta[i + r] : 0.0F;
      score_gradient(p.row(r), own, head.scale, ds.row(r), static_cast<std::size_t>(keys));
    }
    transpose(p.row(0), p.columns, kRows, keys, flipped.row(0), kRows);
    multiply(flipped.row(0),
             kRows,
             dout_rows.row(i),
             dout_rows.columns,
             keys,
             n.padded_size,
             kRows,
             true,
             dv.row(0),
             dv.columns);
    multiply(ds.row(0),
             ds.columns,
             k.row(0),
             k.columns,
             kRows,
             n.padded_size,
             keys,
             false,
             dq.row(i),
             dq.columns);
    transpose(ds.row(0), ds.columns, kRows, keys, flipped.row(0), kRows);
    multiply(flipped.row(0),
             kRows,
             q.row(i),
             q.columns,
             keys,
             n.padded_size,
             kRows,
             true,
             dk.row(0),
             dk.columns);
  }
  store(dq, n, dqkv, 3 * head.width);
  store(dk, n, dqkv + head.width, 3 * head.width);
  store(dv, n, dqkv + 2 * head.width, 3 * head.width);
}

void check(const Attention& shape, ConstTensorView qkv, ConstTensorView out, ConstTensorView lse) {
  const std::int64_t rows = shape.batch * shape.tokens;
  ZERO_CHECK(shape.heads > 0 && shape.width % shape.heads == 0 &&
                 qkv.elems() == rows * 3 * shape.width && out.elems() == rows * shape.width &&
                 lse.elems() == rows * shape.heads,
             "attention: shapes do not fit");
}

}  // namespace

void CpuKernels::attention_forward(const Attention& shape,
                                   ConstTensorView qkv,
                                   TensorView out,
                                   TensorView lse,
                                   Stream& stream) const {
  check(shape, qkv, out, lse);
  with_floating(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads()] {
      parallel_for(t, shape.batch * shape.heads, [&](std::int64_t index) {
        const Head<T> head = head_of(shape, elements<T>(qkv), index);
        const std::int64_t sample = index / shape.heads;
        const std::int64_t at =
            sample * shape.tokens * shape.width + index % shape.heads * head.sizes.size;
        forward_head(head, elements<T>(out) + at, elements<float>(lse) + index * shape.tokens);
      });
    });
  });
}

void CpuKernels::attention_backward(const Attention& shape,
                                    ConstTensorView qkv,
                                    ConstTensorView out,
                                    ConstTensorView lse,
                                    ConstTensorView dout,
                                    TensorView delta,
                                    TensorView dqkv,
                                    Stream& stream) const {
  check(shape, qkv, out, lse);
  check(shape, dqkv, dout, delta);
  with_floating(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads()] {
      parallel_for(t, shape.batch * shape.heads, [&](std::int64_t index) {
        const Head<T> head = head_of(shape, elements<T>(qkv), index);
        const std::int64_t sample = index / shape.heads;
        const std::int64_t offset = index % shape.heads * head.sizes.size;
        const std::int64_t at = sample * shape.tokens * shape.width + offset;
        backward_head(head,
                      elements<T>(out) + at,
                      elements<float>(lse) + index * shape.tokens,
                      elements<T>(dout) + at,
                      elements<float>(delta) + index * shape.tokens,
                      elements<T>(dqkv) + 3 * sample * shape.tokens * shape.width + offset);
      });
    });
  });
}

}  // namespace zero::accel
