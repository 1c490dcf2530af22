#include "engine/accel/cpu/kernel_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace zero::accel {
namespace {

std::int64_t checked_token(const std::int32_t* tokens, std::int64_t at, std::int64_t vocabulary) {
  const std::int64_t token = tokens[at];
  if (token < 0 || token >= vocabulary) {
    throw InputError(
        fmt::format(
            "token {} at element {} is outside the vocabulary of {}", token, at, vocabulary),
        "embedding",
        "check the data and the model's vocab_size");
  }
  return token;
}

template <class T>
ZERO_VECTOR_CLONES void embed_row(const T* entry, const T* position, T* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] =
        position == nullptr ? entry[i] : from_float<T>(to_float(entry[i]) + to_float(position[i]));
  }
}

template <class T>
ZERO_VECTOR_CLONES void add_row(const T* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    to[i] += to_float(from[i]);
  }
}

/// Adds rows of dout, in order, into one row of a table's gradient.
template <class T>
void table_row(std::span<const std::int32_t> rows,
               const T* dout,
               std::int64_t width,
               bool accumulate,
               T* out) {
  if (rows.empty()) {
    if (!accumulate) {
      std::fill(out, out + width, from_float<T>(0.0F));
    }
    return;
  }
  std::vector<float> sum(static_cast<std::size_t>(width));
  for (const std::int32_t row : rows) {
    add_row(dout + row * width, sum.data(), sum.size());
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    out[i] = from_float<T>(accumulate ? to_float(out[i]) + sum[i] : sum[i]);
  }
}

/// Elements of `tokens` by token, those of one token in their order (a counting sort).
struct ByToken {
  std::vector<std::int32_t> first;  ///< of each token, and the end
  std::vector<std::int32_t> elements;

  [[nodiscard]] std::span<const std::int32_t> of(std::int64_t token) const {
    const auto at = static_cast<std::size_t>(token);
    return std::span(elements).subspan(static_cast<std::size_t>(first[at]),
                                       static_cast<std::size_t>(first[at + 1] - first[at]));
  }
};

ByToken sort_tokens(const std::int32_t* tokens, std::int64_t count, std::int64_t vocabulary) {
  ByToken sorted;
  sorted.first.resize(static_cast<std::size_t>(vocabulary) + 1);
  sorted.elements.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    ++sorted.first[static_cast<std::size_t>(checked_token(tokens, i, vocabulary))];
  }
  std::inclusive_scan(sorted.first.begin(), sorted.first.end(), sorted.first.begin());
  for (std::int64_t i = count; i-- > 0;) {  // ends become beginnings
    auto& end = sorted.first[static_cast<std::size_t>(tokens[i])];
    sorted.elements[static_cast<std::size_t>(--end)] = static_cast<std::int32_t>(i);
  }
  return sorted;
}

/// Rows of the table that a thread takes at a time.
constexpr std::int64_t kTableRows = 256;

}  // namespace

void CpuKernels::embedding_forward(ConstTensorView tokens,
                                   ConstTensorView table,
                                   ConstTensorView positions,
                                   TensorView out,
                                   Stream& stream) const {
  const std::int64_t width = table.shape[1];
  const std::int64_t length = tokens.shape[1];
  ZERO_CHECK(out.elems() == tokens.elems() * width && (!positions || positions.shape[0] >= length),
             "embedding_forward: shapes do not fit");
  with_floating(table.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads()] {
      const auto* ids = elements<std::int32_t>(tokens);
      for (std::int64_t i = 0; i < tokens.elems(); ++i) {
        (void)checked_token(ids, i, table.shape[0]);
      }
      parallel_for(t, tokens.elems(), [&](std::int64_t i) {
        embed_row(elements<T>(table) + ids[i] * width,
                  positions ? elements<T>(positions) + (i % length) * width : nullptr,
                  elements<T>(out) + i * width,
                  static_cast<std::size_t>(width));
      });
    });
  });
}

void CpuKernels::embedding_backward(ConstTensorView tokens,
                                    ConstTensorView dout,
                                    TensorView dtable,
                                    bool accumulate_table,
                                    TensorView dpositions,
                                    bool accumulate_positions,
                                    Stream& stream) const {
  const std::int64_t length = tokens.shape[1];
  const std::int64_t width = dout.shape[dout.shape.rank() - 1];
  ZERO_CHECK(dout.elems() == tokens.elems() * width && (!dtable || dtable.shape[1] == width) &&
                 (!dpositions || dpositions.shape[1] == width) &&
                 tokens.elems() <= std::numeric_limits<std::int32_t>::max(),
             "embedding_backward: shapes do not fit");
  with_floating(dout.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads()] {
      const auto* ids = elements<std::int32_t>(tokens);
      if (dtable) {
        const std::int64_t vocabulary = dtable.shape[0];
        const ByToken sorted = sort_tokens(ids, tokens.elems(), vocabulary);
        parallel_for(t, (vocabulary + kTableRows - 1) / kTableRows, [&](std::int64_t block) {
          const std::int64_t end = std::min(vocabulary, (block + 1) * kTableRows);
          for (std::int64_t token = block * kTableRows; token < end; ++token) {
            table_row(sorted.of(token),
                      elements<T>(dout),
                      width,
                      accumulate_table,
                      elements<T>(dtable) + token * width);
          }
        });
      }
      if (dpositions) {
        parallel_for(t, dpositions.shape[0], [&](std::int64_t position) {
          std::vector<std::int32_t> rows;
          for (std::int64_t i = position; position < length && i < tokens.elems(); i += length) {
            rows.push_back(static_cast<std::int32_t>(i));
          }
          table_row(std::span<const std::int32_t>(rows),
                    elements<T>(dout),
                    width,
                    accumulate_positions,
                    elements<T>(dpositions) + position * width);
        });
      }
    });
  });
}

}  // namespace zero::accel
