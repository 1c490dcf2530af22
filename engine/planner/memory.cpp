#include <zero/core/error.h>
#include <zero/core/round_up.h>
#include <zero/engine/planner.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace zero::planner {
namespace {

/// CUDA context, NCCL's buffers and what libraries keep, a rank.
constexpr double kFixedBytes = 1.5 * 1024 * 1024 * 1024;
/// Of the device; what is above is called tight.
constexpr double kTight = 0.95;
/// Pinned buffers between NVMe and the update, of kNvmeTileElems elements in fp32.
constexpr std::int64_t kNvmeTiles = 3 * 3;
constexpr std::int64_t kNvmeTileElems = std::int64_t{1} << 24;
/// Units that are read from NVMe ahead.
constexpr std::int64_t kNvmeUnits = 3;

/// A node of the module tree that declares parameters and runs nothing.
class Node : public Module {
 public:
  Node(std::string name, bool frozen) : Module(std::move(name)), frozen_(frozen) {}
  std::shared_ptr<Parameter> declare(const std::string& suffix, Shape shape) {
    auto parameter = declare_adapter(suffix, shape);
    parameter->info.trainable = !frozen_;
    return parameter;
  }
  /// Trainable in any case.
  std::shared_ptr<Parameter> declare_adapter(const std::string& suffix, Shape shape) {
    return add_parameter(suffix, shape, Init::constant(0.0F));
  }
  void share(std::shared_ptr<Parameter> parameter) { share_parameter(std::move(parameter)); }
  Node& child(const std::string& name) {
    children_.push_back(std::make_unique<Node>(name, frozen_));
    add_child(*children_.back());
    return *children_.back();
  }

 private:
  bool frozen_;
  std::vector<std::unique_ptr<Node>> children_;
};

void declare_norm(Node& node, const std::string& name, const ModelShape& shape) {
  node.declare(name + ".weight", Shape{shape.hidden});
  if (shape.biases) {
    node.declare(name + ".bias", Shape{shape.hidden});
  }
}

void declare_matrix(Node& node,
                    const std::string& name,
                    std::int64_t in,
                    std::int64_t out,
                    const ModelShape& shape) {
  node.declare(name + ".weight", Shape{in, out});
  if (shape.biases) {
    node.declare(name + ".bias", Shape{out});
  }
  if (shape.lora_rank > 0) {
    node.declare_adapter(name + ".lora_a", Shape{in, shape.lora_rank});
    node.declare_adapter(name + ".lora_b", Shape{shape.lora_rank, out});
  }
}

/// Layers with more parameters are three units, attention and the MLP's two halves, so that less is
/// gathered at once.
constexpr std::int64_t kLargestBlock = 4'000'000'000;

void declare_block(Node& block, const ModelShape& shape) {
  const std::int64_t queries = shape.heads * shape.head_size;
  const std::int64_t keys = shape.kv_heads * shape.head_size;
  Node& attention = block.child(block.name() + ".attention");
  declare_norm(attention, "norm", shape);
  declare_matrix(attention, "qkv", shape.hidden, queries + 2 * keys, shape);
  declare_matrix(attention, "out", queries, shape.hidden, shape);
  Node& up = block.child(block.name() + ".mlp_up");
  declare_norm(up, "norm", shape);
  declare_matrix(up, "matrix", shape.hidden, (shape.gated ? 2 : 1) * shape.ffn, shape);
  Node& down = block.child(block.name() + ".mlp_down");
  declare_matrix(down, "matrix", shape.ffn, shape.hidden, shape);
  if (shape.layer_params() > kLargestBlock) {
    attention.set_block();
    up.set_block();
    down.set_block();
  } else {
    block.set_block();
  }
}

/// The module tree that a model of this shape has, in the order in which nn::Gpt declares it.
std::unique_ptr<Module> make_tree(const ModelShape& shape) {
  auto root = std::make_unique<Node>("model", shape.lora_rank > 0);
  Node& embedding = root->child("embedding");
  const auto table = embedding.declare("tokens", Shape{shape.vocabulary, shape.hidden});
  if (shape.positions > 0) {
    embedding.declare("positions", Shape{shape.positions, shape.hidden});
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    declare_block(root->child("h." + std::to_string(layer)), shape);
  }
  declare_norm(root->child("norm"), "f", shape);
  Node& head = root->child("head");
  if (shape.tied) {
    head.share(table);
  } else {
    head.declare("weight", Shape{shape.vocabulary, shape.hidden});
  }
  return root;
}

std::int64_t& in(PlannedBytes& bytes, Category category) {
  return bytes.at(static_cast<std::size_t>(category));
}

double sum(const PlannedBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), 0.0, [](double total, std::int64_t part) {
    return total + static_cast<double>(part);
  });
}

/// What the engine's plan keeps in host memory because of nvme, moved to the disk, with the pinned
/// buffers that stand in for it. All for one rank.
void move_to_nvme(const StatePlan& plan, const Setup& setup, Estimate& estimate) {
  const auto move = [&](Category category) {
    estimate.nvme_bytes += std::exchange(in(estimate.host, category), 0);
  };
  std::int64_t buffers = 0;
  if (setup.offload_optimizer == Offload::kNvme) {
    move(Category::kMaster);
    move(Category::kMoments);
    std::int64_t owned = 0;
    for (const Flat& flat : plan.flats) {
      owned += flat.trainable ? flat.slice_elems : 0;
    }
    buffers += std::min(owned, kNvmeTileElems) * kNvmeTiles * 4;
  }
  if (setup.offload_param == Offload::kNvme) {
    move(Category::kParameters);
    move(Category::kGradients);
    std::int64_t largest = 0;
    for (const Flat& flat : plan.flats) {
      largest = std::max(largest, flat.slice_elems);
    }
    buffers += largest * kNvmeUnits * 2 * static_cast<std::int64_t>(dtype_size(plan.model_dtype));
  }
  in(estimate.host, Category::kPinned) += buffers;
}

/// Tensor × pipeline × data with the optimizer cut over the data-parallel ranks (Megatron-LM's
/// distributed optimizer: bf16 parameters, fp32 gradients), the first stage of 1F1B.
void count_model_parallel(const ModelShape& shape, const Workload& workload, Estimate& estimate) {
  const Setup& setup = estimate.setup;
  const std::int64_t layers = (shape.layers + setup.pipeline - 1) / setup.pipeline;
  const std::int64_t params =
      (layers * shape.layer_params() + shape.vocabulary * shape.hidden) / setup.tensor;
  in(estimate.device, Category::kParameters) = 2 * params;
  in(estimate.device, Category::kGradients) = 4 * params;
  in(estimate.device, Category::kMaster) = 4 * params / setup.data;
  in(estimate.device, Category::kMoments) = 8 * params / setup.data;
  const double tokens = static_cast<double>(setup.micro_batch * shape.sequence);
  ActivationScheme scheme{.tensor = setup.tensor,
                          .sequence_parallel = true,
                          .attention_matrix = workload.attention_matrix};
  const double layer = layer_activation_bytes(shape, setup.micro_batch, scheme);
  scheme.recompute = setup.recompute;
  const double kept = layer_activation_bytes(shape, setup.micro_batch, scheme);
  const double alive = static_cast<double>(std::min(setup.pipeline, setup.accumulation));
  const double interleaved =
      setup.virtual_stages > 1
          ? 1.0 + static_cast<double>(setup.pipeline - 1) /
                      static_cast<double>(setup.pipeline * setup.virtual_stages)
          : 1.0;
  const double head = setup.pipeline > 1 ? 0.0
                                         : 8.0 * tokens * static_cast<double>(shape.vocabulary) /
                                               static_cast<double>(setup.tensor);
  in(estimate.device, Category::kActivations) =
      std::llround(kept * static_cast<double>(layers) * alive * interleaved +
                   (setup.recompute ? layer : 0.0) + head);
}

void judge(Estimate& estimate, const Cluster& cluster) {
  struct Need {
    const char* what;
    double missing;
    double share;
  };
  const auto need = [](const char* what, double bytes, double there) {
    return Need{what, bytes - there, bytes / std::max(1.0, there)};
  };
  const Need device = need("device", estimate.device_bytes(), cluster.gpu.memory_bytes);
  std::vector<Need> needs = {device};
  if (estimate.host_bytes() > 0 && cluster.host_bytes > 0) {
    needs.push_back(need("host", estimate.host_bytes(), cluster.host_bytes));
  }
  if (estimate.nvme_bytes > 0) {
    needs.push_back(need("NVMe", static_cast<double>(estimate.nvme_bytes), cluster.nvme_bytes));
  }
  const Need worst = *std::max_element(
      needs.begin(), needs.end(), [](const Need& a, const Need& b) { return a.share < b.share; });
  estimate.scarce = worst.what;
  estimate.shortfall_bytes = worst.missing;
  estimate.tight = device.share > kTight;
}

}  // namespace

double Estimate::device_bytes() const {
  return sum(device);
}

double Estimate::host_bytes() const {
  return sum(host);
}

double layer_activation_bytes(const ModelShape& shape,
                              std::int64_t micro_batch,
                              const ActivationScheme& scheme) {
  const double elems =
      static_cast<double>(micro_batch * shape.sequence) * static_cast<double>(shape.hidden);
  const auto tensor = static_cast<double>(scheme.tensor);
  if (scheme.recompute) {
    return 2.0 * elems / (scheme.sequence_parallel ? tensor : 1.0);
  }
  const double matrix = scheme.attention_matrix
                            ? 5.0 * static_cast<double>(shape.heads * shape.sequence) /
                                  static_cast<double>(shape.hidden)
                            : 0.0;
  return scheme.sequence_parallel ? elems / tensor * (34.0 + matrix)
                                  : elems * (10.0 + (24.0 + matrix) / tensor);
}

double activation_bytes(const ModelShape& shape,
                        std::int64_t micro_batch,
                        bool recompute,
                        const Workload& workload) {
  // Formulas are for 16 bits. Logits and their gradient are fp32 in any case.
  const double width = workload.precision == DType::kF32 ? 2.0 : 1.0;
  const double tokens = static_cast<double>(micro_batch * shape.sequence);
  const double layer =
      layer_activation_bytes(shape, micro_batch, {.attention_matrix = workload.attention_matrix});
  const double kept = layer_activation_bytes(
      shape, micro_batch, {.attention_matrix = workload.attention_matrix, .recompute = recompute});
  const double head = 4.0 * tokens * static_cast<double>(shape.hidden);
  return width * (static_cast<double>(shape.layers) * kept + (recompute ? layer : 0.0) + head) +
         8.0 * tokens * static_cast<double>(shape.vocabulary);
}

Evaluator::Evaluator(ModelShape shape, Cluster cluster, Workload workload)
    : shape_(std::move(shape)), cluster_(std::move(cluster)), workload_(workload) {
  check_shape(shape_);
  check_cluster(cluster_);
  model_ = make_tree(shape_);
}

Evaluator::~Evaluator() = default;

const StatePlan& Evaluator::plan_of(const Setup& setup) const {
  // Neither batch nor recomputation changes where states live, nor does nvme here.
  const std::array key = {setup.stage,
                          static_cast<int>(setup.offload_optimizer != Offload::kNone),
                          static_cast<int>(setup.offload_param != Offload::kNone),
                          static_cast<int>(setup.lean)};
  auto there = plans_.find(key);
  if (there == plans_.end()) {
    there = plans_
                .emplace(key,
                         zero::make_plan(*model_,
                                         config_of(setup, shape_, workload_),
                                         {},
                                         static_cast<int>(cluster_.gpus())))
                .first;
  }
  return there->second;
}

void Evaluator::count_states(Estimate& estimate, const config::Config* base) const {
  const Setup& setup = estimate.setup;
  if (setup.model_parallel()) {
    count_model_parallel(shape_, workload_, estimate);
  } else {
    const StatePlan& plan =
        base == nullptr ? plan_of(setup)
                        : zero::make_plan(*model_, *base, {}, static_cast<int>(cluster_.gpus()));
    estimate.device = plan.bytes;
    estimate.host = plan.host_bytes;
    move_to_nvme(plan, setup, estimate);
    std::int64_t& activations = in(estimate.device, Category::kActivations);
    activations =
        std::llround(activation_bytes(shape_, setup.micro_batch, setup.recompute, workload_));
    if (base != nullptr && base->activation_checkpointing.cpu_checkpointing) {
      const std::int64_t inputs = shape_.layers * setup.micro_batch * shape_.sequence *
                                  shape_.hidden *
                                  static_cast<std::int64_t>(dtype_size(workload_.precision));
      in(estimate.host, Category::kActivations) += inputs;
      activations -= inputs;
    }
    for (std::int64_t& bytes : estimate.host) {
      bytes *= cluster_.gpus_per_node;
    }
    estimate.nvme_bytes *= cluster_.gpus_per_node;
  }
  in(estimate.device, Category::kOther) += std::llround(kFixedBytes);
  judge(estimate, cluster_);
}

}  // namespace zero::planner
