// Step times against published throughput: every row is printed with its prediction.
#include "planner/planner_support.h"
#include <support/catch.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file
using namespace zero::planner;  // NOLINT(google-build-using-namespace): test file

/// What a paper ran, and what it measured: FLOPs/s of a GPU (in 10^12) or seconds of a step.
struct Run {
  const char* gpu;
  std::int64_t gpus;
  std::int64_t per_node;
  Setup setup;
  std::int64_t batch;
  double tera = 0;
  double seconds = 0;
};

struct Errors {
  double sum = 0;
  double largest = 0;
  int rows = 0;
  [[nodiscard]] double mean() const { return sum / rows; }
};

void judge(const char* source, const ModelShape& shape, Run run, Errors& errors) {
  Setup& setup = run.setup;
  setup.data = run.gpus / (setup.tensor * setup.pipeline);
  setup.accumulation = run.batch / (setup.data * setup.micro_batch);
  Cluster cluster = cluster_of(run.gpu, run.gpus / run.per_node, run.per_node, 1.5e12);
  cluster.nvme_bytes = 28e12;
  cluster.nvme_bytes_s = 25e9;
  Workload workload;
  workload.batch = run.batch;
  const Estimate estimate = Evaluator(shape, cluster, workload).evaluate(setup);
  const double predicted = run.tera > 0 ? estimate.flops_gpu / 1e12 : estimate.seconds.total();
  const double published = run.tera > 0 ? run.tera : run.seconds;
  const double error = std::abs(predicted / published - 1.0);
  std::printf("%-34s %6.1fB %-10s x%-5lld %-24s %8.2f %s, published %8.2f: %+5.1f %%\n",
              source,
              static_cast<double>(shape.params()) / 1e9,
              run.gpu,
              static_cast<long long>(run.gpus),
              setup.name().c_str(),
              predicted,
              run.tera > 0 ? "TF" : "s ",
              published,
              100 * (predicted / published - 1.0));
  errors.sum += error;
  errors.largest = std::max(errors.largest, error);
  ++errors.rows;
}

Setup zero3(std::int64_t micro_batch) {
  Setup setup;
  setup.stage = 3;
  setup.recompute = true;
  setup.micro_batch = micro_batch;
  return setup;
}

Setup cut(std::int64_t tensor,
          std::int64_t pipeline,
          std::int64_t virtual_stages,
          std::int64_t micro_batch,
          bool recompute) {
  Setup setup;
  setup.tensor = tensor;
  setup.pipeline = pipeline;
  setup.virtual_stages = virtual_stages;
  setup.micro_batch = micro_batch;
  setup.recompute = recompute;
  return setup;
}

void judge_table_2(Errors& zero, Errors& parallel) {
  constexpr const char* kSource = "Narayanan 2021, table 2";
  const ModelShape small = megatron_shape(96, 12288, 96);
  const ModelShape large = megatron_shape(105, 20480, 128);
  struct Row {
    std::int64_t gpus, micro_batch, batch;
    double tera;
  };
  for (const Row& row : {Row{384, 4, 1536, 144}, Row{768, 2, 1536, 88}, Row{1536, 1, 1536, 44}}) {
    judge(kSource,
          small,
          {"a100-80gb", row.gpus, 8, zero3(row.micro_batch), row.batch, row.tera},
          zero);
  }
  for (const Row& row : {Row{640, 4, 2560, 138}, Row{1120, 2, 2240, 98}, Row{2240, 1, 2240, 48}}) {
    judge(kSource,
          large,
          {"a100-80gb", row.gpus, 8, zero3(row.micro_batch), row.batch, row.tera},
          zero);
  }
  for (const Row& row : {Row{384, 1, 1536, 153}, Row{768, 1, 1536, 149}, Row{1536, 1, 1536, 141}}) {
    judge(kSource,
          small,
          {"a100-80gb", row.gpus, 8, cut(8, 12, 4, 1, true), row.batch, row.tera},
          parallel);
  }
  for (const Row& row :
       {Row{560, 1, 2240, 171}, Row{1120, 1, 2240, 167}, Row{2240, 1, 2240, 159}}) {
    judge(kSource,
          large,
          {"a100-80gb", row.gpus, 8, cut(8, 35, 3, 1, true), row.batch, row.tera},
          parallel);
  }
}

void judge_weak_scaling(Errors& all) {
  struct Row {
    std::int64_t heads, hidden, layers, tensor, pipeline, gpus, batch, micro_batch, chunks;
    double tera;
  };
  for (const Row& r : {Row{24, 2304, 24, 1, 1, 32, 512, 16, 1, 137},
                       Row{32, 3072, 30, 2, 1, 64, 512, 16, 1, 138},
                       Row{32, 4096, 36, 4, 1, 128, 512, 16, 1, 142},
                       Row{48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135},
                       Row{64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138},
                       Row{80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140},
                       Row{96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148},
                       Row{128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155},
                       Row{128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163},
                       Row{160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163}}) {
    judge("Narayanan 2021, table 1",
          megatron_shape(r.layers, r.hidden, r.heads),
          {"a100-80gb",
           r.gpus,
           8,
           cut(r.tensor, r.pipeline, r.chunks, r.micro_batch, true),
           r.batch,
           r.tera},
          all);
  }
}

void judge_korthikanti(Errors& all) {
  constexpr const char* kSource = "Korthikanti 2022, table 5";
  struct Row {
    std::int64_t heads, hidden, layers, pipeline, chunks, gpus, batch, micro_batch;
    double whole, selective;
  };
  for (const Row& r : {Row{64, 6144, 48, 1, 1, 8, 4, 4, 1.42, 1.10},
                       Row{96, 12288, 96, 8, 3, 64, 64, 1, 18.13, 13.75},
                       Row{128, 20480, 105, 35, 3, 280, 280, 1, 49.05, 37.83},
                       Row{160, 25600, 128, 64, 1, 512, 512, 1, 94.42, 71.49},
                       Row{128, 20480, 105, 35, 3, 2240, 2240, 1, 50.4, 39.1}}) {
    const ModelShape shape = megatron_shape(r.layers, r.hidden, r.heads);
    for (const bool recompute : {true, false}) {
      judge(kSource,
            shape,
            {"a100-80gb",
             r.gpus,
             8,
             cut(8, r.pipeline, r.chunks, r.micro_batch, recompute),
             r.batch,
             0,
             recompute ? r.whole : r.selective},
            all);
    }
  }
}

void judge_others(Errors& all) {
  const ModelShape nlg = megatron_shape(105, 20480, 128);
  for (const auto& [gpus, tera] :
       {std::pair{2240, 126.0}, std::pair{2800, 121.0}, std::pair{3360, 113.0}}) {
    judge("Smith 2022, section 4",
          nlg,
          {"a100-80gb", gpus, 8, cut(8, 35, 1, 1, true), 1920, tera},
          all);
  }
  struct Row {
    std::int64_t hidden, layers, heads, tensor, pipeline, gpus, batch;
    double tera;
  };
  for (const Row& r : {Row{2048, 24, 16, 1, 1, 48, 192, 408.8},
                       Row{4096, 30, 32, 2, 1, 96, 192, 465.9},
                       Row{6144, 32, 48, 4, 1, 192, 192, 489.1},
                       Row{7168, 48, 56, 8, 1, 384, 192, 459.6},
                       Row{8192, 84, 64, 8, 2, 768, 384, 419.7},
                       Row{10240, 92, 80, 8, 4, 1536, 768, 420.5},
                       Row{12288, 96, 96, 8, 6, 2304, 1152, 432.8},
                       Row{16384, 96, 128, 8, 8, 3072, 1536, 474.4},
                       Row{18432, 112, 144, 8, 16, 6144, 3072, 459.9}}) {
    const std::int64_t data = r.gpus / (r.tensor * r.pipeline);
    const std::int64_t micro = std::max<std::int64_t>(1, r.pipeline > 1 ? 1 : r.batch / data);
    judge("Megatron-Core 0.8 on H100",
          megatron_shape(r.layers, r.hidden, r.heads, 4096, 131072),
          {"h100", r.gpus, 8, cut(r.tensor, r.pipeline, 1, micro, false), r.batch, r.tera},
          all);
  }
  struct Old {
    std::int64_t hidden, layers, heads, tensor;
    double v100, a100;
  };
  // Hidden, layers and heads: Shoeybi et al. 2019, table 1 (1.2, 2.5, 4.2 and 8.3 billion).
  for (const Old& r : {Old{1536, 40, 16, 1, 1.121, 1.076},
                       Old{1920, 54, 20, 2, 1.093, 1.026},
                       Old{2304, 64, 24, 4, 1.238, 1.162},
                       Old{3072, 72, 32, 8, 1.407, 1.343}}) {
    const ModelShape shape = megatron_shape(r.layers, r.hidden, r.heads, 1024);
    judge("Megatron-LM 2020",
          shape,
          {"v100-32gb", r.tensor, r.tensor, cut(r.tensor, 1, 1, 8, true), 8, 0, r.v100},
          all);
    judge("Megatron-LM 2020",
          shape,
          {"a100-40gb", r.tensor, r.tensor, cut(r.tensor, 1, 1, 16, true), 16, 0, r.a100},
          all);
  }
}

void judge_infinity(Errors& all) {
  struct Row {
    std::int64_t layers, hidden, heads, gpus, micro_batch;
    Offload params, optimizer;
    double tera;
  };
  // Batch a GPU and homes: Rajbhandari et al. 2021, table 1.
  for (const Row& r : {Row{50, 4096, 16, 16, 8, Offload::kNone, Offload::kNone, 45},
                       Row{62, 8192, 32, 16, 26, Offload::kCpu, Offload::kNvme, 44},
                       Row{125, 8192, 32, 16, 24, Offload::kCpu, Offload::kNvme, 41},
                       Row{124, 18432, 144, 16, 8, Offload::kNvme, Offload::kNvme, 33},
                       Row{128, 25600, 256, 16, 7, Offload::kNvme, Offload::kNvme, 27},
                       Row{124, 18432, 144, 512, 7, Offload::kNone, Offload::kNone, 46},
                       Row{128, 25600, 256, 512, 5, Offload::kNone, Offload::kNone, 49},
                       Row{174, 49152, 512, 512, 3, Offload::kNvme, Offload::kNvme, 44},
                       Row{200, 65536, 512, 512, 2, Offload::kNvme, Offload::kNvme, 43}}) {
    Setup setup = zero3(r.micro_batch);
    setup.offload_param = r.params;
    setup.offload_optimizer = r.optimizer;
    judge("Rajbhandari 2021, figures 5 and 6",
          megatron_shape(r.layers, r.hidden, r.heads, 1024),
          {"v100-32gb", r.gpus, 16, setup, r.gpus * r.micro_batch, r.tera},
          all);
  }
}

}  // namespace

TEST_CASE("throughput: within 10 % of ZeRO-3 and tensor x pipeline runs, 15 % on the mean",
          "[planner]") {
  Errors zero;
  Errors parallel;
  judge_table_2(zero, parallel);
  Errors others;
  judge_weak_scaling(others);
  judge_korthikanti(others);
  judge_others(others);
  judge_infinity(others);
  CHECK(zero.rows == 6);
  CHECK(zero.largest <= 0.10);
  CHECK(parallel.rows == 6);
  CHECK(parallel.largest <= 0.10);
  Errors all{zero.sum + parallel.sum + others.sum,
             std::max({zero.largest, parallel.largest, others.largest}),
             zero.rows + parallel.rows + others.rows};
  std::printf("%d rows, mean absolute error %.1f %%, largest %.1f %%\n",
              all.rows,
              100 * all.mean(),
              100 * all.largest);
  CHECK(all.mean() <= 0.15);
}
