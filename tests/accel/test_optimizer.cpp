// Kernels of the optimizer step: exact norm, step scalars and updates.
#include "accel/bench_device.h"
#include "accel/oracle.h"
#include <support/catch.h>

#include <algorithm>
#include <random>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

constexpr std::int64_t kRow = accel::kNormLimbs + 1;

TensorView zeros(BenchDevice& bench, DType dtype, const Shape& shape) {
  const TensorView view = bench.raw(dtype, shape);
  bench.device->zero(view, *bench.stream);
  return view;
}

TensorView make_scalars(BenchDevice& bench, const accel::StepScalars& values) {
  const Shape shape{static_cast<std::int64_t>(sizeof(values))};
  const TensorView view = bench.raw(DType::kU8, shape);
  bench.device->copy(
      {reinterpret_cast<const std::byte*>(&values), DType::kU8, shape}, view, *bench.stream);
  bench.stream->synchronize();
  return view;
}

accel::StepScalars decide(BenchDevice& bench,
                          TensorView limbs,
                          const accel::Kernels::StepDecision& decision) {
  const TensorView view = make_scalars(bench, {});
  bench.kernels().step_scalars(decision, limbs, view, *bench.stream);
  accel::StepScalars out;
  bench.device->copy(
      view, {reinterpret_cast<std::byte*>(&out), DType::kU8, view.shape}, *bench.stream);
  bench.stream->synchronize();
  return out;
}

}  // namespace

TEST_CASE("norm: 1,000 random cuttings of a gradient over ranks give the same bits",
          "[accel][norm]") {
  BenchDevice bench;
  constexpr std::int64_t kBlocks = 50;
  const std::vector<float> values = numbers(kBlocks * 64, 5, 100.0F);
  const TensorView x = bench.tensor(DType::kF32, Shape{kBlocks * 64}, values);
  const auto norm_of = [&](const std::vector<std::int64_t>& cuts) {
    const TensorView limbs = zeros(bench, DType::kI64, Shape{2, kRow});
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      bench.kernels().sum_of_squares(
          x.slice(cuts[i] * 64, (cuts[i + 1] - cuts[i]) * 64), limbs.slice(0, kRow), *bench.stream);
    }
    return decide(bench, limbs, {}).grad_norm;
  };
  const double reference = norm_of({0, kBlocks});
  double squares = 0;
  for (const float value : values) {
    squares += static_cast<double>(value) * value;
  }
  CHECK(reference == Approx(std::sqrt(squares)).epsilon(1e-12));
  std::mt19937_64 random(11);
  for (int cutting = 0; cutting < 1000; ++cutting) {
    std::vector<std::int64_t> cuts = {0, kBlocks};
    for (int i = 0; i < 4; ++i) {
      cuts.push_back(static_cast<std::int64_t>(random() % (kBlocks + 1)));
    }
    std::sort(cuts.begin(), cuts.end());
    REQUIRE(norm_of(cuts) == reference);
  }
}

TEST_CASE("step scalars: clip and unscale are one factor, as PyTorch clips", "[accel]") {
  BenchDevice bench;
  std::vector<float> values(64, 0.0F);
  values[3] = 3.0F * 8.0F;
  values[7] = 4.0F * 8.0F;  // norm 5 at loss scale 8
  const TensorView x = bench.tensor(DType::kF32, Shape{64}, values);
  const TensorView loss = bench.tensor(DType::kF32, Shape{1}, {2.5F});
  const TensorView limbs = zeros(bench, DType::kI64, Shape{2, kRow});
  bench.kernels().sum_of_squares(x, limbs.slice(0, kRow), *bench.stream);
  bench.kernels().sum_exactly(loss, limbs.slice(kRow, kRow), *bench.stream);
  bench.kernels().sum_exactly(loss, limbs.slice(kRow, kRow), *bench.stream);
  const accel::StepScalars clipped =
      decide(bench, limbs, {.loss_scale = 8.0, .clip = 1.0, .loss_divisor = 2.0});
  CHECK(clipped.grad_norm == 5.0);
  CHECK(clipped.loss == 2.5);
  CHECK(clipped.skip == 0);
  CHECK(clipped.gradient_factor == static_cast<float>(1.0 / (5.0 + 1e-6) / 8.0));
  CHECK(decide(bench, limbs, {.loss_scale = 8.0, .clip = 0.0}).gradient_factor == 0.125F);
  CHECK(decide(bench, limbs, {.loss_scale = 8.0, .clip = 6.0}).gradient_factor == 0.125F);
}

TEST_CASE("step scalars: one number that is not finite skips the step", "[accel]") {
  BenchDevice bench;
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> values(128, 1.0F);
    values[77] = bad;
    const TensorView x = bench.tensor(DType::kF32, Shape{128}, values);
    const TensorView limbs = zeros(bench, DType::kI64, Shape{2, kRow});
    bench.kernels().sum_of_squares(x, limbs.slice(0, kRow), *bench.stream);
    const accel::StepScalars scalars = decide(bench, limbs, {.clip = 1.0});
    CHECK(scalars.skip == 1);
    CHECK(std::isnan(scalars.grad_norm));
    CHECK(decide(bench, limbs, {.check_overflow = false}).skip == 0);
  }
}

TEST_CASE("adam: ten steps equal the published formula in fp64", "[accel][optimizer]") {
  for (const bool decoupled : {true, false}) {
    BenchDevice bench;
    constexpr std::int64_t kN = 200;
    const std::vector<float> start = numbers(kN, 1);
    const TensorView p = bench.tensor(DType::kF32, Shape{kN}, start);
    const TensorView m = zeros(bench, DType::kF32, Shape{kN});
    const TensorView v = zeros(bench, DType::kF32, Shape{kN});
    const TensorView copy = bench.raw(DType::kBF16, Shape{kN});
    const TensorView scalars = make_scalars(bench, {.gradient_factor = 0.5F});
    oracle::Values ep = oracle::wide(start);
    oracle::Values em(kN);
    oracle::Values ev(kN);
    for (int t = 1; t <= 10; ++t) {
      const std::vector<float> grad = numbers(kN, 100 + static_cast<std::uint64_t>(t), 2.0F);
      accel::AdamArgs args{p, m, v, bench.tensor(DType::kF32, Shape{kN}, grad), copy};
      args.lr = 0.01;
      args.weight_decay = 0.1;
      args.decoupled = decoupled;
      args.t = t;
      bench.kernels().adam(args, scalars, *bench.stream);
      for (std::size_t i = 0; i < ep.size(); ++i) {
        const double g = 0.5 * grad[i] + (decoupled ? 0.0 : 0.1 * ep[i]);
        em[i] = 0.9 * em[i] + 0.1 * g;
        ev[i] = 0.999 * ev[i] + 0.001 * g * g;
        const double denominator = std::sqrt(ev[i] / (1 - std::pow(0.999, t))) + 1e-8;
        ep[i] -= decoupled ? 0.01 * 0.1 * ep[i] : 0.0;
        ep[i] -= 0.01 * (em[i] / (1 - std::pow(0.9, t))) / denominator;
      }
    }
    CHECK(worst(bench.read(p), ep) < 2e-6);
    CHECK(bench.read(copy) == rounded(DType::kBF16, bench.read(p)));
    const std::vector<float> before = bench.read(p);
    accel::AdamArgs args{p, m, v, bench.tensor(DType::kF32, Shape{kN}, numbers(kN, 7)), {}};
    args.lr = 1.0;
    bench.kernels().adam(args, make_scalars(bench, {.skip = 1}), *bench.stream);
    CHECK(bench.read(p) == before);
  }
}

TEST_CASE("sgd: momentum, dampening, Nesterov and decay as torch.optim.SGD defines them",
          "[accel][optimizer]") {
  struct Case {
    double momentum, dampening;
    bool nesterov;
  };
  for (const Case& c :
       {Case{0, 0, false}, Case{0.9, 0, false}, Case{0.9, 0.3, false}, Case{0.9, 0, true}}) {
    BenchDevice bench;
    constexpr std::int64_t kN = 65;
    const std::vector<float> start = numbers(kN, 1);
    const TensorView p = bench.tensor(DType::kF32, Shape{kN}, start);
    const TensorView buffer = c.momentum != 0 ? zeros(bench, DType::kF32, Shape{kN}) : TensorView{};
    const TensorView scalars = make_scalars(bench, {});
    oracle::Values ep = oracle::wide(start);
    oracle::Values eb(kN);
    for (int t = 1; t <= 5; ++t) {
      const std::vector<float> grad = numbers(kN, 100 + static_cast<std::uint64_t>(t));
      accel::SgdArgs args{p, buffer, bench.tensor(DType::kF32, Shape{kN}, grad), {}};
      args.lr = 0.1;
      args.momentum = c.momentum;
      args.dampening = c.dampening;
      args.nesterov = c.nesterov;
      args.weight_decay = 0.05;
      args.t = t;
      bench.kernels().sgd(args, scalars, *bench.stream);
      for (std::size_t i = 0; i < ep.size(); ++i) {
        const double g = grad[i] + 0.05 * ep[i];
        eb[i] = t == 1 ? g : c.momentum * eb[i] + (1 - c.dampening) * g;
        ep[i] -= 0.1 * (c.momentum == 0 ? g : c.nesterov ? g + c.momentum * eb[i] : eb[i]);
      }
    }
    CHECK(worst(bench.read(p), ep) < 2e-6);
  }
}

TEST_CASE(
    "optimizers: 16-bit gradients give the bits of the same numbers in fp32, and a rounded copy",
    "[accel][optimizer]") {
  constexpr std::int64_t kN = 1000;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const bool adam : {true, false}) {
      std::vector<std::vector<float>> results;
      for (const DType gradient : {dtype, DType::kF32}) {
        BenchDevice bench;
        const TensorView p = bench.tensor(DType::kF32, Shape{kN}, numbers(kN, 1));
        const TensorView m = zeros(bench, DType::kF32, Shape{kN});
        const TensorView v = zeros(bench, DType::kF32, Shape{kN});
        const TensorView copy = bench.raw(dtype, Shape{kN});
        const TensorView scalars = make_scalars(bench, {.gradient_factor = 0.3F});
        for (int t = 1; t <= 3; ++t) {
          const TensorView grad = bench.tensor(
              gradient, Shape{kN}, rounded(dtype, numbers(kN, 10 + static_cast<std::uint64_t>(t))));
          if (adam) {
            accel::AdamArgs args{p, m, v, grad, copy};
            args.lr = 0.01;
            args.t = t;
            bench.kernels().adam(args, scalars, *bench.stream);
          } else {
            accel::SgdArgs args{p, m, grad, copy};
            args.lr = 0.01;
            args.momentum = 0.9;
            args.t = t;
            bench.kernels().sgd(args, scalars, *bench.stream);
          }
        }
        results.push_back(bench.read(p));
        CHECK(bench.read(copy) == rounded(dtype, results.back()));
      }
      CHECK(results[0] == results[1]);
    }
  }
}

TEST_CASE("adam: without bias correction the first step is what the plain formula says",
          "[accel][optimizer]") {
  BenchDevice bench;
  const TensorView p = bench.tensor(DType::kF32, Shape{1}, {1.0F});
  const TensorView m = zeros(bench, DType::kF32, Shape{1});
  const TensorView v = zeros(bench, DType::kF32, Shape{1});
  accel::AdamArgs args{p, m, v, bench.tensor(DType::kF32, Shape{1}, {2.0F}), {}};
  args.lr = 0.1;
  args.bias_correction = false;
  bench.kernels().adam(args, make_scalars(bench, {}), *bench.stream);
  CHECK(bench.read(p)[0] == Approx(1.0 - 0.1 * 0.2 / (std::sqrt(0.004) + 1e-8)).epsilon(1e-6));
  CHECK(bench.read(m)[0] == Approx(0.2));
  CHECK(bench.read(v)[0] == Approx(0.004));
}

TEST_CASE("sgd: a skipped step changes nothing", "[accel][optimizer]") {
  BenchDevice bench;
  const TensorView p = bench.tensor(DType::kF32, Shape{3}, {1, 2, 3});
  accel::SgdArgs args{p, {}, bench.tensor(DType::kF32, Shape{3}, {1, 1, INFINITY}), {}};
  args.lr = 1.0;
  bench.kernels().sgd(args, make_scalars(bench, {.skip = 1}), *bench.stream);
  CHECK(bench.read(p) == std::vector<float>{1, 2, 3});
}

TEST_CASE("norm: 16-bit gradients sum like the same numbers in fp32, on any number of threads",
          "[accel][norm]") {
  constexpr std::int64_t kN = 64 * 700;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const std::vector<float> values = rounded(dtype, numbers(kN, 3, 50.0F));
    std::vector<double> norms;
    for (const int threads : {1, 2, 3}) {
      for (const DType held : {dtype, DType::kF32}) {
        BenchDevice bench(threads);
        const TensorView limbs = zeros(bench, DType::kI64, Shape{2, kRow});
        bench.kernels().sum_of_squares(
            bench.tensor(held, Shape{kN}, values), limbs.slice(0, kRow), *bench.stream);
        norms.push_back(decide(bench, limbs, {}).grad_norm);
      }
    }
    CHECK(std::all_of(norms.begin(), norms.end(), [&](double n) { return n == norms[0]; }));
  }
}

TEST_CASE("step scalars: a loss that is not finite skips the step and is reported", "[accel]") {
  BenchDevice bench;
  const TensorView limbs = zeros(bench, DType::kI64, Shape{2, kRow});
  const TensorView loss = bench.tensor(DType::kF32, Shape{1}, {INFINITY});
  bench.kernels().sum_exactly(loss, limbs.slice(kRow, kRow), *bench.stream);
  const accel::StepScalars scalars = decide(bench, limbs, {.clip = 1.0});
  CHECK(scalars.skip == 1);
  CHECK(std::isnan(scalars.loss));
  CHECK(scalars.grad_norm == 0.0);
  CHECK(scalars.gradient_factor == 1.0F);
}

TEST_CASE("lion and adagrad: ten steps equal the published formulas in fp64",
          "[accel][optimizer]") {
  constexpr std::int64_t kN = 203;
  for (const bool lion : {true, false}) {
    BenchDevice bench;
    const std::vector<float> start = numbers(kN, 1);
    const TensorView p = bench.tensor(DType::kF32, Shape{kN}, start);
    const TensorView state = zeros(bench, DType::kF32, Shape{kN});
    const TensorView copy = bench.raw(DType::kF16, Shape{kN});
    const TensorView scalars = make_scalars(bench, {.gradient_factor = 0.5F});
    oracle::Values ep = oracle::wide(start);
    oracle::Values es(kN);
    const auto update = [&](const std::vector<float>& grad, TensorView with) {
      const TensorView g = bench.tensor(DType::kF32, Shape{kN}, grad);
      if (lion) {
        bench.kernels().lion({p, state, g, copy, 0.01, 0.9, 0.99, 0.1}, with, *bench.stream);
      } else {
        bench.kernels().adagrad({p, state, g, copy, 0.01, 1e-10, 0.1}, with, *bench.stream);
      }
    };
    for (int t = 1; t <= 10; ++t) {
      const std::vector<float> grad = numbers(kN, 100 + static_cast<std::uint64_t>(t), 2.0F);
      update(grad, scalars);
      for (std::size_t i = 0; i < ep.size(); ++i) {
        const double g = 0.5 * grad[i];
        if (lion) {  // Chen et al. 2023, algorithm 2
          const double direction = 0.9 * es[i] + 0.1 * g;
          ep[i] -= 0.01 * ((direction > 0) - (direction < 0) + 0.1 * ep[i]);
          es[i] = 0.99 * es[i] + 0.01 * g;
        } else {  // Duchi et al. 2011 with the L2 term of torch.optim.Adagrad
          const double decayed = g + 0.1 * ep[i];
          es[i] += decayed * decayed;
          ep[i] -= 0.01 * decayed / (std::sqrt(es[i]) + 1e-10);
        }
      }
    }
    CHECK(worst(bench.read(p), ep) < 2e-6);
    CHECK(worst(bench.read(state), es) < 1e-5);
    CHECK(bench.read(copy) == rounded(DType::kF16, bench.read(p)));
    const std::vector<float> before = bench.read(p);
    update(numbers(kN, 7), make_scalars(bench, {.skip = 1}));
    CHECK(bench.read(p) == before);
  }
}

TEST_CASE("lion: an element without gradient does not move", "[accel][optimizer]") {
  BenchDevice bench;
  const TensorView p = bench.tensor(DType::kF32, Shape{2}, {1.0F, -2.0F});
  const TensorView m = zeros(bench, DType::kF32, Shape{2});
  bench.kernels().lion({p, m, bench.tensor(DType::kF32, Shape{2}, {0.0F, 3.0F}), {}, 0.5},
                       make_scalars(bench, {}),
                       *bench.stream);
  CHECK(bench.read(p) == std::vector<float>{1.0F, -2.5F});
}
