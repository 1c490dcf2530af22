// Backward kernels against finite differences of the scalar loops.
#include "accel/bench_device.h"
#include "accel/oracle.h"
#include <support/catch.h>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

const DType kFloating[] = {DType::kF32, DType::kF16, DType::kBF16};

/// fp32 kernels against fp64 differences; with 16 bits the result's rounding and that of what
/// forward saved.
double bound(DType dtype) {
  return dtype == DType::kF32 ? 2e-5 : 4 * tolerance(dtype);
}

}  // namespace

TEST_CASE("gradients: relu and gelu", "[accel][gradient]") {
  BenchDevice bench;
  for (const DType dtype : kFloating) {
    const std::vector<float> x = rounded(dtype, numbers(65, 1, 3.0F));
    const std::vector<float> dy = rounded(dtype, numbers(65, 2));
    const TensorView xs = bench.tensor(dtype, Shape{65}, x);
    const TensorView dys = bench.tensor(dtype, Shape{65}, dy);
    const TensorView dx = bench.raw(dtype, Shape{65});
    const auto map = [](auto f) {
      return [f](const oracle::Values& in) {
        oracle::Values out;
        for (const double v : in) {
          out.push_back(f(v));
        }
        return out;
      };
    };
    INFO(dtype_name(dtype));
    bench.kernels().gelu_backward(xs, dys, dx, *bench.stream);
    CHECK(worst(bench.read(dx),
                oracle::gradient(map(oracle::gelu), oracle::wide(x), oracle::wide(dy))) <
          bound(dtype));
    bench.kernels().relu_backward(xs, dys, dx, *bench.stream);
    const auto relu = map([](double v) { return std::max(v, 0.0); });
    CHECK(worst(bench.read(dx), oracle::gradient(relu, oracle::wide(x), oracle::wide(dy))) <
          bound(dtype));
    bench.kernels().gelu_backward(xs, dys, dys, *bench.stream);  // in place
    bench.kernels().gelu_backward(xs, bench.tensor(dtype, Shape{65}, dy), dx, *bench.stream);
    CHECK(bench.read(dys) == bench.read(dx));
  }
}

TEST_CASE("gradients: layer normalisation, with accumulation into each result",
          "[accel][gradient]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF16, DType::kBF16);
  BenchDevice bench;
  const std::int64_t rows = 4;
  const std::int64_t n = 19;
  const std::vector<float> x = rounded(dtype, numbers(76, 1, 2.0F));
  const std::vector<float> weight = rounded(dtype, numbers(19, 2));
  const std::vector<float> bias = rounded(dtype, numbers(19, 3));
  const std::vector<float> dy = rounded(dtype, numbers(76, 4));
  const TensorView xs = bench.tensor(dtype, Shape{rows, n}, x);
  const TensorView ws = bench.tensor(dtype, Shape{n}, weight);
  const TensorView dys = bench.tensor(dtype, Shape{rows, n}, dy);
  const TensorView mean = bench.raw(DType::kF32, Shape{rows});
  const TensorView rstd = bench.raw(DType::kF32, Shape{rows});
  const TensorView y = bench.raw(dtype, Shape{rows, n});
  bench.kernels().layernorm_forward(
      xs, ws, bench.tensor(dtype, Shape{n}, bias), 1e-5F, y, mean, rstd, *bench.stream);
  const oracle::Values expected_dx = oracle::gradient(
      [&](const oracle::Values& in) {
        return oracle::layernorm(in, oracle::wide(weight), oracle::wide(bias), 1e-5);
      },
      oracle::wide(x),
      oracle::wide(dy));
  const oracle::Values expected_dw = oracle::gradient(
      [&](const oracle::Values& in) {
        return oracle::layernorm(oracle::wide(x), in, oracle::wide(bias), 1e-5);
      },
      oracle::wide(weight),
      oracle::wide(dy));
  for (const bool accumulate : {false, true}) {
    const TensorView dx = bench.tensor(dtype, Shape{rows, n}, std::vector<float>(76, 1.0F));
    const TensorView dw = bench.tensor(dtype, Shape{n}, std::vector<float>(19, 1.0F));
    const TensorView db = bench.tensor(dtype, Shape{n}, std::vector<float>(19, 1.0F));
    bench.kernels().layernorm_backward(
        {dys, xs, ws, mean, rstd, dx, dw, db, accumulate, accumulate}, *bench.stream);
    const auto shifted = [&](oracle::Values values) {
      for (double& value : values) {
        value += accumulate ? 1.0 : 0.0;
      }
      return values;
    };
    CHECK(worst(bench.read(dx), shifted(expected_dx)) < bound(dtype));
    CHECK(worst(bench.read(dw), shifted(expected_dw)) < bound(dtype));
    oracle::Values expected_db(19);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      expected_db[i % 19] += dy[i];
    }
    CHECK(worst(bench.read(db), shifted(expected_db)) < bound(dtype));
  }
}

TEST_CASE("gradients: attention", "[accel][gradient]") {
  BenchDevice bench;
  const std::size_t shapes[][4] = {{1, 5, 2, 6}, {2, 35, 1, 8}};
  for (const auto& [batch, tokens, heads, width] : shapes) {
    const auto b = static_cast<std::int64_t>(batch);
    const auto t = static_cast<std::int64_t>(tokens);
    const auto h = static_cast<std::int64_t>(heads);
    const auto w = static_cast<std::int64_t>(width);
    const std::vector<float> x = numbers(batch * tokens * 3 * width, 1, 1.5F);
    const std::vector<float> dy = numbers(batch * tokens * width, 2);
    const TensorView qkv = bench.tensor(DType::kF32, Shape{b, t, 3 * w}, x);
    const TensorView dout = bench.tensor(DType::kF32, Shape{b, t, w}, dy);
    const TensorView out = bench.raw(DType::kF32, Shape{b, t, w});
    const TensorView lse = bench.raw(DType::kF32, Shape{b, h, t});
    const TensorView delta = bench.raw(DType::kF32, Shape{b, h, t});
    const TensorView dqkv = bench.raw(DType::kF32, Shape{b, t, 3 * w});
    bench.kernels().attention_forward({b, t, h, w}, qkv, out, lse, *bench.stream);
    bench.kernels().attention_backward(
        {b, t, h, w}, qkv, out, lse, dout, delta, dqkv, *bench.stream);
    const std::size_t size[] = {batch, tokens, heads, width};
    const oracle::Values expected = oracle::gradient(
        [&](const oracle::Values& in) {
          return oracle::attention(in, size[0], size[1], size[2], size[3]);
        },
        oracle::wide(x),
        oracle::wide(dy));
    CHECK(worst(bench.read(dqkv), expected) < bound(DType::kF32));
  }
}

TEST_CASE("gradients: attention of every head size and dtype equals the scalar loop",
          "[accel][gradient]") {
  BenchDevice bench;
  const std::int64_t shapes[][4] = {
      {1, 70, 2, 256}, {2, 33, 3, 48}, {1, 96, 1, 80}, {3, 1, 2, 64}, {1, 64, 4, 132}};
  for (const DType dtype : kFloating) {
    for (const auto& [b, t, h, w] : shapes) {
      INFO(dtype_name(dtype) << " T " << t << " head size " << w / h);
      const auto rows = static_cast<std::size_t>(b * t);
      const auto width = static_cast<std::size_t>(w);
      const std::vector<float> x = rounded(dtype, numbers(rows * 3 * width, 1, 1.5F));
      const std::vector<float> dy = rounded(dtype, numbers(rows * width, 2));
      const TensorView qkv = bench.tensor(dtype, Shape{b, t, 3 * w}, x);
      const TensorView out = bench.raw(dtype, Shape{b, t, w});
      const TensorView lse = bench.raw(DType::kF32, Shape{b, h, t});
      const TensorView delta = bench.raw(DType::kF32, Shape{b, h, t});
      const TensorView dqkv = bench.raw(dtype, Shape{b, t, 3 * w});
      bench.kernels().attention_forward({b, t, h, w}, qkv, out, lse, *bench.stream);
      bench.kernels().attention_backward({b, t, h, w},
                                         qkv,
                                         out,
                                         lse,
                                         bench.tensor(dtype, Shape{b, t, w}, dy),
                                         delta,
                                         dqkv,
                                         *bench.stream);
      const oracle::Values expected = oracle::attention_backward(oracle::wide(x),
                                                                 oracle::wide(dy),
                                                                 static_cast<std::size_t>(b),
                                                                 static_cast<std::size_t>(t),
                                                                 static_cast<std::size_t>(h),
                                                                 width);
      CHECK(worst(bench.read(dqkv), expected) < bound(dtype));
    }
  }
}

TEST_CASE("gradients: cross entropy, scaled by seed and counted rows", "[accel][gradient]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF16, DType::kBF16);
  BenchDevice bench;
  const std::vector<float> x = rounded(dtype, numbers(4 * 9, 1, 3.0F));
  const std::vector<std::int32_t> targets = {2, -1, 8, 0};
  const TensorView logits = bench.tensor(dtype, Shape{4, 9}, x);
  bench.kernels().cross_entropy_backward(
      {2.5F, 3}, bench.tensor(Shape{4}, targets), logits, *bench.stream);
  const oracle::Values expected =
      oracle::gradient([&](const oracle::Values& in) { return oracle::cross_entropy(in, targets); },
                       oracle::wide(x),
                       oracle::Values(4, 2.5 / 3.0));
  CHECK(worst(bench.read(logits), expected) < bound(dtype));
}
