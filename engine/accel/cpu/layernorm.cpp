#include "engine/accel/cpu/kernel_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace zero::accel {
namespace {

template <class T>
ZERO_VECTOR_CLONES void forward_row(const T* x,
                                    const T* weight,
                                    const T* bias,
                                    float eps,
                                    std::size_t n,
                                    T* y,
                                    float* mean_out,
                                    float* rstd_out) {
  const float count = static_cast<float>(n);
  const float mean = lane_sum<float>(n, [&](std::size_t i) { return to_float(x[i]); }) / count;
  const float variance = lane_sum<float>(n,
                                         [&](std::size_t i) {
                                           const float d = to_float(x[i]) - mean;
                                           return d * d;
                                         }) /
                         count;
  const float rstd = 1.0F / std::sqrt(variance + eps);
  for (std::size_t i = 0; i < n; ++i) {
    y[i] = from_float<T>((to_float(x[i]) - mean) * rstd * to_float(weight[i]) + to_float(bias[i]));
  }
  *mean_out = mean;
  *rstd_out = rstd;
}

/// dx = rstd · (g − mean(g) − x̂ · mean(g · x̂)) with g = dy · weight.
template <class T>
ZERO_VECTOR_CLONES void backward_row(const T* dy,
                                     const T* x,
                                     const T* weight,
                                     float mean,
                                     float rstd,
                                     std::size_t n,
                                     bool accumulate,
                                     T* dx) {
  const float count = static_cast<float>(n);
  const auto g = [&](std::size_t i) { return to_float(dy[i]) * to_float(weight[i]); };
  const auto hat = [&](std::size_t i) { return (to_float(x[i]) - mean) * rstd; };
  const float mean_g = lane_sum<float>(n, g) / count;
  const float mean_gx = lane_sum<float>(n, [&](std::size_t i) { return g(i) * hat(i); }) / count;
  if (accumulate) {
    for (std::size_t i = 0; i < n; ++i) {
      dx[i] = from_float<T>(to_float(dx[i]) + rstd * (g(i) - mean_g - hat(i) * mean_gx));
    }
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      dx[i] = from_float<T>(rstd * (g(i) - mean_g - hat(i) * mean_gx));
    }
  }
}

/// Adds one row to the sums of the weight's and the bias's gradient.
template <class T>
ZERO_VECTOR_CLONES void parameter_row(
    const T* dy, const T* x, float mean, float rstd, std::size_t n, float* dweight, float* dbias) {
  for (std::size_t i = 0; i < n; ++i) {
    const float d = to_float(dy[i]);
    dweight[i] += d * ((to_float(x[i]) - mean) * rstd);
    dbias[i] += d;
  }
}

template <class T>
ZERO_VECTOR_CLONES void add_row(const T* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    to[i] += to_float(from[i]);
  }
}

template <class T>
void store_sum(const std::vector<float>& sums, bool accumulate, std::size_t begin, T* out) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    out[begin + i] = from_float<T>(accumulate ? to_float(out[begin + i]) + sums[i] : sums[i]);
  }
}

/// Columns that one thread sums over all rows.
constexpr std::int64_t kColumns = 256;

}  // namespace

void CpuKernels::layernorm_forward(ConstTensorView x,
                                   ConstTensorView weight,
                                   ConstTensorView bias,
                                   float eps,
                                   TensorView y,
                                   TensorView mean,
                                   TensorView rstd,
                                   Stream& stream) const {
  const std::int64_t columns = weight.elems();
  const std::int64_t rows = columns == 0 ? 0 : x.elems() / columns;
  ZERO_CHECK(x.elems() == rows * columns && y.elems() == x.elems() && mean.elems() == rows &&
                 rstd.elems() == rows && bias.elems() == columns,
             "layernorm_forward: shapes do not fit");
  with_floating(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=,
                      t = threads(),
                      in = elements<T>(x),
                      w = elements<T>(weight),
                      b = elements<T>(bias),
                      out = elements<T>(y),
                      m = elements<float>(mean),
                      r = elements<float>(rstd)] {
      parallel_for(t, rows, [&](std::int64_t row) {
        forward_row(in + row * columns,
                    w,
                    b,
                    eps,
                    static_cast<std::size_t>(columns),
                    out + row * columns,
                    m + row,
                    r + row);
      });
    });
  });
}

void CpuKernels::layernorm_backward(const LayerNormBackward& args, Stream& stream) const {
  const std::int64_t columns = args.weight.elems();
  const std::int64_t rows = columns == 0 ? 0 : args.x.elems() / columns;
  ZERO_CHECK(args.dy.elems() == rows * columns && args.x.elems() == rows * columns &&
                 args.dx.elems() == rows * columns && args.mean.elems() == rows &&
                 args.rstd.elems() == rows,
             "layernorm_backward: shapes do not fit");
  with_floating(args.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([args, rows, columns, t = threads()] {
      const T* dy = elements<T>(args.dy);
      const T* x = elements<T>(args.x);
      const float* mean = elements<float>(args.mean);
      const float* rstd = elements<float>(args.rstd);
      if (args.dweight || args.dbias) {  // first: dx may overwrite dy
        parallel_for(t, (columns + kColumns - 1) / kColumns, [&](std::int64_t block) {
          const std::int64_t begin = block * kColumns;
          const auto count = static_cast<std::size_t>(std::min(kColumns, columns - begin));
          std::vector<float> dweight(count);
          std::vector<float> dbias(count);
          for (std::int64_t row = 0; row < rows; ++row) {
            const std::int64_t at = row * columns + begin;
            parameter_row(
                dy + at, x + at, mean[row], rstd[row], count, dweight.data(), dbias.data());
          }
          if (args.dweight) {
            store_sum(dweight,
                      args.accumulate_dw,
                      static_cast<std::size_t>(begin),
                      elements<T>(args.dweight));
          }
          if (args.dbias) {
            store_sum(dbias,
                      args.accumulate_dw,
                      static_cast<std::size_t>(begin),
                      elements<T>(args.dbias));
          }
        });
      }
      parallel_for(t, rows, [&](std::int64_t row) {
        const std::int64_t at = row * columns;
        backward_row(dy + at,
                     x + at,
                     elements<T>(args.weight),
                     mean[row],
                     rstd[row],
                     static_cast<std::size_t>(columns),
                     args.accumulate_dx,
                     elements<T>(args.dx) + at);
      });
    });
  });
}

void CpuKernels::column_sum(ConstTensorView x,
                            TensorView out,
                            bool accumulate,
                            Stream& stream) const {
  const std::int64_t columns = out.elems();
  const std::int64_t rows = columns == 0 ? 0 : x.elems() / columns;
  ZERO_CHECK(x.elems() == rows * columns && x.dtype == out.dtype, "column_sum: shapes do not fit");
  with_floating(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads(), in = elements<T>(x), sum = elements<T>(out)] {
      parallel_for(t, (columns + kColumns - 1) / kColumns, [&](std::int64_t block) {
        const std::int64_t begin = block * kColumns;
        std::vector<float> sums(static_cast<std::size_t>(std::min(kColumns, columns - begin)));
        for (std::int64_t row = 0; row < rows; ++row) {
          add_row(in + row * columns + begin, sums.data(), sums.size());
        }
        store_sum(sums, accumulate, static_cast<std::size_t>(begin), sum);
      });
    });
  });
}

}  // namespace zero::accel
