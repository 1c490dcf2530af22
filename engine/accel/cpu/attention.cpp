#include "engine/accel/cpu/dropout.h"
#include "engine/accel/cpu/kernel_table.h"
#include "engine/accel/cpu/scratch.h"
#include "engine/accel/cpu/tile.h"
#include <zero/core/round_up.h>

#include <algorithm>
#include <cmath>
#include <optional>

// Attention of one head at a time, in blocks of kRows queries against all keys they may see (Dao et
// al. 2022 with one block of keys: kRows × T scores stay in the cache). Every product is made of
// one tile kernel, over sizes padded with zeros, so that a row's bits never depend on where it lies
// in a block.
namespace zero::accel {
namespace {

constexpr std::int64_t kRows = 32;  // queries of a block, a multiple of the tile's rows and columns

struct HeadSizes {
  std::int64_t tokens;
  std::int64_t size;           ///< D
  std::int64_t padded_tokens;  ///< to whole blocks
  std::int64_t padded_size;    ///< to whole tiles
  std::int64_t score_ld;  ///< of kRows × T scores; no power of two, which would share cache sets
  float scale;            ///< 1 / sqrt(D)
};

HeadSizes sizes_of(const Attention& shape) {
  const std::int64_t size = shape.width / shape.heads;
  const std::int64_t padded = round_up(shape.tokens, kRows);
  return {shape.tokens,
          size,
          padded,
          round_up(size, kTileColumns),
          padded + static_cast<std::int64_t>(kLanes),
          1.0F / std::sqrt(static_cast<float>(size))};
}

/// One head's rows in a packed tensor: element (t, d) at base[t · stride + d].
template <class T>
struct Rows {
  T* base;
  std::int64_t stride;
};

/// `rows` rows from row `begin` in fp32, with zeros up to padded_size and in rows beyond the last
/// token.
template <class T>
ZERO_VECTOR_CLONES void load_rows(const Rows<const T>& from,
                                  const HeadSizes& n,
                                  std::int64_t begin,
                                  std::int64_t rows,
                                  float* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const row = to + r * n.padded_size;
    const std::int64_t filled = begin + r < n.tokens ? n.size : 0;
    const T* const in = from.base + (begin + r) * from.stride;
    for (std::int64_t d = 0; d < filled; ++d) {
      row[d] = to_float(in[d]);
    }
    for (std::int64_t d = filled; d < n.padded_size; ++d) {
      row[d] = 0.0F;
    }
  }
}

/// The transpose in panels of kTileColumns tokens: element (d, t) at
/// (t / 32 · D + d) · 32 + t mod 32.
template <class T>
ZERO_VECTOR_CLONES void load_panels(const Rows<const T>& from, const HeadSizes& n, float* to) {
  for (std::int64_t t = 0; t < n.padded_tokens; t += kTileColumns) {
    const std::int64_t filled = std::min(kTileColumns, n.tokens - t);
    for (std::int64_t d = 0; d < n.size; ++d) {
      for (std::int64_t i = 0; i < filled; ++i) {
        to[i] = to_float(from.base[(t + i) * from.stride + d]);
      }
      for (std::int64_t i = std::max<std::int64_t>(filled, 0); i < kTileColumns; ++i) {
        to[i] = 0.0F;
      }
      to += kTileColumns;
    }
  }
}

/// Rows [begin, begin + rows) that are tokens, each times its factor (1 if `factors` is null).
template <class T>
ZERO_VECTOR_CLONES void store_rows(const float* from,
                                   const float* factors,
                                   const HeadSizes& n,
                                   std::int64_t begin,
                                   std::int64_t rows,
                                   const Rows<T>& to) {
  for (std::int64_t r = 0; r < rows && begin + r < n.tokens; ++r) {
    const float factor = factors != nullptr ? factors[r] : 1.0F;
    T* const out = to.base + (begin + r) * to.stride;
    for (std::int64_t d = 0; d < n.size; ++d) {
      out[d] = from_float<T>(from[r * n.padded_size + d] * factor);
    }
  }
}

/// Scores of queries [begin, begin + kRows) → e^(score − row's largest), 0 for keys a query may not
/// see. `inverse` gets 1 / Σ of each row, `lse` log Σ e^score.
ZERO_VECTOR_CLONES void soften_rows(
    float* scores, std::int64_t begin, const HeadSizes& n, float* inverse, float* lse) {
  const float scale = n.scale;
  for (std::int64_t r = 0; r < kRows; ++r) {
    float* const s = scores + r * n.score_ld;
    const auto seen = static_cast<std::size_t>(std::min(begin + r + 1, n.tokens));
    const float shift = lane_max(seen, [&](std::size_t i) { return s[i]; }) * scale;
    for (std::size_t i = 0; i < seen; ++i) {
      s[i] = vector_exp(s[i] * scale - shift);
    }
    const float sum = lane_sum<float>(seen, [&](std::size_t i) { return s[i]; });
    std::fill(s + seen, s + begin + kRows, 0.0F);
    inverse[r] = 1.0F / sum;
    if (begin + r < n.tokens) {
      lse[begin + r] = shift + static_cast<float>(std::log(static_cast<double>(sum)));
    }
  }
}

/// Scores of queries [begin, begin + kRows) → probabilities, from the saved log Σ e^score.
ZERO_VECTOR_CLONES void recompute_rows(float* scores,
                                       std::int64_t begin,
                                       const HeadSizes& n,
                                       const float* lse) {
  const float scale = n.scale;
  for (std::int64_t r = 0; r < kRows; ++r) {
    float* const s = scores + r * n.score_ld;
    const std::int64_t seen = begin + r < n.tokens ? begin + r + 1 : 0;
    const float shift = seen > 0 ? lse[begin + r] : 0.0F;
    for (std::int64_t i = 0; i < seen; ++i) {
      s[i] = vector_exp(s[i] * scale - shift);
    }
    std::fill(s + seen, s + begin + kRows, 0.0F);
  }
}

/// Scores of queries [begin, begin + kRows) with the dropped ones set to 0.
ZERO_VECTOR_CLONES void drop_scores(float* scores,
                                    std::int64_t begin,
                                    const HeadSizes& n,
                                    const DropoutMask& mask) {
  const DropoutMask m = mask;
  for (std::int64_t r = 0; r < kRows && begin + r < n.tokens; ++r) {
    float* const s = scores + r * n.score_ld;
    const auto first = static_cast<std::uint32_t>((begin + r) * n.tokens);
    const auto seen = static_cast<std::uint32_t>(begin + r + 1);
    for (std::uint32_t i = 0; i < seen; ++i) {
      s[i] *= m.factor(first + i);
    }
  }
}

/// dS = P · (dP − delta) · scale, over dP.
ZERO_VECTOR_CLONES void score_gradients(
    const float* p, const float* delta, std::int64_t begin, const HeadSizes& n, float* dp) {
  const float scale = n.scale;
  for (std::int64_t r = 0; r < kRows; ++r) {
    const float own = begin + r < n.tokens ? delta[begin + r] : 0.0F;
    const float* const pr = p + r * n.score_ld;
    float* const dr = dp + r * n.score_ld;
    for (std::int64_t i = 0; i < begin + kRows; ++i) {
      dr[i] = pr[i] * (dr[i] - own) * scale;
    }
  }
}

/// delta = Σ_d dO · O of each token of a block.
template <class T>
ZERO_VECTOR_CLONES void row_products(const float* dout,
                                     const Rows<const T>& out,
                                     const HeadSizes& n,
                                     std::int64_t begin,
                                     float* delta) {
  for (std::int64_t r = 0; r < kRows && begin + r < n.tokens; ++r) {
    const T* const o = out.base + (begin + r) * out.stride;
    const float* const d = dout + r * n.padded_size;
    delta[begin + r] = lane_sum<float>(static_cast<std::size_t>(n.size),
                                       [&](std::size_t i) { return d[i] * to_float(o[i]); });
  }
}

/// Hands out pieces of a thread's scratch, 64-byte aligned because all sizes are multiples of 16.
class Pieces {
 public:
  explicit Pieces(float* at) : at_(at) {}
  float* take(std::int64_t elems) {
    float* const piece = at_;
    at_ += round_up(elems, static_cast<std::int64_t>(kLanes));
    return piece;
  }

 private:
  float* at_;
};

std::int64_t forward_scratch_elems(const HeadSizes& n) {
  return n.padded_tokens * (n.padded_size + n.size) + 2 * kRows * n.padded_size +
         kRows * n.score_ld + 4 * kRows;
}

std::int64_t backward_scratch_elems(const HeadSizes& n) {
  return n.padded_tokens * (3 * n.padded_size + 2 * n.size) + 3 * kRows * n.padded_size +
         2 * kRows * n.score_ld + 8 * kRows;
}

/// scores = A[kRows, D] · panels, for the keys that a block ending at `keys` may see.
void multiply_panels(
    const float* a, const float* panels, const HeadSizes& n, std::int64_t keys, float* scores) {
  multiply<false>({.a = a,
                   .lda = n.padded_size,
                   .b = panels,
                   .ldb = kTileColumns,
                   .panel = n.size * kTileColumns,
                   .c = scores,
                   .ldc = n.score_ld,
                   .m = kRows,
                   .n = keys,
                   .k = n.size,
                   .accumulate = false});
}

/// out[kRows, D] = scores[kRows, keys] · rows[keys, D]
void multiply_rows(
    const float* scores, const float* rows, const HeadSizes& n, std::int64_t keys, float* out) {
  multiply<false>({.a = scores,
                   .lda = n.score_ld,
                   .b = rows,
                   .ldb = n.padded_size,
                   .panel = kTileColumns,
                   .c = out,
                   .ldc = n.padded_size,
                   .m = kRows,
                   .n = n.padded_size,
                   .k = keys,
                   .accumulate = false});
}

/// out[keys, D] += scores[kRows, keys]ᵀ · rows[kRows, D]
void add_transposed(
    const float* scores, const float* rows, const HeadSizes& n, std::int64_t keys, float* out) {
  multiply<true>({.a = scores,
                  .lda = n.score_ld,
                  .b = rows,
                  .ldb = n.padded_size,
                  .panel = kTileColumns,
                  .c = out,
                  .ldc = n.padded_size,
                  .m = keys,
                  .n = n.padded_size,
                  .k = kRows,
                  .accumulate = true});
}

/// Query, key and value rows of one head.
template <class T>
struct Projections {
  Rows<T> q, k, v;
};

template <class T>
void forward_head(const Projections<const T>& in,
                  const HeadSizes& n,
                  const Rows<T>& out,
                  float* lse,
                  const std::optional<DropoutMask>& mask,
                  Pieces pieces) {
  float* const keys_t = pieces.take(n.padded_tokens * n.size);
  float* const values = pieces.take(n.padded_tokens * n.padded_size);
  float* const q = pieces.take(kRows * n.padded_size);
  float* const o = pieces.take(kRows * n.padded_size);
  float* const scores = pieces.take(kRows * n.score_ld);
  float* const inverse = pieces.take(kRows);
  load_panels(in.k, n, keys_t);
  load_rows(in.v, n, 0, n.padded_tokens, values);
  for (std::int64_t i = 0; i < n.tokens; i += kRows) {
    load_rows(in.q, n, i, kRows, q);
    multiply_panels(q, keys_t, n, i + kRows, scores);
    soften_rows(scores, i, n, inverse, lse);
    if (mask) {
      drop_scores(scores, i, n, *mask);
    }
    multiply_rows(scores, values, n, i + kRows, o);
    store_rows(o, inverse, n, i, kRows, out);
  }
}

/// What backward reads and writes besides the projections.
template <class T>
struct Backward {
  Rows<const T> out, dout;
  const float* lse;
  float* delta;
};

template <class T>
void backward_head(const Projections<const T>& in,
                   const Backward<T>& args,
                   const HeadSizes& n,
                   const Projections<T>& grad,
                   const std::optional<DropoutMask>& mask,
                   Pieces pieces) {
  float* const keys_t = pieces.take(n.padded_tokens * n.size);
  float* const values_t = pieces.take(n.padded_tokens * n.size);
  float* const keys = pieces.take(n.padded_tokens * n.padded_size);
  float* const dk = pieces.take(n.padded_tokens * n.padded_size);
  float* const dv = pieces.take(n.padded_tokens * n.padded_size);
  float* const q = pieces.take(kRows * n.padded_size);
  float* const dout = pieces.take(kRows * n.padded_size);
  float* const dq = pieces.take(kRows * n.padded_size);
  float* const p = pieces.take(kRows * n.score_ld);
  float* const ds = pieces.take(kRows * n.score_ld);
  load_panels(in.k, n, keys_t);
  load_panels(in.v, n, values_t);
  load_rows(in.k, n, 0, n.padded_tokens, keys);
  std::fill(dk, dk + n.padded_tokens * n.padded_size, 0.0F);
  std::fill(dv, dv + n.padded_tokens * n.padded_size, 0.0F);
  for (std::int64_t i = 0; i < n.tokens; i += kRows) {
    load_rows(in.q, n, i, kRows, q);
    load_rows(args.dout, n, i, kRows, dout);
    row_products(dout, args.out, n, i, args.delta);
    multiply_panels(q, keys_t, n, i + kRows, p);
    recompute_rows(p, i, n, args.lse);
    multiply_panels(dout, values_t, n, i + kRows, ds);
    if (mask) {
      drop_scores(ds, i, n, *mask);
    }
    score_gradients(p, args.delta, i, n, ds);
    if (mask) {
      drop_scores(p, i, n, *mask);
    }
    add_transposed(p, dout, n, i + kRows, dv);
    multiply_rows(ds, keys, n, i + kRows, dq);
    store_rows(dq, nullptr, n, i, kRows, grad.q);
    add_transposed(ds, q, n, i + kRows, dk);
  }
  store_rows(dk, nullptr, n, 0, n.tokens, grad.k);
  store_rows(dv, nullptr, n, 0, n.tokens, grad.v);
}

/// Head number `index` of B · H in a [B, T, 3C] tensor.
template <class T>
Projections<T> projections(T* qkv, const Attention& shape, std::int64_t index) {
  const std::int64_t stride = 3 * shape.width;
  T* const base = qkv + index / shape.heads * shape.tokens * stride +
                  index % shape.heads * (shape.width / shape.heads);
  return {{base, stride}, {base + shape.width, stride}, {base + 2 * shape.width, stride}};
}

/// Head number `index` of B · H in a [B, T, C] tensor.
template <class T>
Rows<T> head_rows(T* x, const Attention& shape, std::int64_t index) {
  return {x + index / shape.heads * shape.tokens * shape.width +
              index % shape.heads * (shape.width / shape.heads),
          shape.width};
}

/// What head number `index` of B · H drops; element (query, key) is query · T + key.
std::optional<DropoutMask> mask_of(const Attention& shape, std::int64_t index) {
  if (shape.dropout.rate == 0.0F) {
    return std::nullopt;
  }
  const std::int64_t head = shape.dropout.first_sample * shape.heads + index;
  return DropoutMask(shape.dropout, static_cast<std::uint64_t>(head));
}

/// How B · H heads are shared out to threads, each with scratch of its own.
struct HeadThreads {
  HeadThreads(const Device& device, const Attention& shape, std::int64_t scratch_elems)
      : elems(round_up(scratch_elems, static_cast<std::int64_t>(kLanes))),
        count(static_cast<int>(
            std::clamp<std::int64_t>(shape.batch * shape.heads, 1, device.threads()))) {}
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(elems * count) * sizeof(float);
  }
  std::int64_t elems;  ///< of one thread's scratch
  int count;
};

/// body(head, pieces of its thread's scratch) for each of B · H heads.
template <class Body>
void each_head(Device& device, const Attention& shape, std::int64_t scratch_elems, Body body) {
  const HeadThreads use(device, shape, scratch_elems);
  const std::int64_t elems = use.elems;
  const std::int64_t heads = shape.batch * shape.heads;
  const int threads = use.count;
  auto* const all = reinterpret_cast<float*>(scratch(device, ScratchUse::kAttention, use.bytes()));
  parallel_for_threads(threads, heads, [&](std::int64_t index, int thread) {
    body(index, Pieces(all + thread * elems));
  });
}

void check(const Attention& shape, ConstTensorView qkv, ConstTensorView out, ConstTensorView lse) {
  const std::int64_t rows = shape.batch * shape.tokens;
  ZERO_CHECK(shape.heads > 0 && shape.width % shape.heads == 0 &&
                 qkv.elems() == rows * 3 * shape.width && out.elems() == rows * shape.width &&
                 lse.elems() == rows * shape.heads && qkv.dtype == out.dtype &&
                 lse.dtype == DType::kF32,
             "attention: shapes or dtypes do not fit");
}

}  // namespace

void CpuKernels::attention_forward(const Attention& shape,
                                   ConstTensorView qkv,
                                   TensorView out,
                                   TensorView lse,
                                   Stream& stream) const {
  check(shape, qkv, out, lse);
  expect_scratch(stream,
                 ScratchUse::kAttention,
                 HeadThreads(device_, shape, forward_scratch_elems(sizes_of(shape))).bytes());
  with_floating(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, &device = device_] {
      const HeadSizes n = sizes_of(shape);
      each_head(device, shape, forward_scratch_elems(n), [&](std::int64_t index, Pieces pieces) {
        forward_head<T>(projections(elements<T>(qkv), shape, index),
                        n,
                        head_rows(elements<T>(out), shape, index),
                        elements<float>(lse) + index * shape.tokens,
                        mask_of(shape, index),
                        pieces);
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
  expect_scratch(stream,
                 ScratchUse::kAttention,
                 HeadThreads(device_, shape, backward_scratch_elems(sizes_of(shape))).bytes());
  with_floating(qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, &device = device_] {
      const HeadSizes n = sizes_of(shape);
      each_head(device, shape, backward_scratch_elems(n), [&](std::int64_t index, Pieces pieces) {
        const Backward<T> args{head_rows(elements<T>(out), shape, index),
                               head_rows(elements<T>(dout), shape, index),
                               elements<float>(lse) + index * shape.tokens,
                               elements<float>(delta) + index * shape.tokens};
        backward_head<T>(projections(elements<T>(qkv), shape, index),
                         args,
                         n,
                         projections(elements<T>(dqkv), shape, index),
                         mask_of(shape, index),
                         pieces);
      });
    });
  });
}

}  // namespace zero::accel
