#include <zero/engine/planner.h>

#include <algorithm>
#include <cmath>

namespace zero::planner {
namespace {

/// Of backward, what communication and copies can hide behind: the first bucket has nothing to run
/// beside.
constexpr double kOverlap = 0.9;
/// Of what pipeline stages send to each other.
constexpr double kPipelineExposed = 0.1;
/// fp32 Adam of a billion parameters on a node's processors (Ren et al. 2021, table 4).
constexpr double kCpuAdamSeconds = 0.26e-9;
/// Of the 16-bit FLOPs/s: TF32 products of fp32 values (NVIDIA A100 data sheet: 156 of 312).
constexpr double kFp32Share = 0.5;
/// Bytes that an update reads and writes for each parameter.
constexpr double kUpdateBytes = 30;

double real(std::int64_t value) {
  return static_cast<double>(value);
}

/// FLOPs of one sample, forward and backward, with `attended` of the attention matrix computed.
/// Recomputation runs the layers' forward again.
double sample_flops(const ModelShape& shape, double attended, bool recompute) {
  const double tokens = real(shape.sequence);
  const double head = 2.0 * real(shape.vocabulary * shape.hidden);
  const double layers =
      2.0 * real(shape.layers * shape.layer_params()) +
      4.0 * attended * tokens * real(shape.layers * shape.heads * shape.head_size);
  const double passes = shape.lora_rank > 0 ? 2.0 : 3.0;  // frozen weights need no gradient
  return tokens * (passes * head + (recompute ? passes + 1.0 : passes) * layers);
}

constexpr double kCausal = 0.5;  ///< of the attention matrix
constexpr double kWhole = 1.0;   ///< as papers count it

/// Seconds of an all-gather or reduce-scatter of `bytes` in all over `ranks` (ring).
double ring(double bytes, std::int64_t ranks, double bytes_s) {
  return bytes * real(ranks - 1) / real(ranks) / bytes_s;
}

double rank_bytes_s(const Cluster& cluster, bool leaves_node) {
  return leaves_node && cluster.nodes > 1
             ? std::min(cluster.gpu.node_bytes_s, cluster.inter_bytes_s)
             : cluster.gpu.node_bytes_s;
}

double reached_flops(double flops, const Workload& workload) {
  return workload.precision == DType::kF32 ? kFp32Share * flops : flops;
}

struct Times {
  const ModelShape& shape;
  const Cluster& cluster;
  const Workload& workload;
  const Setup& setup;
  double batch;
  double params;
  double trainable;
};

/// Offload: gradients leave during backward, parameters return after the update, and what lives on
/// NVMe is read and written meanwhile.
void time_offload(const Times& in, double backward, Seconds& seconds) {
  const double own = in.trainable / real(in.cluster.gpus());
  const double node = in.trainable / real(in.cluster.nodes);
  const double whole = in.params / real(in.cluster.gpus());
  const double rounds = real(in.setup.accumulation);
  const double host = in.cluster.gpu.host_bytes_s;
  if (in.setup.offload_optimizer == Offload::kNone) {
    seconds.update =
        kUpdateBytes * (in.setup.stage == 0 ? in.trainable : own) / in.cluster.gpu.hbm_bytes_s;
    return;
  }
  const double out = 2.0 * own * rounds / host;
  const bool params_on_device = in.setup.offload_param == Offload::kNone;
  const double back = params_on_device ? 2.0 * own / host : 0.0;
  // Parameters that live elsewhere come in for each pass, beside the computation.
  const double gathers = params_on_device ? 0.0 : 4.0 * whole * rounds / host;
  seconds.copies = out + back + gathers;
  seconds.update = kCpuAdamSeconds * node;
  // Updated tiles return while later ones are in the update.
  seconds.copies_exposed =
      std::max(0.0, back - seconds.update) +
      std::max(0.0, out + gathers - kOverlap * (params_on_device ? backward : seconds.compute));
  double disk_update = 0;  // bytes during the update
  double disk_passes = 0;  // bytes during forward and backward
  if (in.setup.offload_optimizer == Offload::kNvme) {
    disk_update += 24.0 * node;
  }
  if (in.setup.offload_param == Offload::kNvme) {
    disk_update += 4.0 * node;                   // new parameters out, gradients in
    disk_passes += (4.0 + 2.0) * node * rounds;  // parameters twice, gradients out
  }
  if (disk_update + disk_passes > 0) {
    const double update = disk_update / in.cluster.nvme_bytes_s;
    const double passes = disk_passes / in.cluster.nvme_bytes_s;
    seconds.io = update + passes;
    seconds.io_exposed =
        std::max(0.0, update - seconds.update) + std::max(0.0, passes - kOverlap * seconds.compute);
  }
}

void time_data_parallel(const Times& in, Seconds& seconds) {
  const std::int64_t ranks = in.cluster.gpus();
  const Setup& setup = in.setup;
  seconds.compute =
      in.batch / real(ranks) * sample_flops(in.shape, kCausal, setup.recompute) /
      reached_flops(setup.stage == 0 ? in.cluster.gpu.plain_flops : in.cluster.gpu.zero_flops,
                    in.workload);
  const double backward = seconds.compute * (setup.recompute ? 3.0 / 4.0 : 2.0 / 3.0);
  const auto width = static_cast<double>(dtype_size(in.workload.precision));
  const double rounds = real(setup.accumulation);
  // Stages 0 and 1 reduce once a step, 2 and 3 each micro-batch (docs/ARCHITECTURE.md).
  const double elems = setup.stage <= 1   ? 2.0 * in.trainable
                       : setup.stage == 2 ? (rounds + 1.0) * in.trainable
                                          : rounds * (2.0 * in.params + in.trainable);
  seconds.communication = ring(elems * width, ranks, rank_bytes_s(in.cluster, true));
  const double hides = setup.lean ? 0.0 : setup.stage == 3 ? seconds.compute : kOverlap * backward;
  seconds.communication_exposed = std::max(0.0, seconds.communication - hides);
  time_offload(in, backward, seconds);
}

void time_model_parallel(const Times& in, Seconds& seconds) {
  const Setup& setup = in.setup;
  const Cluster& cluster = in.cluster;
  const bool wide = in.shape.hidden >= kWideHidden;
  const double reached = reached_flops(
      wide ? cluster.gpu.parallel_flops : cluster.gpu.narrow_parallel_flops, in.workload);
  seconds.compute = in.batch * sample_flops(in.shape, kCausal, setup.recompute) /
                    (real(cluster.gpus()) * reached);
  const double micro = real(setup.accumulation);
  const double stage_layers = real(in.shape.layers) / real(setup.pipeline);
  const double layer_input =
      2.0 * real(setup.micro_batch * in.shape.sequence) * real(in.shape.hidden);  // bytes
  const double passes = setup.recompute ? 6.0 : 4.0;  // all-reduces a layer (Shoeybi et al. 2019)
  const bool in_node = setup.tensor <= cluster.gpus_per_node;
  const double tensor_s = in_node ? cluster.gpu.tensor_bytes_s : rank_bytes_s(cluster, true);
  const double tensor =
      micro * stage_layers * passes * ring(2.0 * layer_input, setup.tensor, tensor_s);
  const double idle = real(setup.pipeline - 1) / (real(setup.virtual_stages) * micro);
  const double tensor_exposed = cluster.gpu.exposed * tensor;
  seconds.bubble = (seconds.compute + tensor_exposed) * idle;
  const double stage_params = in.params / real(setup.tensor * setup.pipeline);
  const double data = ring(6.0 * stage_params, setup.data, rank_bytes_s(cluster, true));
  const double steps = setup.pipeline > 1 ? 4.0 * micro * real(setup.virtual_stages) * layer_input /
                                                real(setup.tensor) / rank_bytes_s(cluster, true)
                                          : 0.0;
  seconds.communication = tensor + data + steps;
  seconds.communication_exposed =
      tensor_exposed + cluster.gpu.exposed * data + kPipelineExposed * steps;
  seconds.update = kUpdateBytes * stage_params / real(setup.data) / cluster.gpu.hbm_bytes_s;
}

}  // namespace

std::int64_t Evaluator::batch() const {
  return workload_.batch > 0 ? workload_.batch
                             : cluster_.gpus() * std::max<std::int64_t>(1, workload_.micro_batch);
}

Estimate Evaluator::evaluate(const Setup& setup, const std::optional<config::Config>& base) const {
  Estimate estimate;
  estimate.setup = setup;
  count_states(estimate, base ? &*base : nullptr);
  const double samples = real(setup.micro_batch * setup.accumulation * setup.data);
  const Times times{shape_,
                    cluster_,
                    workload_,
                    setup,
                    samples,
                    real(shape_.params()),
                    real(shape_.trainable_params())};
  if (setup.model_parallel()) {
    time_model_parallel(times, estimate.seconds);
  } else {
    time_data_parallel(times, estimate.seconds);
  }
  const double total = estimate.seconds.total();
  const double gpus = real(cluster_.gpus());
  estimate.tokens_s = samples * real(shape_.sequence) / total;
  estimate.utilisation =
      samples * sample_flops(shape_, kCausal, false) / total / gpus / cluster_.gpu.peak_flops;
  estimate.flops_gpu = samples * sample_flops(shape_, kWhole, setup.recompute) / total / gpus;
  return estimate;
}

}  // namespace zero::planner
