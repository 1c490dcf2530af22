// Sixteen clusters and models with the answers of a practitioner (docs/PLAN.md, "Worked
// scenarios"). Where nothing else is said, activations are recomputed and the micro-batch is given.
#include "planner/planner_support.h"
#include <support/catch.h>
#include <zero/core/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file
using namespace zero::planner;  // NOLINT(google-build-using-namespace): test file

constexpr double kGB = 1e9;
constexpr double kTB = 1e12;

ModelShape sized(const char* name, std::int64_t sequence) {
  ModelShape shape = parse_model(name);
  shape.sequence = sequence;
  return shape;
}

ModelShape model_20b() {
  return megatron_shape(44, 6144, 64, 2048, 50432);
}

Evaluator evaluator_of(const ModelShape& shape,
                       const Cluster& cluster,
                       std::int64_t micro_batch,
                       std::optional<std::int64_t> batch = {}) {
  Workload workload;
  workload.micro_batch = micro_batch;
  workload.batch = batch.value_or(0);
  workload.recompute = true;
  return {shape, cluster, workload};
}

Estimate stage_of(const Evaluator& evaluator, int stage, Offload optimizer = Offload::kNone) {
  Setup setup;
  setup.stage = stage;
  setup.offload_optimizer = optimizer;
  setup.recompute = *evaluator.workload().recompute;
  setup.data = evaluator.cluster().gpus();
  setup.micro_batch = std::max<std::int64_t>(1, evaluator.workload().micro_batch);
  setup.accumulation = evaluator.batch() / (setup.data * setup.micro_batch);
  return evaluator.evaluate(setup);
}

const Estimate& recommended(const Plan& plan) {
  REQUIRE(plan.recommended >= 0);
  return plan.candidates[static_cast<std::size_t>(plan.recommended)];
}

bool says(const Plan& plan, const std::string& words) {
  return std::any_of(plan.reasons.begin(), plan.reasons.end(), [&](const std::string& reason) {
    return reason.find(words) != std::string::npos;
  });
}

/// GiB without the buffers that gather and reduce: those of DeepSpeed and PyTorch, which the
/// published needs count, are not this engine's.
double without_buffers(const Estimate& estimate) {
  return (estimate.device_bytes() - bytes_of(estimate.device, Category::kGathered) -
          bytes_of(estimate.device, Category::kBuckets) -
          bytes_of(estimate.device, Category::kStaging)) /
         kGiB;
}

/// Their buffers, GiB: DDP's buckets, two of at most 5·10^8 elements, five copies of a layer.
double reference_buffers(const ModelShape& shape, int stage) {
  const auto params = static_cast<double>(shape.params());
  return (stage == 0   ? 2 * params
          : stage <= 2 ? 2 * 2 * std::min(5e8, params)
                       : 10 * static_cast<double>(shape.layer_params())) /
         kGiB;
}

void check_needs(const Evaluator& evaluator, std::array<double, 4> gib) {
  for (int stage = 0; stage < 4; ++stage) {
    const double wanted = gib.at(static_cast<std::size_t>(stage));
    if (wanted > 0) {
      INFO("stage " << stage);
      CHECK(without_buffers(stage_of(evaluator, stage)) ==
            Approx(wanted - reference_buffers(evaluator.shape(), stage)).epsilon(0.05));
    }
  }
}

}  // namespace

TEST_CASE("scenario 1: GPT-2 on one 8 GB card needs nothing special", "[planner]") {
  Workload workload;
  workload.micro_batch = 4;
  workload.recompute = false;
  const Evaluator evaluator(
      parse_model("gpt2"), cluster_of("memory=8GB,flops=30T", 1, 1), workload);
  const Plan plan = choose(evaluator);
  CHECK(recommended(plan).setup.name() == "DDP");
  CHECK(recommended(plan).device_bytes() / kGiB == Approx(6.3).epsilon(0.05));
  CHECK(recommended(plan).seconds.communication == 0);
}

TEST_CASE("scenario 2: 1.3B on 8 V100: DDP fits, ZeRO-1 would save 13 GiB", "[planner]") {
  const Evaluator evaluator =
      evaluator_of(parse_model("gpt3-1.3b"), cluster_of("v100-32gb", 1, 8), 4);
  check_needs(evaluator, {27.7, 14.4, 12.3, 8.8});
  const Plan plan = choose(evaluator);
  CHECK(recommended(plan).setup.name() == "DDP");
  CHECK(says(plan, "ZeRO-1 would save 12.9 GiB"));
  CHECK(recommended(plan).seconds.communication == Approx(0.035).epsilon(0.05));
  // 1.9 s at ZeRO's 45 TFLOPs/s; plain runs reached 68 (docs/PLAN.md).
  CHECK(recommended(plan).seconds.compute == Approx(1.9 * 45 / 68).epsilon(0.07));
}

TEST_CASE("scenario 3: 7B on one 24 GB card: the optimizer on the CPU, or NVMe", "[planner]") {
  const ModelShape shape = sized("llama2-7b", 2048);
  const Evaluator evaluator = evaluator_of(shape, cluster_of("rtx3090", 1, 1, 256 * kGB), 1);
  check_needs(evaluator, {115.7, 0, 0, 0});
  const Plan plan = choose(evaluator);
  CHECK(recommended(plan).setup.name() == "ZeRO-2 + optimizer on cpu");
  // 17.2 with two buckets of 5e8 elements.
  CHECK(without_buffers(recommended(plan)) ==
        Approx(17.2 - reference_buffers(shape, 2)).epsilon(0.05));
  // bf16 sums of gradients: 14 bytes a parameter where 16 are usual.
  CHECK(recommended(plan).host_bytes() / kGiB == Approx(100.0 * 14 / 16).epsilon(0.05));
  CHECK(recommended(plan).seconds.update == Approx(1.7).epsilon(0.05));
  CHECK(recommended(plan).seconds.compute * 35 / 35 > recommended(plan).seconds.update);
  Cluster small = cluster_of("rtx3090", 1, 1, 64 * kGB);
  CHECK(choose(evaluator_of(shape, small, 1)).recommended == -1);
  small.nvme_bytes = kTB;
  small.nvme_bytes_s = 3 * kGB;
  const Plan with_nvme = choose(evaluator_of(shape, small, 1));
  CHECK(recommended(with_nvme).setup.offload_optimizer == Offload::kNvme);
}

TEST_CASE("scenario 4: 7B on 8 A100-40GB: ZeRO-2, even where ZeRO-1 is tight", "[planner]") {
  const ModelShape shape = sized("llama2-7b", 2048);
  const Evaluator evaluator = evaluator_of(shape, cluster_of("a100-40gb", 1, 8), 4);
  check_needs(evaluator, {119.6, 43.0, 32.0, 21.1});
  const Plan plan = choose(evaluator);
  CHECK(recommended(plan).setup.name() == "ZeRO-2");
  CHECK(recommended(plan).seconds.communication == Approx(0.13).epsilon(0.05));
  CHECK(recommended(plan).seconds.compute == Approx(2.9).epsilon(0.05));
}

TEST_CASE("scenario 5: 13B on 8 A100-80GB: data parallel, against the rule of thumb", "[planner]") {
  const Evaluator evaluator =
      evaluator_of(sized("llama2-13b", 2048), cluster_of("a100-80gb", 1, 8), 4);
  check_needs(evaluator, {226, 76.5, 55.3, 35.2});
  const Plan plan = choose(evaluator);
  CHECK(says(plan, "the numbers say otherwise"));
  CHECK(recommended(plan).setup.name() == "ZeRO-1");
  CHECK(recommended(plan).seconds.communication == Approx(0.26).epsilon(0.05));
  CHECK(recommended(plan).seconds.compute == Approx(5.7).epsilon(0.05));
}

TEST_CASE("scenario 6: 20B on 4 A100-80GB needs the optimizer on the CPU", "[planner]") {
  const Evaluator evaluator = evaluator_of(model_20b(), cluster_of("a100-80gb", 1, 4, kTB), 1);
  check_needs(evaluator, {339, 136, 108, 82.5});
  const Plan plan = choose(evaluator);
  CHECK(says(plan, "DDP misses by"));
  CHECK(says(plan, "ZeRO-3 misses by 5.5 GiB"));
  CHECK(recommended(plan).setup.name() == "ZeRO-3 + optimizer on cpu");
  const Evaluator larger = evaluator_of(model_20b(), cluster_of("a100-80gb", 1, 4, kTB), 4);
  const Plan at_4 = choose(larger);
  CHECK(recommended(at_4).setup.name() == "ZeRO-3 + optimizer on cpu");
  CHECK(without_buffers(recommended(at_4)) ==
        Approx(24.0 - reference_buffers(model_20b(), 3)).epsilon(0.05));
  CHECK(recommended(at_4).host_bytes() / kGiB == Approx(298.0 * 14 / 16).epsilon(0.05));
  CHECK(recommended(at_4).seconds.update == Approx(5.2).epsilon(0.05));
}

TEST_CASE("scenario 7: the same 20B on 8: ZeRO-3", "[planner]") {
  const Evaluator evaluator = evaluator_of(model_20b(), cluster_of("a100-80gb", 1, 8), 4);
  check_needs(evaluator, {346, 115, 82.2, 52.0});
  const Plan plan = choose(evaluator);
  CHECK(recommended(plan).setup.name() == "ZeRO-3");
  CHECK(recommended(plan).seconds.communication == Approx(0.6).epsilon(0.05));
  CHECK(recommended(plan).seconds.compute == Approx(8.7).epsilon(0.05));
}

TEST_CASE("scenario 8: 70B on 64 H100: ZeRO-3 with enough tokens for each gather", "[planner]") {
  const ModelShape shape = sized("llama2-70b", 4096);
  const Evaluator evaluator = evaluator_of(shape, cluster_of("h100", 8, 8), 2);
  check_needs(evaluator, {0, 287, 160, 39.9});
  const Plan plan = choose(evaluator);
  CHECK(recommended(plan).setup.name() == "ZeRO-3");
  CHECK(recommended(plan).seconds.communication == Approx(10.3).epsilon(0.05));
  CHECK(recommended(plan).seconds.compute == Approx(11.3).epsilon(0.05));
  // A quarter of the tokens: gathers no longer hide.
  const Plan few = choose(evaluator_of(sized("llama2-70b", 2048), cluster_of("h100", 8, 8), 1, 64));
  CHECK(recommended(few).setup.model_parallel());
}

TEST_CASE("scenario 9: 175B on 128 A100: tensor x pipeline, ZeRO-3 a third slower", "[planner]") {
  const ModelShape shape = megatron_shape(96, 12288, 96);
  Workload workload;
  workload.batch = 1536;
  const Evaluator evaluator(shape, cluster_of("a100-80gb", 16, 8), workload);
  check_needs(evaluator_of(shape, cluster_of("a100-80gb", 16, 8), 1, 1536), {0, 675, 352, 44.9});
  const Plan plan = choose(evaluator);
  const Setup& setup = recommended(plan).setup;
  CHECK((setup.tensor * setup.pipeline == 32 || setup.tensor * setup.pipeline == 64));
  CHECK(recommended(plan).seconds.total() == Approx(160).epsilon(0.05));
  const Estimate zero3 = stage_of(evaluator_of(shape, cluster_of("a100-80gb", 16, 8), 4, 1536), 3);
  CHECK(zero3.seconds.total() == Approx(243).epsilon(0.05));
  // t4 p4 holds too many states.
  Setup seed;
  seed.tensor = 4;
  seed.pipeline = 4;
  seed.data = 8;
  seed.accumulation = 192;
  CHECK_FALSE(evaluator.evaluate(seed).fits());
  CHECK(state_bytes(evaluator.evaluate(seed)) / kGiB == Approx(77.0).epsilon(0.05));
}

TEST_CASE("scenario 10: 530B on 1,024 A100: no even pipeline, and the plan says so", "[planner]") {
  const ModelShape shape = megatron_shape(105, 20480, 128);
  Workload workload;
  workload.batch = 2048;
  const Plan plan = choose(Evaluator(shape, cluster_of("a100-80gb", 128, 8), workload));
  CHECK(recommended(plan).setup.name() == "t8 p16 d8");
  CHECK(recommended(plan).device_bytes() / kGiB == Approx(51.8).epsilon(0.05));
  CHECK(recommended(plan).seconds.total() == Approx(85).epsilon(0.05));
  CHECK(says(plan, "105 layers cannot be cut evenly"));
  const Evaluator whole = evaluator_of(shape, cluster_of("a100-80gb", 128, 8), 1, 1024);
  check_needs(whole, {0, 0, 0, 66.6});
  const Estimate zero3 = stage_of(evaluator_of(shape, cluster_of("a100-80gb", 128, 8), 2, 2048), 3);
  CHECK(zero3.seconds.total() == Approx(187).epsilon(0.05));
  const Plan better = choose(Evaluator(shape, cluster_of("a100-80gb", 140, 8), [] {
    Workload of_2240;
    of_2240.batch = 2240;
    return of_2240;
  }()));
  CHECK(recommended(better).setup.name() == "t8 p35 d4 v3");
  CHECK(recommended(better).device_bytes() / kGiB == Approx(41.5).epsilon(0.05));
  CHECK(recommended(better).seconds.total() == Approx(82).epsilon(0.05));
}

TEST_CASE("scenario 11: 1T on 3,072 A100: tensor x pipeline", "[planner]") {
  const ModelShape shape = megatron_shape(128, 25600, 160);
  Workload workload;
  workload.batch = 3072;
  const Evaluator evaluator(shape, cluster_of("a100-80gb", 384, 8), workload);
  const Plan plan = choose(evaluator);
  CHECK(recommended(plan).setup.name() == "t8 p32 d12 v4");
  CHECK(recommended(plan).device_bytes() / kGiB == Approx(61.2).epsilon(0.05));
  CHECK(recommended(plan).seconds.bubble / recommended(plan).seconds.compute ==
        Approx(0.03).epsilon(0.10));
  CHECK(
      stage_of(evaluator_of(shape, cluster_of("a100-80gb", 384, 8), 1, 3072), 3).seconds.total() ==
      Approx(356).epsilon(0.05));
}

TEST_CASE("scenario 12: 25.6M parameters in fp32 over 25 GbE: DDP", "[planner]") {
  Workload workload;
  workload.precision = DType::kF32;
  const ModelShape shape = parse_model("25.6M");
  Cluster cluster = cluster_of("v100-16gb", 16, 1);
  cluster.inter_bytes_s = 2.8 * kGB;
  const Plan plan = choose(Evaluator(shape, cluster, workload));
  CHECK(recommended(plan).setup.name() == "DDP");
  const double params = static_cast<double>(shape.params()) / 25.6e6;
  CHECK(recommended(plan).seconds.communication / params == Approx(0.069).epsilon(0.05));
  workload.precision = DType::kF16;
  CHECK(recommended(choose(Evaluator(shape, cluster, workload))).seconds.communication / params ==
        Approx(0.034).epsilon(0.05));
}

TEST_CASE("scenario 13: 13B on one V100 with 256 GB, 40B with 1.5 TB", "[planner]") {
  const ModelShape shape = sized("llama2-13b", 2048);
  const Plan plan = choose(evaluator_of(shape, cluster_of("v100-32gb", 1, 1, 256 * kGB), 1));
  CHECK(recommended(plan).setup.name() == "ZeRO-2 + optimizer on cpu");
  CHECK(without_buffers(recommended(plan)) ==
        Approx(29.2 - reference_buffers(shape, 2)).epsilon(0.05));
  CHECK(recommended(plan).host_bytes() / kGiB == Approx(194.0 * 14 / 16).epsilon(0.05));
  const Plan larger = choose(
      evaluator_of(megatron_shape(50, 8192, 64), cluster_of("v100-32gb", 1, 1, 1.5 * kTB), 1));
  CHECK(recommended(larger).setup.name() == "ZeRO-3 + all on cpu");
}

TEST_CASE("scenario 14: 1T on one DGX-2: all on NVMe", "[planner]") {
  Cluster cluster = cluster_of("v100-32gb", 1, 16, 1.5 * kTB);
  cluster.nvme_bytes = 28 * kTB;
  cluster.nvme_bytes_s = 25 * kGB;
  const Plan plan = choose(evaluator_of(megatron_shape(128, 25600, 160, 1024), cluster, 1, 16));
  CHECK(recommended(plan).setup.name() == "ZeRO-3 lean + all on nvme");
  CHECK(says(plan, "refuses nvme so far"));
}

TEST_CASE("scenario 15: 350M in fp32 on 4 nodes over 10 GbE: DDP, never ZeRO-3", "[planner]") {
  Workload workload;
  workload.precision = DType::kF32;
  Cluster cluster = cluster_of("memory=64GB,flops=1T", 4, 1);
  cluster.inter_bytes_s = 1.1 * kGB;
  const ModelShape shape = parse_model("gpt2-medium");
  const Plan plan = choose(Evaluator(shape, cluster, workload));
  CHECK(recommended(plan).setup.name() == "DDP");
  CHECK(state_bytes(recommended(plan)) / 1e9 == Approx(5.6).epsilon(0.05));
  CHECK(recommended(plan).seconds.communication == Approx(1.9).epsilon(0.05));
}

TEST_CASE("scenario 16: what fits is tried with DDP first, and the way to ZeRO-1 is shown",
          "[planner]") {
  const Plan plan = choose(Evaluator(parse_model("gpt2-xl"), cluster_of("a100-80gb", 1, 4), {}));
  CHECK(recommended(plan).setup.name() == "DDP");
  CHECK(says(plan, "\"stage\": 1"));
}

TEST_CASE("edge: a batch that the GPUs do not divide, heads that tensor cuts do not divide",
          "[planner]") {
  Workload workload;
  workload.batch = 3;
  workload.model_parallel = false;
  CHECK_THROWS_AS(choose(Evaluator(parse_model("gpt2"), cluster_of("a100-80gb", 1, 4), workload)),
                  InputError);
  // 25 heads: no power of two divides them.
  const Plan plan = choose(Evaluator(parse_model("gpt2-xl"), cluster_of("a100-80gb", 1, 8), {}));
  for (const Estimate& estimate : plan.candidates) {
    CHECK(25 % estimate.setup.tensor == 0);
  }
}

TEST_CASE("edge: 7B with frozen weights and adapters fits a 24 GB card", "[planner]") {
  ModelShape shape = sized("llama2-7b", 2048);
  shape.lora_rank = 16;
  const Plan plan = choose(evaluator_of(shape, cluster_of("rtx4090", 1, 1), 1));
  CHECK(recommended(plan).setup.name() == "DDP");
  const double states = state_bytes(recommended(plan));
  const auto params = static_cast<double>(shape.params());
  CHECK(states ==
        Approx(2 * params + 16.0 * static_cast<double>(shape.adapter_params())).epsilon(0.005));
}
