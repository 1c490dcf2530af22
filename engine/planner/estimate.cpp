#include <zero/engine/planner.h>

#include <fmt/format.h>

#include <algorithm>

namespace zero::planner {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
/// DeepSpeed's allowance for buffers in host memory.
constexpr double kHostFactor = 1.5;

/// The largest module that has parameters of its own, as DeepSpeed looks for it: one matrix.
double largest_layer(const ModelShape& shape) {
  const std::int64_t queries = shape.heads * shape.head_size;
  const std::int64_t keys = shape.kv_heads * shape.head_size;
  return static_cast<double>(std::max({shape.vocabulary * shape.hidden,
                                       shape.ffn * shape.hidden,
                                       (queries + 2 * keys) * shape.hidden}));
}

}  // namespace

std::vector<DeepSpeedNeed> deepspeed_needs(int stage,
                                           double params,
                                           double largest_layer,
                                           std::int64_t gpus_per_node,
                                           std::int64_t nodes) {
  const auto per_node = static_cast<double>(gpus_per_node);
  const auto node_count = static_cast<double>(nodes);
  const double gpus = per_node * node_count;
  if (stage == 2) {
    return {{"offload_optimizer=cpu", params * std::max(4 * gpus, 16.0) * kHostFactor, 2 * params},
            {"offload_optimizer=none",
             params * 4 * per_node * kHostFactor,
             2 * params + 18 * params / gpus}};
  }
  const double live = 4 * largest_layer;  // one layer's 16-bit parameters and gradients
  const auto host = [&](double bytes_param, bool zero_init) {
    const double share = bytes_param / node_count;
    return params * (zero_init ? share : std::max(4 * per_node, share)) * kHostFactor;
  };
  std::vector<DeepSpeedNeed> needs;
  for (const bool zero_init : {true, false}) {
    const std::string init = zero_init ? ", zero_init=1" : ", zero_init=0";
    needs.push_back({"offload_param=cpu, offload_optimizer=cpu" + init, host(18, zero_init), live});
    needs.push_back({"offload_param=none, offload_optimizer=cpu" + init,
                     host(16, zero_init),
                     live + 2 * params / gpus});
    needs.push_back({"offload_param=none, offload_optimizer=none" + init,
                     (zero_init ? largest_layer : params) * 4 * per_node * kHostFactor,
                     live + 18 * params / gpus});
  }
  return needs;
}

std::string estimate_text(const Evaluator& evaluator) {
  const ModelShape& shape = evaluator.shape();
  const Cluster& cluster = evaluator.cluster();
  const auto params = static_cast<double>(shape.params());
  std::string text;
  for (const int stage : {2, 3}) {
    text += fmt::format(
        "Estimated memory needed for params, optim states and gradients for a:\n"
        "HW: Setup with {} node{}, {} GPU{} per node.\n"
        "SW: Model with {:.0f}M total params{}.\n"
        "  per CPU  |  per GPU |   Options (ZeRO-{}; the estimator prints GiB)\n",
        cluster.nodes,
        cluster.nodes == 1 ? "" : "s",
        cluster.gpus_per_node,
        cluster.gpus_per_node == 1 ? "" : "s",
        params / 1e6,
        stage == 3 ? fmt::format(", {:.0f}M largest layer params", largest_layer(shape) / 1e6) : "",
        stage);
    for (const DeepSpeedNeed& need : deepspeed_needs(
             stage, params, largest_layer(shape), cluster.gpus_per_node, cluster.nodes)) {
      text += fmt::format("{:>9.2f}GB | {:>6.2f}GB | {}\n",
                          need.host_bytes / kGiB,
                          need.gpu_bytes / kGiB,
                          need.options);
    }
    text += "this engine, states and buffers alone, exactly:\n";
    for (const auto& [optimizer, param] : {std::pair{Offload::kCpu, Offload::kCpu},
                                           std::pair{Offload::kCpu, Offload::kNone},
                                           std::pair{Offload::kNone, Offload::kNone}}) {
      if (param != Offload::kNone && stage != 3) {
        continue;
      }
      Setup setup;
      setup.stage = stage;
      setup.offload_optimizer = optimizer;
      setup.offload_param = param;
      setup.data = cluster.gpus();
      const Estimate estimate = evaluator.evaluate(setup);
      const auto without = [&](Category category) {
        return static_cast<double>(estimate.device.at(static_cast<std::size_t>(category)));
      };
      text += fmt::format(
          "{:>9.2f}GB | {:>6.2f}GB | {}\n",
          estimate.host_bytes() / kGiB,
          (estimate.device_bytes() - without(Category::kActivations) - without(Category::kOther)) /
              kGiB,
          setup.name());
    }
    text += "\n";
  }
  return text;
}

}  // namespace zero::planner
