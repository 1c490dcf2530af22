// The plan is arithmetic: everything here runs without an engine.
#include <support/catch.h>
#include <zero/core/error.h>
#include <zero/engine/plan.h>
#include <zero/nn/gpt.h>

#include <map>
#include <set>

namespace {

using namespace zero;  // NOLINT(google-build-using-namespace): test file

/// A module that holds parameters of given sizes and runs nothing.
class Holder : public Module {
 public:
  explicit Holder(std::string name) : Module(std::move(name)) {}
  std::shared_ptr<Parameter> add(const std::string& suffix, Shape shape) {
    return add_parameter(suffix, shape, Init::constant(0.0F));
  }
  void share(std::shared_ptr<Parameter> parameter) { share_parameter(std::move(parameter)); }
  void add(Module& child) { add_child(child); }
  void make_block() { set_block(); }
};

config::Config config_for(int stage) {
  config::Config config;
  config.train_batch_size = 8;
  config.train_micro_batch_size_per_gpu = 1;
  config.gradient_accumulation_steps = 1;
  config.zero_optimization.stage = stage;
  config.zero_optimization.stage3_param_persistence_threshold = 0;
  return config;
}

nn::GptConfig small_gpt() {
  nn::GptConfig config;
  config.layers = 3;
  config.hidden = 48;
  config.heads = 4;
  config.positions = 16;
  config.vocabulary = 100;
  config.inner = 192;
  return config;
}

void check_layout(const StatePlan& plan) {
  std::set<std::size_t> placed;
  for (const Flat& flat : plan.flats) {
    std::int64_t end = 0;
    std::int64_t elems = 0;
    for (const FlatParam& param : flat.params) {
      CHECK(param.offset % kAlignElems == 0);
      CHECK(param.offset >= end);
      CHECK(param.elems == plan.params[param.param].shape.elems());
      CHECK(placed.insert(param.param).second);
      end = param.offset + param.elems;
      elems += param.elems;
    }
    CHECK(end <= flat.padded_elems);
    CHECK(flat.padded_elems == flat.slice_elems * plan.ranks);
    CHECK(flat.slice_elems % kAlignElems == 0);
    const auto bound = (plan.ranks + static_cast<std::int64_t>(flat.params.size())) * kAlignElems;
    CHECK(flat.padded_elems - elems < bound);
  }
  CHECK(placed.size() == plan.params.size());
}

/// Every element of every slice of a trainable flat is in exactly one bucket.
void check_buckets(const StatePlan& plan) {
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> pieces;
  for (const Bucket& bucket : plan.buckets) {
    for (const BucketPiece& piece : bucket) {
      pieces[piece.flat].emplace_back(piece.begin, piece.count);
    }
  }
  for (std::size_t flat = 0; flat < plan.flats.size(); ++flat) {
    std::int64_t end = 0;
    for (const auto& [begin, count] : pieces[static_cast<int>(flat)]) {
      CHECK(begin == end);
      end = begin + count;
    }
    CHECK(end == (plan.flats[flat].trainable ? plan.flats[flat].slice_elems : 0));
  }
}

}  // namespace

TEST_CASE("layout: every parameter lies once, aligned, in a flat padded below the bound",
          "[plan]") {
  for (const int ranks : {1, 2, 3, 4, 7, 64}) {
    nn::Gpt model(small_gpt());
    check_layout(make_plan(model, config_for(3), {}, ranks));
    config::Config persistent = config_for(3);
    persistent.zero_optimization.stage3_param_persistence_threshold = 1000;
    check_layout(make_plan(model, persistent, {}, ranks));
  }
}

TEST_CASE("layout: empty, scalar and tiny parameters are placed", "[plan]") {
  Holder model("m");
  (void)model.add("empty", Shape{0, 4});
  (void)model.add("scalar", Shape{});
  (void)model.add("three", Shape{3});
  (void)model.add("big", Shape{1000, 7});
  const StatePlan plan = make_plan(model, config_for(3), {}, 5);
  check_layout(plan);
  CHECK(plan.units.size() == 1);
  CHECK(plan.elems() == 0 + 1 + 3 + 7000);
}

TEST_CASE("layout: blocks are units, small leaves merge, a shared parameter is a unit of its own",
          "[plan]") {
  nn::Gpt model(small_gpt());
  const StatePlan plan = make_plan(model, config_for(0), {}, 2);
  std::vector<std::string> names;
  for (const Unit& unit : plan.units) {
    names.push_back(unit.name);
  }
  CHECK(names == std::vector<std::string>{"wte.weight", "embedding", "h.0", "h.1", "h.2", "ln_f"});
  CHECK(plan.units[0].shared);
  CHECK(plan.units[2].flats.size() == 1);
}

TEST_CASE("layout: stage and buckets never move a parameter", "[plan]") {
  nn::Gpt model(small_gpt());
  const StatePlan first = make_plan(model, config_for(0), {}, 4);
  for (const int stage : {1, 2, 3}) {
    config::Config config = config_for(stage);
    config.zero_optimization.reduce_bucket_size = 1000 * stage;
    const StatePlan plan = make_plan(model, config, {}, 4);
    REQUIRE(plan.flats.size() == first.flats.size());
    for (std::size_t flat = 0; flat < plan.flats.size(); ++flat) {
      CHECK(plan.flats[flat].padded_elems == first.flats[flat].padded_elems);
      CHECK(plan.flats[flat].params.size() == first.flats[flat].params.size());
    }
  }
}

TEST_CASE("layout: two parameters of one name are refused", "[plan]") {
  Holder model("m");
  (void)model.add("w", Shape{4});
  (void)model.add("w", Shape{4});
  CHECK_THROWS_AS(make_plan(model, config_for(0), {}, 1), InputError);
}

TEST_CASE("plan: buckets cover every slice once for any bucket size", "[plan]") {
  nn::Gpt model(small_gpt());
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::int64_t size : {1L, 64L, 1000L, 50'000L, 500'000'000L}) {
      config::Config config = config_for(2);
      config.zero_optimization.reduce_bucket_size = size;
      check_buckets(make_plan(model, config, {}, ranks));
    }
  }
}

TEST_CASE("plan: a bucket larger than the model allocates no more than the largest unit twice",
          "[plan]") {
  nn::Gpt model(small_gpt());
  const StatePlan plan = make_plan(model, config_for(2), {}, 2);
  const auto buckets = plan.bytes[static_cast<std::size_t>(Category::kBuckets)];
  CHECK(buckets < 4 * plan.padded_elems());
}

TEST_CASE("plan: bytes follow the ZeRO table for fp32 Adam", "[plan]") {
  // Rajbhandari et al. 2020 with K = 8 (fp32 parameters are their own master): 16Ψ, 8Ψ + 8Ψ/N, 4Ψ +
  // 12Ψ/N, 16Ψ/N.
  for (const int ranks : {1, 2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      nn::Gpt model(small_gpt());
      const StatePlan plan = make_plan(model, config_for(stage), {}, ranks);
      const std::int64_t whole = 4 * plan.padded_elems();
      const auto at = [&](Category category) {
        return plan.bytes[static_cast<std::size_t>(category)];
      };
      CHECK(at(Category::kParameters) == (stage == 3 ? whole / ranks : whole));
      CHECK(at(Category::kGradients) == (stage >= 2 ? whole / ranks : whole));
      CHECK(at(Category::kMaster) == 0);
      CHECK(at(Category::kMoments) == 2 * (stage >= 1 ? whole / ranks : whole));
    }
  }
}

TEST_CASE("plan: persistence keeps small parameters whole up to the model threshold", "[plan]") {
  nn::Gpt model(small_gpt());
  config::Config config = config_for(3);
  config.zero_optimization.stage3_param_persistence_threshold = 200;
  config.zero_optimization.stage3_model_persistence_threshold = 500;
  const StatePlan plan = make_plan(model, config, {}, 2);
  std::int64_t persistent = 0;
  for (const Flat& flat : plan.flats) {
    for (const FlatParam& param : flat.params) {
      CHECK((!flat.persistent || param.elems <= 200));
      persistent += flat.persistent ? param.elems : 0;
    }
  }
  CHECK(persistent <= 500);
  CHECK(persistent > 300);  // the next one that fits is at most 192 elements
}
