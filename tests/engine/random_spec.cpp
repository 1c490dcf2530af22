#include "engine/random_spec.h"

#include <fmt/format.h>

#include <initializer_list>
#include <vector>

namespace zero::testing {
namespace {

class Choice {
 public:
  explicit Choice(std::mt19937_64& random) : random_(random) {}

  template <class T>
  T operator()(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random_() % values.size()));
  }
  bool one_in(std::uint64_t n) { return random_() % n == 0; }

 private:
  std::mt19937_64& random_;
};

void add(std::string& members, const std::string& member) {
  members += (members.empty() ? "" : ", ") + member;
}

/// Elements that tiny_gpt() with so many layers has to gather at once at least (rounded up: its
/// largest module together with the shared table).
constexpr std::int64_t kLeastLive = 30'000;

}  // namespace

RunSpec random_spec(std::mt19937_64& random, int ranks) {
  Choice choose(random);
  RunSpec spec;
  spec.ranks = ranks;
  spec.stage = choose({0, 1, 2, 3, 3, 3});
  spec.steps = 3;
  spec.model.layers = choose({2, 3, 5});
  spec.precision = choose({std::string(), std::string(), std::string("bf16")});
  spec.accumulation = choose({1, 1, 2});
  if (choose.one_in(2)) {
    spec.model.residual_dropout = 0.1F;
  }
  std::string& zero = spec.zero_keys;
  add(zero, fmt::format(R"("overlap_comm": {})", choose({"true", "false"})));
  add(zero, fmt::format(R"("reduce_bucket_size": {})", choose({1'000, 30'000, 500'000'000})));
  add(zero, fmt::format(R"("allgather_bucket_size": {})", choose({500, 20'000, 500'000'000})));
  if (spec.stage == 3) {
    add(zero,
        fmt::format(R"("stage3_param_persistence_threshold": {})", choose({0, 1'000, 100'000})));
    add(zero,
        fmt::format(R"("stage3_prefetch_bucket_size": {})", choose({0, 10'000, 500'000'000})));
    add(zero,
        fmt::format(R"("stage3_max_reuse_distance": {})", choose({0, 40'000, 1'000'000'000})));
    add(zero,
        fmt::format(R"("stage3_max_live_parameters": {})",
                    choose({kLeastLive, 2 * kLeastLive, std::int64_t{1'000'000'000}})));
    const int node = choose({1, 2, 3, ranks});
    if (node > 1 && ranks % node == 0) {
      add(zero, fmt::format(R"("zero_hpz_partition_size": {})", node));
    }
    if (choose.one_in(3)) {
      add(zero, R"("offload_param": {"device": "cpu"})");
    }
  }
  if (spec.stage > 0 && choose.one_in(3)) {
    add(zero, R"("offload_optimizer": {"device": "cpu"})");
    add(zero, fmt::format(R"("sub_group_size": {})", choose({64, 3'000, 1'000'000'000})));
    add(spec.top_keys, R"("zero_force_ds_cpu_optimizer": false)");
  }
  switch (choose({0, 1, 2})) {
    case 1:
      add(spec.top_keys,
          fmt::format(
              R"("activation_checkpointing": {{"partition_activations": true, "number_checkpoints": {}}})",
              choose({0, 2})));
      break;
    case 2:
      add(spec.top_keys, R"("activation_checkpointing": {"cpu_checkpointing": true})");
      break;
    default:
      break;
  }
  return spec;
}

RunSpec plainest(const RunSpec& spec) {
  RunSpec plain = spec;
  plain.stage = spec.accumulation > 1 && spec.stage >= 2 ? 2 : 0;
  plain.zero_keys.clear();
  plain.top_keys.clear();
  return plain;
}

std::string describe(const RunSpec& spec) {
  return fmt::format("{} ranks, {} layers, dropout {}: {}",
                     spec.ranks,
                     spec.model.layers,
                     spec.model.residual_dropout,
                     ds_config(spec));
}

}  // namespace zero::testing
