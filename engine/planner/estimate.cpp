#include "engine/planner/text.h"
#include <zero/engine/planner.h>

#include <fmt/format.h>

#include <algorithm>

namespace zero::planner {
namespace {

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

InfinityNeeds infinity_needs(const ModelShape& shape,
                             std::int64_t micro_batch,
                             std::int64_t gpus_per_node) {
  constexpr double kStateBytes = 20;
  const auto hidden = static_cast<double>(shape.hidden);
  const auto layers = static_cast<double>(shape.layers);
  const auto tokens = static_cast<double>(micro_batch * shape.sequence);
  const auto gpus = static_cast<double>(gpus_per_node);
  InfinityNeeds needs;
  needs.state_bytes = kStateBytes * static_cast<double>(shape.params());
  needs.working_state_bytes = 4 * hidden * static_cast<double>(shape.ffn);
  needs.working_activation_bytes =
      tokens * (16 * hidden + 2 * static_cast<double>(shape.heads * shape.sequence));
  needs.activation_bytes = gpus * layers * needs.working_activation_bytes;
  needs.checkpoint_bytes = gpus * layers * 2 * tokens * hidden;
  return needs;
}

Intensities intensities(const ModelShape& shape, std::int64_t micro_batch) {
  const auto tokens = static_cast<double>(micro_batch * shape.sequence);
  return {tokens, tokens / 4, 24 * static_cast<double>(shape.hidden)};
}

double efficiency(double flops_per_byte, double bytes_s, double peak_flops) {
  return flops_per_byte * bytes_s / (flops_per_byte * bytes_s + peak_flops);
}

namespace {

std::string infinity_text(const Evaluator& evaluator) {
  const Cluster& cluster = evaluator.cluster();
  const std::int64_t micro = std::max<std::int64_t>(1, evaluator.workload().micro_batch);
  const InfinityNeeds needs = infinity_needs(evaluator.shape(), micro, cluster.gpus_per_node);
  std::string text = fmt::format(
      "ZeRO-Infinity's requirements, micro-batch {}, a checkpoint each layer (GiB):\n"
      "{:>9.2f}   states of the model\n{:>9.2f}   activations of a node, kept whole\n"
      "{:>9.2f}   activation checkpoints of a node\n{:>9.2f}   working memory of a GPU: states\n"
      "{:>9.2f}   working memory of a GPU: activations\n",
      micro,
      needs.state_bytes / kGiB,
      needs.activation_bytes / kGiB,
      needs.checkpoint_bytes / kGiB,
      needs.working_state_bytes / kGiB,
      needs.working_activation_bytes / kGiB);
  const Intensities flops = intensities(evaluator.shape(), micro);
  const double reached = cluster.gpu.zero_flops;
  constexpr double kWanted = 0.9;
  text +=
      fmt::format("bandwidth of each GPU for {:.0f} % of {:.0f} TFLOPs/s, if nothing overlaps:\n",
                  100 * kWanted,
                  reached / 1e12);
  for (const auto& [what, intensity] :
       {std::pair{"parameters and gradients", flops.params_and_grads},
        std::pair{"optimizer states", flops.optimizer_states},
        std::pair{"activation checkpoints", flops.checkpoints}}) {
    text += fmt::format(
        "{:>9.1f}   GB/s of {}\n", kWanted / (1 - kWanted) * reached / intensity / 1e9, what);
  }
  const double there = cluster.nodes > 1 ? std::min(cluster.inter_bytes_s, cluster.gpu.node_bytes_s)
                                         : cluster.gpu.node_bytes_s;
  return text + fmt::format("parameters and gradients at {:.1f} GB/s: {:.0f} %\n",
                            there / 1e9,
                            100 * efficiency(flops.params_and_grads, there, reached));
}

}  // namespace

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
  return text + infinity_text(evaluator);
}

}  // namespace zero::planner
