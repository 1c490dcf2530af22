#include "accel/bench_device.h"

#include <zero/core/rng.h>

#include <algorithm>
#include <cmath>

namespace zero::testing {
namespace {

template <class T>
std::vector<T> convert(const std::vector<float>& values) {
  std::vector<T> out;
  std::transform(values.begin(), values.end(), std::back_inserter(out), [](float v) {
    return from_float<T>(v);
  });
  return out;
}

template <class T>
std::vector<float> widen(const std::vector<T>& values) {
  std::vector<float> out;
  std::transform(
      values.begin(), values.end(), std::back_inserter(out), [](T v) { return to_float(v); });
  return out;
}

}  // namespace

BenchDevice::BenchDevice(int threads)
    : context(0, 1, Env{}),
      device(accel::make_cpu_device(context, threads)),
      stream(device->make_stream("test")) {}

TensorView BenchDevice::raw(DType dtype, const Shape& shape) {
  const auto bytes = static_cast<std::size_t>(shape.elems()) * dtype_size(dtype);
  buffers_.push_back(device->allocate(bytes, Category::kOther));
  return buffers_.back().view(dtype, shape);
}

TensorView BenchDevice::tensor(DType dtype, const Shape& shape, const std::vector<float>& values) {
  const TensorView view = raw(dtype, shape);
  const auto put = [&](const auto& typed) {
    device->copy({reinterpret_cast<const std::byte*>(typed.data()), dtype, shape}, view, *stream);
    stream->synchronize();
  };
  if (dtype == DType::kF32) {
    put(values);
  } else if (dtype == DType::kF16) {
    put(convert<Float16>(values));
  } else {
    put(convert<BFloat16>(values));
  }
  return view;
}

TensorView BenchDevice::tensor(const Shape& shape, const std::vector<std::int32_t>& values) {
  const TensorView view = raw(DType::kI32, shape);
  device->copy(
      {reinterpret_cast<const std::byte*>(values.data()), DType::kI32, shape}, view, *stream);
  stream->synchronize();
  return view;
}

std::vector<float> BenchDevice::read(TensorView view) {
  if (view.dtype == DType::kF16) {
    return widen(read_as<Float16>(view));
  }
  return view.dtype == DType::kBF16 ? widen(read_as<BFloat16>(view)) : read_as<float>(view);
}

std::vector<float> numbers(std::size_t count, std::uint64_t seed, float scale) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto top = static_cast<double>(splitmix64_at(seed, i) >> 11U) * 0x1p-53;
    values[i] = static_cast<float>((2.0 * top - 1.0) * scale);
  }
  return values;
}

std::vector<float> rounded(DType dtype, std::vector<float> values) {
  for (float& value : values) {
    value = dtype == DType::kF16    ? to_float(to_float16(value))
            : dtype == DType::kBF16 ? to_float(to_bfloat16(value))
                                    : value;
  }
  return values;
}

double worst(const std::vector<float>& a, const std::vector<double>& b) {
  double result = a.size() == b.size() ? 0.0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - b[i]) / (1.0 + std::abs(b[i]));
    result = error > result || std::isnan(error) ? error : result;
  }
  return result;
}

double tolerance(DType dtype) {
  return dtype == DType::kF32 ? 4e-6 : dtype == DType::kF16 ? 6e-4 : 5e-3;
}

}  // namespace zero::testing
