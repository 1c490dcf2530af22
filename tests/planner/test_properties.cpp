// What holds for any model and cluster, and what is refused.
#include "planner/planner_support.h"
#include <support/catch.h>
#include <zero/core/error.h>

#include <chrono>
#include <cmath>
#include <random>
#include <string>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file
using namespace zero::planner;  // NOLINT(google-build-using-namespace): test file

bool sane(const Estimate& estimate) {
  const Seconds& s = estimate.seconds;
  bool good = estimate.nvme_bytes >= 0 && estimate.tokens_s > 0 &&
              std::isfinite(estimate.tokens_s) && estimate.utilisation > 0 &&
              estimate.utilisation < 1;
  for (const double part : {s.compute,
                            s.bubble,
                            s.communication,
                            s.communication_exposed,
                            s.copies,
                            s.copies_exposed,
                            s.io,
                            s.io_exposed,
                            s.update}) {
    good = good && part >= 0 && std::isfinite(part);
  }
  for (std::size_t category = 0; category < kCategories; ++category) {
    good = good && estimate.device[category] >= 0 && estimate.host[category] >= 0;
  }
  return good && s.compute > 0;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("sweep: to 100,000 GPUs and 10 trillion parameters in under a second", "[planner]") {
  const auto start = std::chrono::steady_clock::now();
  for (const char* model : {"125M", "7B", "175B", "1T", "10T"}) {
    for (const std::int64_t gpus : {1, 8, 64, 1'024, 16'384, 100'000}) {
      Cluster cluster =
          cluster_of("a100-80gb", std::max<std::int64_t>(1, gpus / 8), gpus < 8 ? 1 : 8);
      cluster.host_bytes = 1e12;
      cluster.nvme_bytes = 28e12;
      cluster.nvme_bytes_s = 25e9;
      const Plan plan = choose(Evaluator(parse_model(model), cluster, {}));
      for (const Estimate& estimate : plan.candidates) {
        INFO(model << " on " << gpus << ": " << estimate.setup.name());
        CHECK(sane(estimate));
      }
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  WARN("30 plans took " << took.count() << " s");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(took.count() < 1.0);
#endif
}

TEST_CASE("memory of a rank never grows with the number of ranks", "[planner]") {
  for (const char* model : {"gpt2", "7B", "175B", "10T"}) {
    for (const int stage : {0, 1, 2, 3}) {
      double before = INFINITY;
      for (std::int64_t ranks = 1; ranks <= 65'536; ranks *= 2) {
        Workload workload;
        workload.micro_batch = 1;
        Setup setup;
        setup.stage = stage;
        setup.data = ranks;
        const Evaluator evaluator(parse_model(model), cluster_of("h100", ranks, 1), workload);
        const double bytes = evaluator.evaluate(setup).device_bytes();
        INFO(model << ", stage " << stage << ", " << ranks << " ranks");
        // From 1 rank to 2 buckets appear. Each unit is padded to a whole block of 64 elements a
        // rank, which whole states of small models feel on thousands of ranks.
        const double padding =
            64.0 * 20 * static_cast<double>(3 * evaluator.shape().layers + 3) *
            (stage == 0 ? static_cast<double>(ranks) : static_cast<double>(ranks) / 4 + 1);
        CHECK((ranks <= 2 || bytes <= before + padding));
        before = bytes;
      }
    }
  }
}

TEST_CASE("memory of a rank never grows with the stage, apart from what gathers and reduces",
          "[planner]") {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const auto pick = [&](std::int64_t from, std::int64_t to) {
      return std::uniform_int_distribution<std::int64_t>(from, to)(random);
    };
    const ModelShape shape =
        megatron_shape(pick(1, 60), 64 * pick(1, 100), 1 << pick(0, 6), 128 * pick(1, 32));
    const Evaluator evaluator(shape, cluster_of("a100-80gb", pick(1, 300), 1 << pick(0, 4)), {});
    double before = INFINITY;
    for (const int stage : {0, 1, 2, 3}) {
      Setup setup;
      setup.stage = stage;
      setup.data = evaluator.cluster().gpus();
      const double bytes = state_bytes(evaluator.evaluate(setup));
      // Whole blocks of 64 elements a rank and parameter that stays whole.
      const double slack = 200.0 * 1024 * static_cast<double>(shape.layers) +
                           64.0 * 16 * static_cast<double>(setup.data);
      CHECK(bytes <= before + (stage == 0 ? 0 : slack));
      before = bytes;
    }
  }
}

TEST_CASE("more bandwidth never makes a step longer", "[planner]") {
  for (const double factor : {1.5, 4.0}) {
    const Cluster slow = cluster_of("a100-80gb", 8, 8, 1e12);
    Cluster fast = slow;
    fast.inter_bytes_s *= factor;
    fast.gpu.node_bytes_s *= factor;
    fast.gpu.host_bytes_s *= factor;
    const Plan before = choose(Evaluator(parse_model("13B"), slow, {}));
    const Plan after = choose(Evaluator(parse_model("13B"), fast, {}));
    for (const Estimate& was : before.candidates) {
      for (const Estimate& is : after.candidates) {
        if (is.setup.name() == was.setup.name() && is.setup.recompute == was.setup.recompute) {
          CHECK(is.seconds.total() <= was.seconds.total() * (1 + 1e-9));
        }
      }
    }
  }
}

TEST_CASE("nonsense gets one clear line", "[planner]") {
  const auto one_line = [](const std::string& message) {
    return !message.empty() && message.find('\n') == std::string::npos;
  };
  for (const char* model : {"1e30",
                            "-7B",
                            "0",
                            "nan",
                            "",
                            "layers=0,hidden=8",
                            "layers=2",
                            "layers=2,hidden=100,heads=7",
                            "layers=2,hidden=64,colour=3",
                            "layers=99999999999999999999,hidden=64",
                            "llama9-1b",
                            "layers=16777216,hidden=16777216"}) {
    INFO(model);
    CHECK(one_line(message_of([&] { (void)parse_model(model); })));
  }
  for (const char* gpu : {"",
                          "a100",
                          "memory=80GB",
                          "memory=-80GB,flops=1T",
                          "memory=80,flops=1T",
                          "memory=80GB,flops=1",
                          "flops=1T,memory=80GB,x=1"}) {
    INFO(gpu);
    CHECK(one_line(message_of([&] { (void)parse_gpu(gpu); })));
  }
  for (const char* size : {"", "GB", "-1GB", "12", "1XB", "1e400GB"}) {
    INFO(size);
    CHECK(one_line(message_of([&] { (void)parse_bytes(size, "--cpu-memory"); })));
  }
  for (const auto& [nodes, gpus] :
       {std::pair{0, 8}, std::pair{1, 0}, std::pair{-1, 8}, std::pair{2'000'000, 8}}) {
    INFO(nodes << " x " << gpus);
    CHECK(one_line(message_of(
        [&, nodes = nodes, gpus = gpus] { check_cluster(cluster_of("h100", nodes, gpus)); })));
  }
  CHECK(message_of([] {
          (void)parse_model("layers=2,hidden=100,heads=7");
        }).find("7 heads do not divide") != std::string::npos);
}

TEST_CASE("sizes: decimal and binary units, bits", "[planner]") {
  CHECK(parse_bytes("80GB", "") == 80e9);
  CHECK(parse_bytes("1.5TiB", "") == 1.5 * 1024 * kGiB);
  CHECK(parse_bytes("200Gb", "") == 25e9);
  CHECK(parse_bytes("25GB/s", "") == 25e9);
}
