#pragma once

#include <zero/accel/device.h>
#include <zero/core/rank_context.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace zero::testing {

/// A CPU device with one stream, and tensors that go there and back.
class BenchDevice {
 public:
  explicit BenchDevice(int threads = 1);

  /// A tensor on the device that holds `values`, rounded to `dtype`.
  [[nodiscard]] TensorView tensor(DType dtype,
                                  const Shape& shape,
                                  const std::vector<float>& values);
  [[nodiscard]] TensorView tensor(const Shape& shape, const std::vector<std::int32_t>& values);
  /// Uninitialised.
  [[nodiscard]] TensorView raw(DType dtype, const Shape& shape);
  /// Waits for the stream and reads a tensor back as fp32.
  [[nodiscard]] std::vector<float> read(TensorView view);
  template <class T>
  [[nodiscard]] std::vector<T> read_as(TensorView view) {
    std::vector<T> values(static_cast<std::size_t>(view.bytes()) / sizeof(T));
    device->copy(
        view, {reinterpret_cast<std::byte*>(values.data()), view.dtype, view.shape}, *stream);
    stream->synchronize();
    return values;
  }
  [[nodiscard]] const accel::Kernels& kernels() const { return device->kernels(); }

  RankContext context;
  std::unique_ptr<accel::Device> device;
  std::unique_ptr<accel::Stream> stream;

 private:
  std::vector<accel::Buffer> buffers_;
};

/// Reproducible numbers in [−scale, scale].
[[nodiscard]] std::vector<float> numbers(std::size_t count, std::uint64_t seed, float scale = 1.0F);
/// `values` rounded to `dtype` and back.
[[nodiscard]] std::vector<float> rounded(DType dtype, std::vector<float> values);
/// Largest |a − b| ÷ (1 + |b|).
[[nodiscard]] double worst(const std::vector<float>& a, const std::vector<double>& b);
/// What one rounding and a few fp32 operations may cost in a dtype, relative to 1 + |value|.
[[nodiscard]] double tolerance(DType dtype);

}  // namespace zero::testing
