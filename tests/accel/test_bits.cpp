// The same bits on any number of threads, at any place of a tensor, and in any company.
#include "accel/bench_device.h"
#include "engine/accel/cpu/loops.h"
#include <support/catch.h>

#include <cmath>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

using Results = std::vector<std::vector<float>>;

TensorView random(BenchDevice& bench, DType dtype, const Shape& shape, std::uint64_t seed) {
  return bench.tensor(dtype, shape, numbers(static_cast<std::size_t>(shape.elems()), seed, 3.0F));
}

/// Every element-wise kernel over more elements than a thread takes at a time.
void element_wise(BenchDevice& bench, DType dtype, Results& results) {
  const accel::Kernels& k = bench.kernels();
  accel::Stream& stream = *bench.stream;
  const Shape shape{40'001};
  const TensorView x = random(bench, dtype, shape, 1);
  const TensorView y = random(bench, dtype, shape, 2);
  const TensorView out = bench.raw(dtype, shape);
  const TensorView sum = random(bench, DType::kF32, shape, 3);
  const auto keep = [&] { results.push_back(bench.read(out)); };
  k.add(x, y, out, stream);
  keep();
  k.scale(x, 0.7F, out, stream);
  keep();
  k.relu_forward(x, out, stream);
  keep();
  k.relu_backward(x, y, out, stream);
  keep();
  k.gelu_forward(x, out, stream);
  keep();
  k.gelu_backward(x, y, out, stream);
  keep();
  k.accumulate(x, sum, false, stream);
  k.cast(sum, out, stream);
  keep();
}

/// Every kernel over rows.
void row_wise(BenchDevice& bench, DType dtype, Results& results) {
  const accel::Kernels& k = bench.kernels();
  accel::Stream& stream = *bench.stream;
  const std::int64_t rows = 37;
  const std::int64_t n = 611;
  const TensorView x = random(bench, dtype, Shape{rows, n}, 1);
  const TensorView dy = random(bench, dtype, Shape{rows, n}, 2);
  const TensorView w = random(bench, dtype, Shape{n}, 3);
  const TensorView y = bench.raw(dtype, Shape{rows, n});
  const TensorView dw = bench.raw(dtype, Shape{n});
  const TensorView db = bench.raw(dtype, Shape{n});
  const TensorView mean = bench.raw(DType::kF32, Shape{rows});
  const TensorView rstd = bench.raw(DType::kF32, Shape{rows});
  const auto keep = [&](std::initializer_list<TensorView> views) {
    for (const TensorView& view : views) {
      results.push_back(bench.read(view));
    }
  };
  k.layernorm_forward(x, w, w, 1e-5F, y, mean, rstd, stream);
  keep({y, mean, rstd});
  k.layernorm_backward({dy, x, w, mean, rstd, y, dw, db, false, false}, stream);
  keep({y, dw, db});
  k.column_sum(x, dw, false, stream);
  keep({dw});
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 31 % 11) - 1;
  }
  const TensorView targets = bench.tensor(Shape{rows}, ids);
  k.cross_entropy_forward(x, targets, mean, stream);
  k.cross_entropy_backward({2.0F, rows}, targets, x, stream);
  keep({mean, x});
  for (std::int32_t& id : ids) {
    id = id + 1;
  }
  const TensorView tokens = bench.tensor(Shape{1, rows}, ids);
  const TensorView table = random(bench, dtype, Shape{600, n}, 4);
  const TensorView positions = random(bench, dtype, Shape{40, n}, 5);
  k.embedding_forward(tokens, table, positions, y, stream);
  keep({y});
  k.embedding_backward(
      tokens, dy.reshape(Shape{1, rows, n}), table, true, positions, false, stream);
  keep({table, positions});
}

void attention(BenchDevice& bench, DType dtype, Results& results) {
  const accel::Attention shape{2, 50, 4, 96};
  const TensorView qkv = random(bench, dtype, Shape{2, 50, 288}, 1);
  const TensorView dout = random(bench, dtype, Shape{2, 50, 96}, 2);
  const TensorView out = bench.raw(dtype, Shape{2, 50, 96});
  const TensorView lse = bench.raw(DType::kF32, Shape{2, 4, 50});
  const TensorView delta = bench.raw(DType::kF32, Shape{2, 4, 50});
  const TensorView dqkv = bench.raw(dtype, Shape{2, 50, 288});
  bench.kernels().attention_forward(shape, qkv, out, lse, *bench.stream);
  bench.kernels().attention_backward(shape, qkv, out, lse, dout, delta, dqkv, *bench.stream);
  for (const TensorView& view : {out, lse, dqkv}) {
    results.push_back(bench.read(view));
  }
}

void updates(BenchDevice& bench, DType dtype, Results& results) {
  const Shape shape{40'001};
  const TensorView p = random(bench, DType::kF32, shape, 1);
  const TensorView m = random(bench, DType::kF32, shape, 2);
  const TensorView v = bench.tensor(DType::kF32, shape, std::vector<float>(40'001, 0.5F));
  const TensorView grad = random(bench, dtype, shape, 3);
  const accel::StepScalars values{.gradient_factor = 0.9F};
  const Shape size{static_cast<std::int64_t>(sizeof(values))};
  const TensorView scalars = bench.raw(DType::kU8, size);
  bench.device->copy(
      {reinterpret_cast<const std::byte*>(&values), DType::kU8, size}, scalars, *bench.stream);
  accel::AdamArgs adam{p, m, v, grad, {}};
  adam.lr = 0.01;
  adam.weight_decay = 0.1;
  adam.t = 7;
  bench.kernels().adam(adam, scalars, *bench.stream);
  accel::SgdArgs sgd{p, m, grad, {}};
  sgd.lr = 0.01;
  sgd.momentum = 0.9;
  sgd.nesterov = true;
  sgd.t = 2;
  bench.kernels().sgd(sgd, scalars, *bench.stream);
  for (const TensorView& view : {p, m, v}) {
    results.push_back(bench.read(view));
  }
}

Results everything(int threads, DType dtype) {
  BenchDevice bench(threads);
  Results results;
  element_wise(bench, dtype, results);
  row_wise(bench, dtype, results);
  attention(bench, dtype, results);
  updates(bench, dtype, results);
  return results;
}

}  // namespace

TEST_CASE("bits: two and three threads give those of one, in every kernel but gemm",
          "[accel][bits]") {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Results one = everything(1, dtype);
    CHECK(one == everything(2, dtype));
    CHECK(one == everything(3, dtype));
  }
}

TEST_CASE("bits: a tail gives those of a body", "[accel][bits]") {
  BenchDevice bench;
  const std::int64_t n = 200;
  const std::vector<float> values = numbers(200, 9, 5.0F);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TensorView x = bench.tensor(dtype, Shape{n}, values);
    const TensorView whole = bench.raw(dtype, Shape{n});
    const TensorView part = bench.raw(dtype, Shape{n});
    const auto compare = [&](auto kernel) {
      kernel(x, whole);
      const std::vector<float> expected = bench.read(whole);
      for (std::int64_t begin = 0; begin < n; begin += 23) {
        const std::int64_t count = std::min<std::int64_t>(23, n - begin);
        kernel(x.slice(begin, count), part.slice(begin, count));
      }
      CHECK(bench.read(part) == expected);
    };
    compare([&](TensorView in, TensorView out) {
      bench.kernels().gelu_forward(in, out, *bench.stream);
    });
    compare([&](TensorView in, TensorView out) {
      bench.kernels().gelu_backward(in, in, out, *bench.stream);
    });
    compare([&](TensorView in, TensorView out) {
      bench.kernels().scale(in, 0.3F, out, *bench.stream);
    });
  }
}

TEST_CASE("bits: attention of a token depends on the tokens up to it alone", "[accel][bits]") {
  const std::int64_t width = 40;
  const auto run = [&](std::int64_t tokens, float later) {
    BenchDevice bench;
    std::vector<float> values = numbers(70 * 3 * 40, 3);
    for (std::size_t i = 33 * 3 * 40; i < values.size(); ++i) {
      values[i] *= later;
    }
    values.resize(static_cast<std::size_t>(tokens * 3 * width));
    const TensorView qkv = bench.tensor(DType::kF32, Shape{1, tokens, 3 * width}, values);
    const TensorView out = bench.raw(DType::kF32, Shape{1, tokens, width});
    const TensorView lse = bench.raw(DType::kF32, Shape{1, 2, tokens});
    bench.kernels().attention_forward({1, tokens, 2, width}, qkv, out, lse, *bench.stream);
    std::vector<float> result = bench.read(out);
    result.resize(33 * 40);
    return result;
  };
  const std::vector<float> alone = run(33, 1.0F);
  CHECK(alone == run(70, 1.0F));
  CHECK(alone == run(70, 1000.0F));
}

TEST_CASE("bits: a product gives the same every time", "[accel][bits][gemm]") {
  const auto run = [](int threads) {
    BenchDevice bench(threads);
    const TensorView a = random(bench, DType::kF32, Shape{97, 301}, 1);
    const TensorView b = random(bench, DType::kF32, Shape{301, 205}, 2);
    const TensorView c = bench.raw(DType::kF32, Shape{97, 205});
    bench.kernels().gemm({a, b, c}, *bench.stream);
    return bench.read(c);
  };
  CHECK(run(1) == run(1));
  CHECK(run(2) == run(2));
}

TEST_CASE("exponential: within 2 ulp from its least to its largest result, exact at the ends",
          "[accel]") {
  double worst_ulp = 0;
  for (int i = 0; i <= 1'000'000; ++i) {
    const float x = -87.0F + 175.0F * static_cast<float>(i) * 1e-6F;
    const double exact = std::exp(static_cast<double>(x));
    const auto near = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(near, INFINITY)) - near;
    worst_ulp = std::max(worst_ulp, std::abs(accel::vector_exp(x) - exact) / ulp);
  }
  CHECK(worst_ulp < 2.0);
  CHECK(accel::vector_exp(0.0F) == 1.0F);
  CHECK(accel::vector_exp(-0.0F) == 1.0F);
  CHECK(accel::vector_exp(-105.0F) == 0.0F);
  CHECK(accel::vector_exp(-INFINITY) == 0.0F);
  CHECK(accel::vector_exp(90.0F) == INFINITY);
  CHECK(accel::vector_exp(INFINITY) == INFINITY);
  CHECK(std::isnan(accel::vector_exp(NAN)));
  CHECK(accel::vector_exp(-100.0F) == Approx(std::exp(-100.0)).epsilon(0.05));  // subnormal
}
