#include "engine/accel/cpu/cpu_kernels.h"
#include "engine/accel/cpu/dropout.h"
#include "engine/accel/cpu/kernel_table.h"

#include <algorithm>
#include <tuple>

namespace zero::accel {
namespace {

/// Elements a thread takes at a time.
constexpr std::int64_t kGrain = 1 << 14;

constexpr float kGeluScale = 0.79788456080286536F;  // sqrt(2/π)
constexpr float kGeluCubic = 0.044715F;

/// ½ (1 + tanh u) = 1 / (1 + e^−2u), which loses no digits where tanh u is close to −1.
inline float gelu_gate(float x) {
  return 1.0F / (1.0F + vector_exp(-2.0F * kGeluScale * (x + kGeluCubic * x * x * x)));
}
inline float gelu(float x) {
  return x * gelu_gate(x);
}
inline float gelu_slope(float x) {
  const float gate = gelu_gate(x);
  return gate + 2.0F * x * gate * (1.0F - gate) * kGeluScale * (1.0F + 3.0F * kGeluCubic * x * x);
}

template <class T>
ZERO_VECTOR_CLONES void add_loop(const T* a, const T* b, T* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
  }
}
template <class T>
ZERO_VECTOR_CLONES void scale_loop(const T* x, float factor, T* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = from_float<T>(factor * to_float(x[i]));
  }
}
template <class S, class D>
ZERO_VECTOR_CLONES void cast_loop(const S* src, D* dst, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    dst[i] = from_float<D>(to_float(src[i]));
  }
}
template <class S, class D>
ZERO_VECTOR_CLONES void accumulate_loop(const S* src, D* dst, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    dst[i] = from_float<D>(to_float(dst[i]) + to_float(src[i]));
  }
}
template <class T>
ZERO_VECTOR_CLONES void relu_loop(const T* x, T* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float v = to_float(x[i]);
    y[i] = from_float<T>(v > 0.0F ? v : 0.0F);
  }
}
template <class T>
ZERO_VECTOR_CLONES void relu_slope_loop(const T* x, const T* dy, T* dx, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    dx[i] = from_float<T>(to_float(x[i]) > 0.0F ? to_float(dy[i]) : 0.0F);
  }
}
template <class T>
ZERO_VECTOR_CLONES void gelu_loop(const T* x, T* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    y[i] = from_float<T>(gelu(to_float(x[i])));
  }
}
template <class T>
ZERO_VECTOR_CLONES void gelu_slope_loop(const T* x, const T* dy, T* dx, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    dx[i] = from_float<T>(to_float(dy[i]) * gelu_slope(to_float(x[i])));
  }
}

/// loop(begin, count) over [0, n) in pieces, on the device's threads.
template <class Loop>
void in_pieces(int threads, std::int64_t n, Loop loop) {
  parallel_for(threads, (n + kGrain - 1) / kGrain, [&](std::int64_t piece) {
    const std::int64_t begin = piece * kGrain;
    loop(begin, static_cast<std::size_t>(std::min(kGrain, n - begin)));
  });
}

template <class Body>
void with_two(DType a, DType b, Body body) {
  with_floating(a, [&](auto s) { with_floating(b, [&](auto d) { body(s, d); }); });
}

/// Enqueues loop(pointer of each view…, count) over views of one dtype and length.
template <class Loop, class... Views>
void map(Stream& stream, int threads, Loop loop, ConstTensorView first, Views... others) {
  ZERO_CHECK(((first.dtype == others.dtype && first.elems() == others.elems()) && ...),
             "element-wise kernel over different views");
  with_floating(first.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([loop,
                      threads,
                      n = first.elems(),
                      pointers = std::make_tuple(elements<T>(first), elements<T>(others)...)] {
      in_pieces(threads, n, [&](std::int64_t at, std::size_t count) {
        std::apply([&](auto*... data) { loop((data + at)..., count); }, pointers);
      });
    });
  });
}

template <class T>
ZERO_VECTOR_CLONES void drop_row(const T* x, const DropoutMask& mask, std::size_t n, T* out) {
  const DropoutMask m = mask;
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = from_float<T>(to_float(x[i]) * m.factor(static_cast<std::uint32_t>(i)));
  }
}

}  // namespace

void CpuKernels::add(ConstTensorView a, ConstTensorView b, TensorView out, Stream& stream) const {
  const auto loop = [](const auto* x, const auto* y, auto* to, std::size_t n) {
    add_loop(x, y, to, n);
  };
  map(stream, threads(), loop, a, b, out);
}

void CpuKernels::scale(ConstTensorView x, float factor, TensorView out, Stream& stream) const {
  const auto loop = [factor](const auto* from, auto* to, std::size_t n) {
    scale_loop(from, factor, to, n);
  };
  map(stream, threads(), loop, x, out);
}

void CpuKernels::cast(ConstTensorView src, TensorView dst, Stream& stream) const {
  accumulate(src, dst, true, stream);
}

void CpuKernels::accumulate(ConstTensorView src,
                            TensorView dst,
                            bool overwrite,
                            Stream& stream) const {
  ZERO_CHECK(src.elems() == dst.elems(), "conversion between views of different length");
  with_two(src.dtype, dst.dtype, [&](auto s, auto d) {
    using S = decltype(s);
    using D = decltype(d);
    stream.host_task(
        [a = elements<S>(src), b = elements<D>(dst), overwrite, n = src.elems(), t = threads()] {
          in_pieces(t, n, [&](std::int64_t at, std::size_t count) {
            overwrite ? cast_loop(a + at, b + at, count) : accumulate_loop(a + at, b + at, count);
          });
        });
  });
}

void CpuKernels::relu_forward(ConstTensorView x, TensorView y, Stream& stream) const {
  const auto loop = [](const auto* from, auto* to, std::size_t n) { relu_loop(from, to, n); };
  map(stream, threads(), loop, x, y);
}

void CpuKernels::relu_backward(ConstTensorView x,
                               ConstTensorView dy,
                               TensorView dx,
                               Stream& stream) const {
  const auto loop = [](const auto* at, const auto* from, auto* to, std::size_t n) {
    relu_slope_loop(at, from, to, n);
  };
  map(stream, threads(), loop, x, dy, dx);
}

void CpuKernels::gelu_forward(ConstTensorView x, TensorView y, Stream& stream) const {
  const auto loop = [](const auto* from, auto* to, std::size_t n) { gelu_loop(from, to, n); };
  map(stream, threads(), loop, x, y);
}

void CpuKernels::gelu_backward(ConstTensorView x,
                               ConstTensorView dy,
                               TensorView dx,
                               Stream& stream) const {
  const auto loop = [](const auto* at, const auto* from, auto* to, std::size_t n) {
    gelu_slope_loop(at, from, to, n);
  };
  map(stream, threads(), loop, x, dy, dx);
}

std::unique_ptr<Kernels> make_cpu_kernels(Device& device) {
  return std::make_unique<CpuKernels>(device);
}

void CpuKernels::dropout(ConstTensorView x,
                         const Dropout& dropout,
                         std::int64_t samples,
                         TensorView out,
                         Stream& stream) const {
  ZERO_CHECK(
      x.elems() == out.elems() && x.dtype == out.dtype && samples > 0 && x.elems() % samples == 0,
      "dropout: views do not fit");
  const std::int64_t row_elems = x.elems() / samples;
  with_floating(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads()] {
      parallel_for(t, samples, [&](std::int64_t row) {
        drop_row(elements<T>(x) + row * row_elems,
                 DropoutMask(dropout, static_cast<std::uint64_t>(dropout.first_sample + row)),
                 static_cast<std::size_t>(row_elems),
                 elements<T>(out) + row * row_elems);
      });
    });
  });
}

}  // namespace zero::accel
