// Memory against published tables; each test names its source.
#include "planner/planner_support.h"
#include <support/catch.h>

#include <array>
#include <cmath>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file
using namespace zero::planner;  // NOLINT(google-build-using-namespace): test file

bool within(double value, double published, double share) {
  return std::abs(value - published) <= share * published;
}

/// What the plan keeps for each parameter, applied to the round number of the table.
double gigabytes(const ModelShape& shape, double params, int stage, std::int64_t ranks) {
  Workload workload;
  workload.model_parallel = false;
  const Evaluator evaluator(shape, cluster_of("v100-32gb", ranks, 1), workload);
  Setup setup;
  setup.stage = stage;
  setup.data = ranks;
  config::Config config = config_of(setup, shape, workload);
  config.zero_optimization.stage3_param_persistence_threshold = 0;  // the paper cuts all
  return state_bytes(evaluator.evaluate(setup, config)) / static_cast<double>(shape.params()) *
         params / 1e9;
}

}  // namespace

TEST_CASE("published: ZeRO's memory of model states (Rajbhandari et al. 2020, table 1)",
          "[planner]") {
  struct Row {
    std::int64_t ranks;
    std::array<double, 9> gigabytes;  // 7.5B, 128B, 1T; each P_os, P_os+g, P_os+g+p
  };
  const std::array rows = {Row{1, {120, 120, 120, 2048, 2048, 2048, 16000, 16000, 16000}},
                           Row{4, {52.5, 41.3, 30, 896, 704, 512, 7000, 5500, 4000}},
                           Row{16, {35.6, 21.6, 7.5, 608, 368, 128, 4750, 2875, 1000}},
                           Row{64, {31.4, 16.6, 1.88, 536, 284, 32, 4187, 2218, 250}},
                           Row{256, {30.4, 15.4, 0.47, 518, 263, 8, 4046, 2054, 62.5}},
                           Row{1024, {30.1, 15.1, 0.12, 513, 257, 2, 4011, 2013, 15.6}}};
  const std::array models = {std::pair{megatron_shape(36, 4096, 32), 7.5e9},
                             std::pair{megatron_shape(80, 11520, 96), 128e9},
                             std::pair{megatron_shape(128, 25600, 160), 1e12}};
  for (const Row& row : rows) {
    for (std::size_t column = 0; column < row.gigabytes.size(); ++column) {
      const auto& [shape, params] = models.at(column / 3);
      const int stage = 1 + static_cast<int>(column % 3);
      const double value = gigabytes(shape, params, stage, row.ranks);
      const double published = row.gigabytes.at(column);
      INFO(params << " parameters, stage " << stage << ", " << row.ranks << " ranks: " << value
                  << " against " << published);
      CHECK(std::abs(value - published) <= std::max(0.1, 0.006 * published));
    }
  }
}

TEST_CASE("published: parameters of Megatron-LM's models (Narayanan et al. 2021, table 1)",
          "[planner]") {
  struct Row {
    std::int64_t heads, hidden, layers;
    double billions;
  };
  for (const Row& row : {Row{24, 2304, 24, 1.7},
                         Row{32, 3072, 30, 3.6},
                         Row{32, 4096, 36, 7.5},
                         Row{48, 6144, 40, 18.4},
                         Row{64, 8192, 48, 39.1},
                         Row{80, 10240, 60, 76.1},
                         Row{96, 12288, 80, 145.6},
                         Row{128, 16384, 96, 310.1},
                         Row{128, 20480, 105, 529.6},
                         Row{160, 25600, 128, 1008.0}}) {
    const double value =
        static_cast<double>(megatron_shape(row.layers, row.hidden, row.heads).params()) / 1e9;
    INFO(value << " against " << row.billions);
    // Two digits are printed of the smaller ones.
    CHECK(std::abs(value - row.billions) <= std::max(0.01 * row.billions, 0.05));
  }
}

TEST_CASE("published: parameters of well-known models", "[planner]") {
  // Sums over the tensors of the published checkpoints.
  for (const auto& [name, params] : {std::pair{"gpt2", 124'439'808L},
                                     std::pair{"gpt2-xl", 1'557'611'200L},
                                     std::pair{"llama2-7b", 6'738'415'616L},
                                     std::pair{"llama2-70b", 68'976'648'192L},
                                     std::pair{"llama3-8b", 8'030'261'248L},
                                     std::pair{"mistral-7b", 7'241'732'096L},
                                     std::pair{"opt-125m", 125'239'296L}}) {
    CHECK(parse_model(name).params() == params);
  }
  // A number means the published GPT of that size, or a shape that is near it.
  CHECK(parse_model("175B").layers == 96);
  CHECK(parse_model("530B").layers == 105);
  for (const auto& [text, params] : {std::pair{"350M", 350e6},
                                     std::pair{"7B", 7e9},
                                     std::pair{"20B", 20e9},
                                     std::pair{"70B", 70e9},
                                     std::pair{"10T", 10e12}}) {
    INFO(text);
    CHECK(within(static_cast<double>(parse_model(text).params()), params, 0.04));
  }
  // Qwen 2.5 adds biases to queries, keys and values only.
  CHECK(within(static_cast<double>(parse_model("qwen2.5-7b").params()), 7'615'616'512.0, 1e-3));
}

TEST_CASE("published: activations of a layer (Korthikanti et al. 2022, table 2)", "[planner]") {
  // s·b·h of the 175B model; 5·a·s/h = 80.
  const ModelShape shape = megatron_shape(96, 12288, 96);
  const double sbh = 2048.0 * 2 * 12288;
  const auto bytes = [&](const ActivationScheme& scheme) {
    return layer_activation_bytes(shape, 2, scheme);
  };
  CHECK(bytes({.attention_matrix = true}) == sbh * (34 + 80));
  CHECK(bytes({.tensor = 8, .attention_matrix = true}) == sbh * (10 + 24.0 / 8 + 80.0 / 8));
  CHECK(bytes({.tensor = 8, .sequence_parallel = true, .attention_matrix = true}) ==
        sbh / 8 * (34 + 80));
  CHECK(bytes({.tensor = 8}) == sbh * (10 + 24.0 / 8));
  CHECK(bytes({.tensor = 8, .sequence_parallel = true}) == sbh / 8 * 34);
  CHECK(bytes({.tensor = 8, .attention_matrix = true, .recompute = true}) == sbh * 2);
  CHECK(bytes({.tensor = 8, .sequence_parallel = true, .recompute = true}) == sbh * 2 / 8);
}

TEST_CASE("published: what ZeRO-Infinity needs (Rajbhandari et al. 2021, table 2)", "[planner]") {
  constexpr double kTiB = 1024 * kGiB;
  struct Row {
    std::int64_t layers, hidden, heads;
    double states, activations, checkpoints, working_states, working_activations;
  };
  // The working memory of the first row is a misprint: 16·h² gives 1.56.
  for (const Row& row : {Row{80, 10240, 128, 1.83, 2.03, 0.05, 1.56, 1.63},
                         Row{100, 20480, 160, 9.16, 3.91, 0.12, 6.25, 2.50},
                         Row{128, 25600, 256, 18.31, 7.13, 0.20, 9.77, 3.56},
                         Row{195, 65536, 512, 182.81, 24.38, 0.76, 64.0, 8.00},
                         Row{315, 163840, 1024, 1845.70, 88.59, 3.08, 400.0, 18.00}}) {
    const ModelShape shape = megatron_shape(row.layers, row.hidden, row.heads, 1024);
    const InfinityNeeds needs = infinity_needs(shape, 4, 16);
    INFO(row.layers << " layers");
    CHECK(within(needs.state_bytes / kTiB, row.states, 0.05));
    CHECK(within(needs.activation_bytes / kTiB, row.activations, 0.05));
    // Printed with two decimals, for 32 samples a node.
    CHECK(std::abs(infinity_needs(shape, 2, 16).checkpoint_bytes / kTiB - row.checkpoints) <=
          std::max(0.05 * row.checkpoints, 0.006));
    CHECK(within(needs.working_state_bytes / kGiB, row.working_states, 0.05));
    CHECK(within(needs.working_activation_bytes / kGiB, row.working_activations, 0.05));
  }
}

TEST_CASE("published: what ZeRO-Infinity's bandwidths leave (the same, section 4.2)", "[planner]") {
  const ModelShape shape = megatron_shape(24, 2048, 16, 1024);
  constexpr double kPeak = 70e12;
  CHECK(within(efficiency(intensities(shape, 1).params_and_grads, 70e9, kPeak), 0.506, 0.05));
  CHECK(within(efficiency(intensities(shape, 2).optimizer_states, 1.5e12, kPeak), 0.916, 0.05));
  CHECK(within(efficiency(intensities(shape, 1).checkpoints, 1e9, kPeak), 0.413, 0.05));
  CHECK(within(efficiency(intensities(shape, 1).checkpoints, 2e9, kPeak), 0.584, 0.05));
}

TEST_CASE("published: ZeRO-Offload's device bytes (Ren et al. 2021, table 1)", "[planner]") {
  const ModelShape shape = megatron_shape(50, 4096, 32);
  const auto params = static_cast<double>(shape.params());
  const Evaluator evaluator(shape, cluster_of("v100-32gb", 1, 1, 1e12), {});
  Setup setup;
  setup.stage = 2;
  CHECK(within(state_bytes(evaluator.evaluate(setup)), 16 * params, 0.001));
  setup.offload_optimizer = Offload::kCpu;
  CHECK(within(state_bytes(evaluator.evaluate(setup)), 2 * params, 0.001));
  setup.stage = 1;  // gradients stay
  CHECK(within(state_bytes(evaluator.evaluate(setup)), 4 * params, 0.001));
}

TEST_CASE("published: DeepSpeed's estimators give the numbers that they print", "[planner]") {
  struct Row {
    double params, largest;
    std::int64_t gpus, nodes;
    std::array<double, 4> stage2;  // offload: GPU, CPU; none: GPU, CPU
    std::array<double, 6> stage3;  // all, optimizer, none: GPU each, then CPU with zero.Init each
  };
  for (const Row& row : {Row{2851e6,
                             32e6,
                             8,
                             1,
                             {5.31, 127.45, 11.28, 127.45},
                             {0.12, 0.78, 6.09, 71.69, 63.72, 1.43}},
                         Row{7e9,
                             130e6,
                             1,
                             1,
                             {13.04, 156.46, 130.39, 39.12},
                             {0.48, 13.52, 117.83, 176.02, 156.46, 0.73}},
                         Row{13e9,
                             300e6,
                             8,
                             1,
                             {24.21, 581.15, 51.46, 581.15},
                             {1.12, 4.14, 28.36, 326.89, 290.57, 13.41}},
                         Row{20e9,
                             400e6,
                             4,
                             1,
                             {37.25, 447.03, 121.07, 447.03},
                             {1.49, 10.80, 85.31, 502.91, 447.03, 8.94}},
                         Row{70e9,
                             1.05e9,
                             8,
                             8,
                             {130.39, 25033.95, 148.72, 3129.24},
                             {3.91, 5.95, 22.25, 220.02, 195.58, 46.94}},
                         Row{175e9,
                             1.8e9,
                             8,
                             16,
                             {325.96, 125169.75, 348.88, 7823.11},
                             {6.71, 9.25, 29.62, 275.03, 244.47, 80.47}}}) {
    const auto stage2 = deepspeed_needs(2, row.params, row.largest, row.gpus, row.nodes);
    const auto stage3 = deepspeed_needs(3, row.params, row.largest, row.gpus, row.nodes);
    INFO(row.params << " parameters");
    for (std::size_t option = 0; option < 2; ++option) {
      CHECK(stage2.at(option).gpu_bytes / kGiB == Approx(row.stage2.at(2 * option)).margin(0.0051));
      CHECK(stage2.at(option).host_bytes / kGiB ==
            Approx(row.stage2.at(2 * option + 1)).margin(0.0051));
    }
    for (std::size_t option = 0; option < 3; ++option) {
      CHECK(stage3.at(option).gpu_bytes / kGiB == Approx(row.stage3.at(option)).margin(0.0051));
      CHECK(stage3.at(option).host_bytes / kGiB ==
            Approx(row.stage3.at(option + 3)).margin(0.0051));
    }
  }
}
