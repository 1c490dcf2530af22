// The op table: every kernel against its scalar loop, over awkward sizes and all dtypes.
#include "accel/bench_device.h"
#include "accel/oracle.h"
#include <support/catch.h>
#include <zero/core/error.h>

#include <cstring>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

const DType kFloating[] = {DType::kF32, DType::kF16, DType::kBF16};
const std::int64_t kSizes[] = {1, 3, 17, 63, 64, 65, 1000};

std::size_t count(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// The values that a tensor of `dtype` really holds.
struct Input {
  Input(BenchDevice& bench, DType dtype, const Shape& shape, std::uint64_t seed, float scale = 1.0F)
      : values(rounded(dtype, numbers(count(shape.elems()), seed, scale))),
        view(bench.tensor(dtype, shape, values)),
        exact(oracle::wide(values)) {}
  std::vector<float> values;
  TensorView view;
  oracle::Values exact;
};

template <class F>
oracle::Values each(const oracle::Values& a, F f) {
  oracle::Values out;
  for (const double x : a) {
    out.push_back(f(x));
  }
  return out;
}

}  // namespace

TEST_CASE("kernels: gemm in every layout, with bias and accumulation", "[accel][gemm]") {
  BenchDevice bench;
  const std::int64_t sizes[][3] = {
      {1, 1, 1}, {3, 5, 7}, {17, 64, 33}, {64, 65, 63}, {130, 1, 200}, {5, 300, 2}};
  for (const DType dtype : kFloating) {
    for (const auto& [m, n, k] : sizes) {
      for (const int flags : {0, 1, 2, 3, 4, 8, 7, 12, 15}) {
        const bool ta = (flags & 1) != 0;
        const bool tb = (flags & 2) != 0;
        const bool accumulate = (flags & 4) != 0;
        const Input a(bench, dtype, ta ? Shape{k, m} : Shape{m, k}, 1);
        const Input b(bench, dtype, tb ? Shape{n, k} : Shape{k, n}, 2);
        const Input c(bench, dtype, Shape{m, n}, 3);
        const Input bias(bench, dtype, Shape{n}, 4);
        const bool with_bias = (flags & 8) != 0;
        oracle::Values expected =
            oracle::gemm(a.exact, b.exact, count(m), count(n), count(k), ta, tb);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] +=
              (accumulate ? c.exact[i] : 0.0) + (with_bias ? bias.exact[i % count(n)] : 0.0);
        }
        accel::Gemm gemm{a.view, b.view, c.view, ta, tb, accumulate};
        gemm.bias = with_bias ? ConstTensorView(bias.view) : ConstTensorView{};
        bench.kernels().gemm(gemm, *bench.stream);
        INFO(dtype_name(dtype) << " " << m << "x" << n << "x" << k << " flags " << flags);
        CHECK(worst(bench.read(c.view), expected) < tolerance(dtype) * 4);
      }
    }
  }
}

TEST_CASE("kernels: a 16-bit gemm larger than its panels equals the scalar loop", "[accel][gemm]") {
  BenchDevice bench;
  const std::int64_t m = 150;
  const std::int64_t n = 140;
  const std::int64_t k = 9000;
  const Input a(bench, DType::kBF16, Shape{m, k}, 1, 0.1F);
  const Input b(bench, DType::kBF16, Shape{n, k}, 2, 0.1F);
  const TensorView c = bench.raw(DType::kBF16, Shape{m, n});
  bench.kernels().gemm({a.view, b.view, c, false, true, false}, *bench.stream);
  CHECK(worst(bench.read(c),
              oracle::gemm(a.exact, b.exact, count(m), count(n), count(k), false, true)) < 5e-3);
}

TEST_CASE("kernels: a gemm without terms gives the bias, or keeps what it adds to",
          "[accel][gemm]") {
  BenchDevice bench;
  const TensorView a = bench.raw(DType::kF32, Shape{2, 0});
  const TensorView b = bench.raw(DType::kF32, Shape{0, 3});
  const TensorView c = bench.tensor(DType::kF32, Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  const TensorView bias = bench.tensor(DType::kF32, Shape{3}, {10, 20, 30});
  bench.kernels().gemm({a, b, c, false, false, true, bias}, *bench.stream);
  CHECK(bench.read(c) == std::vector<float>{11, 22, 33, 14, 25, 36});
  bench.kernels().gemm({a, b, c, false, false, false}, *bench.stream);
  CHECK(bench.read(c) == std::vector<float>(6, 0.0F));
}

TEST_CASE("kernels: shapes that do not fit are refused where the call is made", "[accel]") {
  BenchDevice bench;
  const TensorView a = bench.raw(DType::kF32, Shape{2, 3});
  CHECK_THROWS_AS(bench.kernels().gemm({a, a, a}, *bench.stream), InternalError);
  CHECK_THROWS_AS(bench.kernels().add(a, a.slice(0, 5), a, *bench.stream), InternalError);
}

TEST_CASE("kernels: element-wise operations equal their scalar loops", "[accel]") {
  BenchDevice bench;
  const accel::Kernels& kernels = bench.kernels();
  for (const DType dtype : kFloating) {
    for (const std::int64_t n : kSizes) {
      INFO(dtype_name(dtype) << " " << n);
      const Input x(bench, dtype, Shape{n}, 1, 4.0F);
      const Input y(bench, dtype, Shape{n}, 2, 4.0F);
      const TensorView out = bench.raw(dtype, Shape{n});
      oracle::Values expected = x.exact;
      kernels.add(x.view, y.view, out, *bench.stream);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += y.exact[i];
      }
      CHECK(worst(bench.read(out), expected) < tolerance(dtype));
      kernels.scale(x.view, -0.3F, out, *bench.stream);
      CHECK(worst(bench.read(out), each(x.exact, [](double v) { return -0.3 * v; })) <
            tolerance(dtype));
      kernels.relu_forward(x.view, out, *bench.stream);
      CHECK(worst(bench.read(out), each(x.exact, [](double v) { return std::max(v, 0.0); })) ==
            0.0);
      kernels.gelu_forward(x.view, out, *bench.stream);
      CHECK(worst(bench.read(out), each(x.exact, oracle::gelu)) < tolerance(dtype));
      const Input sum(bench, DType::kF32, Shape{n}, 3);
      kernels.accumulate(x.view, sum.view, false, *bench.stream);
      expected = sum.exact;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] += x.exact[i];
      }
      CHECK(worst(bench.read(sum.view), expected) < 1e-6);
      kernels.cast(x.view, sum.view, *bench.stream);
      CHECK(bench.read(sum.view) == x.values);
    }
  }
}

TEST_CASE("kernels: gelu keeps its ends: far left 0, far right x, NaN stays", "[accel]") {
  BenchDevice bench;
  const TensorView x = bench.tensor(DType::kF32, Shape{5}, {-1e4F, -20.0F, 20.0F, 1e4F, NAN});
  bench.kernels().gelu_forward(x, x, *bench.stream);
  const std::vector<float> y = bench.read(x);
  CHECK(y[0] == 0.0F);
  CHECK(y[1] == 0.0F);
  CHECK(y[2] == 20.0F);
  CHECK(y[3] == 1e4F);
  CHECK(std::isnan(y[4]));
}

TEST_CASE("kernels: layer normalisation and column sums equal their scalar loops", "[accel]") {
  BenchDevice bench;
  for (const DType dtype : kFloating) {
    for (const std::int64_t n : kSizes) {
      INFO(dtype_name(dtype) << " " << n);
      const std::int64_t rows = 5;
      const Input x(bench, dtype, Shape{rows, n}, 1, 3.0F);
      const Input weight(bench, dtype, Shape{n}, 2);
      const Input bias(bench, dtype, Shape{n}, 3);
      const TensorView y = bench.raw(dtype, Shape{rows, n});
      const TensorView mean = bench.raw(DType::kF32, Shape{rows});
      const TensorView rstd = bench.raw(DType::kF32, Shape{rows});
      bench.kernels().layernorm_forward(
          x.view, weight.view, bias.view, 1e-5F, y, mean, rstd, *bench.stream);
      CHECK(worst(bench.read(y), oracle::layernorm(x.exact, weight.exact, bias.exact, 1e-5)) <
            2 * tolerance(dtype));
      const Input sums(bench, dtype, Shape{n}, 4);
      oracle::Values expected = sums.exact;
      for (std::size_t i = 0; i < x.exact.size(); ++i) {
        expected[i % count(n)] += x.exact[i];
      }
      bench.kernels().column_sum(x.view, sums.view, true, *bench.stream);
      CHECK(worst(bench.read(sums.view), expected) < tolerance(dtype));
    }
  }
}

TEST_CASE("kernels: embeddings gather rows and scatter their gradients", "[accel]") {
  BenchDevice bench;
  const Shape grid{2, 3};
  const TensorView tokens = bench.tensor(grid, {4, 0, 4, 1, 4, 0});
  for (const DType dtype : kFloating) {
    const Input table(bench, dtype, Shape{6, 17}, 1);
    const Input positions(bench, dtype, Shape{5, 17}, 2);
    const TensorView out = bench.raw(dtype, Shape{2, 3, 17});
    bench.kernels().embedding_forward(tokens, table.view, positions.view, out, *bench.stream);
    const std::int32_t ids[] = {4, 0, 4, 1, 4, 0};
    oracle::Values expected;
    oracle::Values dtable(6 * 17, 0.0);
    oracle::Values dpositions = positions.exact;
    const Input dout(bench, dtype, Shape{2, 3, 17}, 3);
    for (std::size_t i = 0; i < 6; ++i) {
      for (std::size_t c = 0; c < 17; ++c) {
        expected.push_back(table.exact[count(ids[i]) * 17 + c] + positions.exact[i % 3 * 17 + c]);
        dtable[count(ids[i]) * 17 + c] += dout.exact[i * 17 + c];
        dpositions[i % 3 * 17 + c] += dout.exact[i * 17 + c];
      }
    }
    CHECK(worst(bench.read(out), expected) < tolerance(dtype));
    bench.kernels().embedding_backward(
        tokens, dout.view, table.view, false, positions.view, true, *bench.stream);
    CHECK(worst(bench.read(table.view), dtable) < tolerance(dtype));
    CHECK(worst(bench.read(positions.view), dpositions) < tolerance(dtype));
  }
  const TensorView wrong = bench.tensor(grid, {4, 0, 6, 1, 4, 0});
  const TensorView table = bench.raw(DType::kF32, Shape{6, 17});
  bench.kernels().embedding_forward(
      wrong, table, {}, bench.raw(DType::kF32, Shape{2, 3, 17}), *bench.stream);
  CHECK_THROWS_WITH(bench.stream->synchronize(), Catch::Contains("token 6 at element 2"));
}

TEST_CASE("kernels: attention equals the full masked softmax", "[accel]") {
  BenchDevice bench;
  const std::int64_t shapes[][4] = {{1, 1, 1, 16},
                                    {2, 17, 3, 48},
                                    {1, 64, 2, 128},
                                    {1, 65, 1, 40},
                                    {2, 100, 4, 64},
                                    {1, 300, 1, 128}};
  for (const DType dtype : kFloating) {
    for (const auto& [batch, tokens, heads, width] : shapes) {
      INFO(dtype_name(dtype) << " T " << tokens << " heads " << heads);
      const Input qkv(bench, dtype, Shape{batch, tokens, 3 * width}, 1, 2.0F);
      const TensorView out = bench.raw(dtype, Shape{batch, tokens, width});
      const TensorView lse = bench.raw(DType::kF32, Shape{batch, heads, tokens});
      bench.kernels().attention_forward(
          {batch, tokens, heads, width}, qkv.view, out, lse, *bench.stream);
      CHECK(worst(bench.read(out),
                  oracle::attention(
                      qkv.exact, count(batch), count(tokens), count(heads), count(width))) <
            tolerance(dtype));
    }
  }
}

TEST_CASE("kernels: cross entropy, mean and argmax equal their scalar loops", "[accel]") {
  BenchDevice bench;
  for (const DType dtype : kFloating) {
    for (const std::int64_t n : {2, 17, 64, 1000}) {
      const Input logits(bench, dtype, Shape{4, n}, 1, 8.0F);
      const std::vector<std::int32_t> targets = {0, -1, 1, static_cast<std::int32_t>(n) - 1};
      const TensorView ids = bench.tensor(Shape{4}, targets);
      const TensorView losses = bench.raw(DType::kF32, Shape{4});
      const TensorView mean = bench.raw(DType::kF32, Shape{1});
      const TensorView best = bench.raw(DType::kI32, Shape{4});
      bench.kernels().cross_entropy_forward(logits.view, ids, losses, *bench.stream);
      bench.kernels().mean(losses, 3.0, mean, *bench.stream);
      bench.kernels().argmax(logits.view, best, *bench.stream);
      const oracle::Values expected = oracle::cross_entropy(logits.exact, targets);
      CHECK(worst(bench.read(losses), expected) < 4e-6);
      CHECK(worst(bench.read(mean), {(expected[0] + expected[2] + expected[3]) / 3.0}) < 4e-6);
      const auto row = logits.values.begin();
      CHECK(bench.read_as<std::int32_t>(best)[0] == std::max_element(row, row + n) - row);
    }
  }
  const TensorView wrong = bench.tensor(Shape{1}, {5});
  bench.kernels().cross_entropy_forward(
      bench.raw(DType::kF32, Shape{1, 5}), wrong, bench.raw(DType::kF32, Shape{1}), *bench.stream);
  CHECK_THROWS_WITH(bench.stream->synchronize(), Catch::Contains("target 5 in row 0"));
}

TEST_CASE("kernels: dropout drops its share and keeps the mean, by sample and place alone",
          "[accel][dropout]") {
  constexpr std::int64_t kRows = 6;
  constexpr std::int64_t kElems = 40'000;
  const std::vector<float> ones(kRows * kElems, 1.0F);
  const auto drop = [&](const accel::Dropout& dropout, std::int64_t rows, int threads) {
    BenchDevice bench(threads);
    const TensorView x =
        bench.tensor(DType::kF32, Shape{kRows, kElems}, ones).slice(0, rows * kElems);
    bench.kernels().dropout(x, dropout, rows, x, *bench.stream);
    return bench.read(x);
  };
  for (const float rate : {0.1F, 0.5F, 0.9F}) {
    const std::vector<float> all = drop({rate, 7, 100}, kRows, 1);
    std::int64_t dropped = 0;
    for (const float value : all) {
      dropped += value == 0.0F ? 1 : 0;
      REQUIRE((value == 0.0F || value == 1.0F / (1.0F - rate)));
    }
    const double deviation = std::sqrt(rate * (1.0 - rate) / static_cast<double>(all.size()));
    CHECK(std::abs(static_cast<double>(dropped) / static_cast<double>(all.size()) - rate) <
          5.0 * deviation);
    // Rows 2 to 5 are samples 102 to 105, in a batch of their own and on other threads too.
    const std::vector<float> later = drop({rate, 7, 102}, 4, 3);
    CHECK(std::equal(later.begin(), later.end(), all.begin() + 2 * kElems));
    // Another place, another sample: another mask, which agrees no more often than by chance.
    for (const accel::Dropout& other :
         {accel::Dropout{rate, 8, 100}, accel::Dropout{rate, 7, 106}}) {
      const std::vector<float> mask = drop(other, kRows, 1);
      std::int64_t both = 0;
      for (std::size_t i = 0; i < mask.size(); ++i) {
        both += mask[i] == 0.0F && all[i] == 0.0F ? 1 : 0;
      }
      CHECK(static_cast<double>(both) / static_cast<double>(mask.size()) ==
            Approx(rate * rate).margin(0.01));
    }
  }
}

TEST_CASE("kernels: attention with dropout drops probabilities after the softmax",
          "[accel][dropout]") {
  BenchDevice bench;
  constexpr std::int64_t kB = 2, kT = 45, kH = 3, kC = 24;
  const Input qkv(bench, DType::kF32, Shape{kB, kT, 3 * kC}, 1);
  const TensorView out = bench.raw(DType::kF32, Shape{kB, kT, kC});
  const TensorView lse = bench.raw(DType::kF32, Shape{kB, kH, kT});
  const accel::Dropout dropout{0.4F, 99, 5};
  bench.kernels().attention_forward({kB, kT, kH, kC, dropout}, qkv.view, out, lse, *bench.stream);
  // The mask itself, from the public kernel: each head is a row.
  const std::vector<float> ones(kB * kH * kT * kT, 1.0F);
  const TensorView mask = bench.tensor(DType::kF32, Shape{kB * kH, kT * kT}, ones);
  bench.kernels().dropout(mask, {0.4F, 99, 5 * kH}, kB * kH, mask, *bench.stream);
  const std::vector<float> factors = bench.read(mask);
  const oracle::Values expected = oracle::attention(
      qkv.exact, kB, kT, kH, kC, [&](std::size_t head, std::size_t i, std::size_t j) {
        return factors[head * kT * kT + i * kT + j];
      });
  CHECK(worst(bench.read(out), expected) < 1e-5);
}
