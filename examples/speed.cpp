#include "examples/speed.h"

#include <zero/accel/device.h>

#include <algorithm>
#include <chrono>

namespace zero::examples {

double training_flops_per_token(const nn::GptConfig& model) {
  const auto layers = static_cast<double>(model.layers);
  const auto width = static_cast<double>(model.hidden);
  const double block_weights = width * (4.0 * width + 2.0 * static_cast<double>(model.inner));
  const double head_weights = width * static_cast<double>(model.vocabulary);
  const double attention = layers * width * static_cast<double>(model.positions);
  return 6.0 * (layers * block_weights + head_weights + attention);
}

double measure_gemm_flops(const World& world) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kSize = 768;
  constexpr auto kBudget = std::chrono::milliseconds(150);
  RankContext scratch(world.context.rank, world.context.world, world.context.env);
  const auto device = accel::make_cpu_device(scratch, world.device.threads());
  const auto stream = device->make_stream("speed");
  const auto matrix = [&] {
    return device->allocate(kSize * kSize * sizeof(float), Category::kOther);
  };
  const accel::Buffer a = matrix();
  const accel::Buffer b = matrix();
  const accel::Buffer c = matrix();
  const Shape shape{kSize, kSize};
  for (const accel::Buffer* buffer : {&a, &b, &c}) {
    device->zero(buffer->view(DType::kF32, shape), *stream);
  }
  double best_s = 1e9;
  const auto end = Clock::now() + kBudget;
  do {
    stream->synchronize();
    const auto start = Clock::now();
    device->kernels().gemm({.a = a.view(DType::kF32, shape),
                            .b = b.view(DType::kF32, shape),
                            .c = c.view(DType::kF32, shape)},
                           *stream);
    stream->synchronize();
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() < end);
  return 2.0 * kSize * kSize * kSize / best_s;
}

}  // namespace zero::examples
