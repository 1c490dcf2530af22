#include <support/catch.h>
#include <zero/core/dtype.h>
#include <zero/core/env.h>
#include <zero/core/error.h>
#include <zero/core/exact_sum.h>
#include <zero/core/ledger.h>
#include <zero/core/module.h>
#include <zero/core/rng.h>
#include <zero/core/unique_handle.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace zero;  // NOLINT(google-build-using-namespace): test file

/// Value of a pattern with `exponent_bits` and `fraction_bits`, by the definition of IEEE 754.
double value_by_definition(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t fraction = bits & ((1U << fraction_bits) - 1);
  const int exponent = static_cast<int>((bits >> fraction_bits) & ((1U << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const double significand = std::ldexp(fraction, -fraction_bits) + (exponent > 0 ? 1.0 : 0.0);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias);
}

/// Every pattern of a 16-bit format widens to its value, comes back, and is what its neighbourhood
/// rounds to.
template <class T>
void check_all_patterns(int exponent_bits, int fraction_bits) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const T pattern{static_cast<std::uint16_t>(bits)};
    const double expected = value_by_definition(bits, exponent_bits, fraction_bits);
    const float wide = to_float(pattern);
    if (std::isnan(expected)) {
      wrong += std::isnan(wide) && std::isnan(to_float(from_float<T>(wide))) ? 0 : 1;
      continue;
    }
    wrong += static_cast<double>(wide) == expected ? 0 : 1;
    wrong += from_float<T>(wide).bits == bits ? 0 : 1;
    if (std::isinf(expected) || (bits & 0x7FFFU) == 0) {
      continue;
    }
    // Half-way to the next larger magnitude goes to the even one; a little less or more to the
    // nearer one.
    const double next = value_by_definition(bits + 1, exponent_bits, fraction_bits);
    if (!std::isfinite(next)) {
      continue;
    }
    const auto half = static_cast<float>((expected + next) / 2);
    const float away = expected < 0 ? -INFINITY : INFINITY;
    wrong += from_float<T>(half).bits == (bits % 2 == 0 ? bits : bits + 1) ? 0 : 1;
    wrong += from_float<T>(std::nextafter(half, 0.0F)).bits == bits ? 0 : 1;
    wrong += from_float<T>(std::nextafter(half, away)).bits == bits + 1 ? 0 : 1;
  }
  CHECK(wrong == 0);
}

int closed = 0;

struct CountedTraits {
  using Value = int;
  static constexpr int kNull = -1;
  static void close(int /*value*/) noexcept { ++closed; }
};

class Tree : public Module {
 public:
  explicit Tree(std::string name) : Module(std::move(name)) {}
  using Module::add_child;
  using Module::add_parameter;
  using Module::share_parameter;
};

}  // namespace

TEST_CASE("dtypes: all 65,536 fp16 patterns widen exactly and round to nearest even", "[core]") {
  check_all_patterns<Float16>(5, 10);
  CHECK(to_float16(65519.0F).bits == 0x7BFF);
  CHECK(to_float16(65520.0F).bits == 0x7C00);
  CHECK(to_float16(-1e30F).bits == 0xFC00);
  CHECK(to_float16(1e-30F).bits == 0);
}

TEST_CASE("dtypes: all 65,536 bf16 patterns widen exactly and round to nearest even", "[core]") {
  check_all_patterns<BFloat16>(8, 7);
  CHECK(to_bfloat16(std::numeric_limits<float>::max()).bits == 0x7F80);
}

TEST_CASE("exact sum: any order and grouping of any numbers gives the same bits", "[core]") {
  std::mt19937_64 random(42);
  std::vector<double> values;
  for (int i = 0; i < 2000; ++i) {
    const float x =
        std::ldexp(static_cast<float>(random() % 16777216), static_cast<int>(random() % 250) - 149);
    values.push_back(static_cast<double>(x) * static_cast<double>(x));
  }
  using Limbs = std::array<std::int64_t, exact_sum::kLimbs>;
  const auto sum_of = [](const std::vector<double>& all) {
    Limbs limbs{};
    for (const double value : all) {
      exact_sum::add(limbs, value);
    }
    return limbs;
  };
  const double reference = exact_sum::value(sum_of(values));
  for (int cutting = 0; cutting < 1000; ++cutting) {
    std::shuffle(values.begin(), values.end(), random);
    const auto cut = static_cast<std::ptrdiff_t>(random() % values.size());
    Limbs first = sum_of({values.begin(), values.begin() + cut});
    const Limbs second = sum_of({values.begin() + cut, values.end()});
    for (std::size_t i = 0; i < first.size(); ++i) {
      first[i] += second[i];
    }
    REQUIRE(exact_sum::value(first) == reference);
  }
}

TEST_CASE("exact sum: integers and cancellation are exact, the result is rounded once", "[core]") {
  std::array<std::int64_t, exact_sum::kLimbs> limbs{};
  CHECK(exact_sum::value(limbs) == 0.0);
  for (int i = 1; i <= 1000; ++i) {
    exact_sum::add(limbs, i);
  }
  CHECK(exact_sum::value(limbs) == 500500.0);
  exact_sum::add(limbs, 1e30);
  exact_sum::add(limbs, 0x1p-100);
  exact_sum::add(limbs, -1e30);
  CHECK(exact_sum::value(limbs) == 500500.0);
  exact_sum::add(limbs, -500500.0);
  CHECK(exact_sum::value(limbs) == 0x1p-100);
  exact_sum::add(limbs, -3.0);
  CHECK(exact_sum::value(limbs) == -3.0);
  // 2^53 + 1 lies between two doubles: to even, down; with one bit more, up.
  limbs = {};
  exact_sum::add(limbs, 0x1p53);
  exact_sum::add(limbs, 1.0);
  CHECK(exact_sum::value(limbs) == 0x1p53);
  exact_sum::add(limbs, 0x1p-300);
  CHECK(exact_sum::value(limbs) == 0x1p53 + 2.0);
}

TEST_CASE("random numbers: an element depends on name, seed and index only, with the stated spread",
          "[core]") {
  const std::uint64_t state = fnv1a64("h.0.mlp.c_fc.weight") ^ 1234U;
  CHECK(fnv1a64("") == 0xCBF29CE484222325ULL);
  CHECK(fnv1a64("a") == 0xAF63DC4C8601EC8CULL);  // published FNV-1a test value
  CHECK(splitmix64_at(0, 0) ==
        0xE220A8397B1DCDAFULL);  // published splitmix64 sequence from state 0
  CHECK(splitmix64_at(0, 1) == 0x6E789E6AA1B965F4ULL);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double x = normal_at(state, i, 0.02);
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / kCount) < 3e-4);
  CHECK(std::sqrt(squares / kCount) == Approx(0.02).epsilon(0.01));
  std::vector<float> whole(1000);
  std::vector<float> tail(300);
  Init::normal(0.02).fill("w", 7, 0, whole);
  Init::normal(0.02).fill("w", 7, 700, tail);
  CHECK(std::equal(tail.begin(), tail.end(), whole.begin() + 700));
}

TEST_CASE("ledger: current, peak and budget by category and space", "[core]") {
  Ledger ledger;
  ledger.add(MemorySpace::kDevice, Category::kParameters, 100);
  ledger.add(MemorySpace::kDevice, Category::kBuckets, 50);
  ledger.subtract(MemorySpace::kDevice, Category::kBuckets, 50);
  ledger.add(MemorySpace::kHost, Category::kPinned, 7);
  const MemoryUse use = ledger.use(MemorySpace::kDevice);
  CHECK(use.total_bytes == 100);
  CHECK(use.total_peak_bytes == 150);
  CHECK(use.peak_bytes.at(static_cast<std::size_t>(Category::kBuckets)) == 50);
  CHECK(ledger.use(MemorySpace::kHost).total_bytes == 7);
  ledger.set_budget(200);
  CHECK_THROWS_WITH(ledger.add(MemorySpace::kDevice, Category::kMoments, 94),
                    Catch::Contains("moments"));
  CHECK(ledger.use(MemorySpace::kDevice).total_bytes == 100);
  ledger.add(MemorySpace::kDevice, Category::kMoments, 93);
}

TEST_CASE("errors: one line with what, where and what to do, and the exit code of the contract",
          "[core]") {
  const InputError error("no such file", "data.txt", "check --data");
  CHECK(std::string(error.what()) == "no such file, data.txt, check --data");
  CHECK(error.exit_code() == ExitCode::kBadInput);
  CHECK(ResourceError("x").exit_code() == ExitCode::kEnvironment);
  CHECK(PeerError("x").exit_code() == ExitCode::kPeer);
  CHECK_THROWS_AS([] { ZERO_CHECK(1 > 2, "order of numbers"); }(), InternalError);
}

TEST_CASE("modules: a tree lists its modules in order and each parameter once", "[core]") {
  Tree root("root");
  Tree left("left");
  Tree right("right");
  root.add_child(left);
  root.add_child(right);
  const auto shared = left.add_parameter("w", Shape{2, 3}, Init::constant(1.0F));
  (void)right.add_parameter("b", Shape{3}, Init::constant(0.0F));
  right.share_parameter(shared);
  CHECK(modules_of(root).size() == 3);
  const auto all = parameters_of(root);
  REQUIRE(all.size() == 2);
  CHECK(all[0]->info.name == "left.w");
  CHECK(all[1]->info.name == "right.b");
}

TEST_CASE("handles: moved, reset twice and released, each is closed once", "[core]") {
  closed = 0;
  {
    UniqueHandle<CountedTraits> first(3);
    UniqueHandle<CountedTraits> second(std::move(first));
    second.reset();
    second.reset();
    UniqueHandle<CountedTraits> third(4);
    CHECK(third.release() == 4);
  }
  CHECK(closed == 1);
}

TEST_CASE("shapes: more than four dimensions, negative ones and slices outside are refused",
          "[core]") {
  CHECK(Shape{}.elems() == 1);
  CHECK((Shape{2, 0, 3}).elems() == 0);
  CHECK_THROWS_AS((Shape{1, 2, 3, 4, 5}), InternalError);
  CHECK_THROWS_AS((Shape{-1}), InternalError);
  std::vector<float> values(10);
  const TensorView view = view_of(std::span<float>(values));
  CHECK(view.slice(4, 6).elems() == 6);
  CHECK_THROWS_AS(view.slice(5, 6), InternalError);
  CHECK_THROWS_AS(view.as<std::int32_t>(), InternalError);
}

TEST_CASE("threads: the ranks of a node share its cores, at least one each", "[core]") {
  CHECK(available_cores() >= 1);
  CHECK(threads_per_rank(3, 2) == 3);
  CHECK(threads_per_rank(0, 1000000) == 1);
  CHECK(threads_per_rank(0, 1) == available_cores());
}
