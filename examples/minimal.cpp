// A model of one's own under ZeRO: an MLP learns which of four spirals' arms a point lies on.
#include <zero/nn/mlp_classifier.h>
#include <zero/zero.h>

#include <cmath>
#include <cstdio>
#include <vector>

constexpr std::int64_t kRows = 32;  // points a rank and step

/// Points of micro-batch `step` of `rank`, and the arm each lies on.
zero::Batch spirals(std::int64_t step, int rank) {
  std::vector<float> points;
  std::vector<std::int32_t> arms;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::int64_t number = (step * 64 + rank) * kRows + row;
    const auto arm = static_cast<std::int32_t>(number % 4);
    const double radius = std::fmod(static_cast<double>(number) * 0.618034, 1.0);
    const double angle = 1.5708 * arm + 4.0 * radius;
    points.push_back(static_cast<float>(radius * std::cos(angle)));
    points.push_back(static_cast<float>(radius * std::sin(angle)));
    arms.push_back(arm);
  }
  return {zero::HostTensor::copy_of(std::span<const float>(points), {kRows, 2}),
          zero::HostTensor::copy_of(std::span<const std::int32_t>(arms), {kRows})};
}

int train(zero::World& world, const char* config) {
  zero::nn::MlpClassifier model({2, 64, 64, 4});
  auto engine = zero::initialize({.world = world,
                                  .model = model,
                                  .config = config,
                                  .batch = {.train_micro_batch_size_per_gpu = kRows}});
  for (std::int64_t step = 0; step < 1000; ++step) {
    const zero::Loss loss = engine->forward(spirals(step, world.group.rank()));
    engine->backward(loss);
    engine->step();
  }
  const auto results = engine->take_results(/*wait=*/true);
  if (world.group.rank() == 0) {
    std::printf("first loss %.3f\nloss=%.3f\n", results.front().loss, results.back().loss);
  }
  return 0;
}

int main(int argc, char** argv) {
  const char* config = argc > 1 ? argv[1] : "ds_config_samples/zero3.json";
  try {
    return zero::launch({.ranks = 2}, [&](zero::World& world) { return train(world, config); });
  } catch (const std::exception& error) {
    return zero::report_error(error);
  }
}
