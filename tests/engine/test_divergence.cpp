// Ranks that do different things: what is legal works, the rest is an error in bounded time that
// names both sides.
#include "engine/engine_run.h"
#include "engine/forked_model.h"
#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>
#include <zero/engine/launch.h>

#include <fmt/format.h>

#include <cstdlib>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

/// ZERO_TIMEOUT for the ranks that are launched while it lives.
class ShortTimeout {
 public:
  explicit ShortTimeout(const char* seconds) {
    if (const char* before = std::getenv("ZERO_TIMEOUT")) {
      before_ = before;
    }
    setenv("ZERO_TIMEOUT", seconds, 1);
  }
  ShortTimeout(const ShortTimeout&) = delete;
  ShortTimeout& operator=(const ShortTimeout&) = delete;
  ShortTimeout(ShortTimeout&&) = delete;
  ShortTimeout& operator=(ShortTimeout&&) = delete;
  ~ShortTimeout() {
    before_.empty() ? unsetenv("ZERO_TIMEOUT") : setenv("ZERO_TIMEOUT", before_.c_str(), 1);
  }

 private:
  std::string before_;
};

/// Message of the PeerError that `body` on two ranks ends with.
std::string divergence(const std::function<void(World&)>& body) {
  const ShortTimeout timeout("1");
  try {
    (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      body(world);
      return 0;
    });
  } catch (const PeerError& error) {
    return error.what();
  }
  return "no error";
}

/// Trains a ForkedModel of which rank 0 uses the first head, and rank 1 the second in every other
/// step.
std::map<std::string, std::vector<float>> train_experts(int stage, const std::string& zero_keys) {
  const std::string config = write_temporary(
      "experts.json", ds_config({.stage = stage, .micro_batch = 4, .zero_keys = zero_keys}));
  std::map<std::string, std::vector<float>> parameters;
  (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
    ForkedModel model(0.0F, /*heads_are_blocks=*/true);
    const auto engine = initialize({.world = world, .model = model, .config = config});
    for (int step = 0; step < 4; ++step) {
      const std::int32_t head = world.group.rank() == 1 && step % 2 == 1 ? 1 : 0;
      engine->backward(
          engine->forward(ForkedModel::batch(20 * step + world.group.rank() * 4, 4, head)));
      engine->step();
    }
    for (const auto& parameter : parameters_of(model)) {
      const auto values = engine->full_fp32_parameter(parameter->info.name);
      if (world.group.rank() == 0) {
        parameters[parameter->info.name] = values;
      }
    }
    return 0;
  });
  return parameters;
}

std::unique_ptr<Engine> tiny_engine(World& world,
                                    nn::Gpt& model,
                                    int stage,
                                    const std::string& zero_keys = "") {
  const std::string config = write_temporary(fmt::format("divergence{}.json", world.group.rank()),
                                             ds_config({.stage = stage, .zero_keys = zero_keys}));
  return initialize({.world = world, .model = model, .config = config});
}

void train_steps(Engine& engine, World& world, int steps) {
  for (int step = 0; step < steps; ++step) {
    engine.backward(engine.forward(make_batch(2 * step + world.group.rank(), 2, 16, 61)));
    engine.step();
  }
}

constexpr const char* kNothingStays = R"("stage3_param_persistence_threshold": 0)";

}  // namespace

TEST_CASE("experts: a rank that does not use one adds zeros, and a leaf module is gathered whole",
          "[engine][divergence]") {
  const auto reference = train_experts(0, "");
  const std::string leaf =
      std::string(kNothingStays) + R"(, "leaf_module": {"name_suffixes": "eads"})";
  CHECK(train_experts(1, "") == reference);
  CHECK(train_experts(2, "") == reference);
  CHECK(train_experts(2, leaf) == reference);
  CHECK(train_experts(3, leaf) == reference);
  CHECK_THROWS_WITH(train_experts(3, R"("leaf_module": {"names": ["heads", "tails"]})"),
                    Catch::Contains("\"tails\"") && Catch::Contains("leaf_module.names"));
}

TEST_CASE("divergence: ranks that gather different units of one size are told apart by name",
          "[engine][divergence][errors]") {
  const ShortTimeout timeout("2");
  // Each rank gathers again in backward: both calls meet. Else each waits for the other elsewhere.
  CHECK_THROWS_WITH(
      train_experts(3, std::string(kNothingStays) + R"(, "stage3_max_reuse_distance": 0)"),
      Catch::Contains("for heads.0 in step 2") && Catch::Contains("for heads.1 in step 2"));
  CHECK_THROWS_WITH(train_experts(3, kNothingStays),
                    Catch::Contains("did not arrive within 2 s") && Catch::Contains("for heads.") &&
                        Catch::Contains("in step 2"));
}

TEST_CASE("divergence: a rank with fewer batches is named with what it did last",
          "[engine][divergence][errors]") {
  for (const int stage : {0, 2, 3}) {
    const std::string message = divergence([&](World& world) {
      nn::Gpt model(RunSpec::tiny_gpt());
      const auto engine = tiny_engine(world, model, stage);
      train_steps(*engine, world, world.group.rank() == 0 ? 4 : 3);
      (void)engine->take_results(true);
    });
    INFO("stage " << stage);
    CHECK_THAT(message, Catch::Contains("rank 1 did not arrive within 1 s"));
    CHECK_THAT(message, Catch::Contains("in step 4"));
    CHECK_THAT(message, Catch::Contains("rank 1 was last seen in"));
    CHECK_THAT(message, Catch::Contains("in step 3"));
  }
}

TEST_CASE("divergence: ranks that evaluate a different number of times get an error, not a hang",
          "[engine][divergence][errors]") {
  const std::string message = divergence([&](World& world) {
    nn::Gpt model(RunSpec::tiny_gpt());
    const auto engine = tiny_engine(world, model, 3, kNothingStays);
    train_steps(*engine, world, 2);
    for (int times = world.group.rank() == 0 ? 5 : 3; times > 0; --times) {
      (void)engine->evaluate(make_batch(times, 2, 16, 61));
    }
    train_steps(*engine, world, 2);
    (void)engine->take_results(true);
  });
  CHECK_THAT(message, Catch::Contains("did not arrive within 1 s") || Catch::Contains("calls"));
}

TEST_CASE("divergence: a save that only one rank calls names the missing rank",
          "[engine][divergence][errors]") {
  const support::TemporaryFolder folder;
  const std::string message = divergence([&](World& world) {
    nn::Gpt model(RunSpec::tiny_gpt());
    const auto engine = tiny_engine(world, model, 2);
    train_steps(*engine, world, 1);
    if (world.group.rank() == 0) {
      engine->save_checkpoint(folder / "out");
    }
    engine->synchronize();
  });
  CHECK_THAT(message, Catch::Contains("rank 1 did not arrive"));
  CHECK_THAT(message, Catch::Contains("for save_checkpoint"));
}
