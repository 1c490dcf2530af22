#pragma once

#include <zero/engine/planner.h>

#include <fmt/format.h>

namespace zero::testing {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// A decoder with `sequence` positions and tied embeddings, as Megatron-LM's tables have them.
inline planner::ModelShape megatron_shape(std::int64_t layers,
                                          std::int64_t hidden,
                                          std::int64_t heads,
                                          std::int64_t sequence = 2048,
                                          std::int64_t vocabulary = 51200) {
  return planner::parse_model(
      fmt::format("layers={},hidden={},heads={},seq={},positions={},vocab={}",
                  layers,
                  hidden,
                  heads,
                  sequence,
                  sequence,
                  vocabulary));
}

inline planner::Cluster cluster_of(const char* gpu,
                                   std::int64_t nodes,
                                   std::int64_t gpus_per_node,
                                   double host_bytes = 0) {
  planner::Cluster cluster;
  cluster.gpu = planner::parse_gpu(gpu);
  cluster.nodes = nodes;
  cluster.gpus_per_node = gpus_per_node;
  cluster.host_bytes = host_bytes;
  cluster.inter_bytes_s = cluster.gpu.inter_bytes_s;
  return cluster;
}

inline double bytes_of(const PlannedBytes& bytes, Category category) {
  return static_cast<double>(bytes.at(static_cast<std::size_t>(category)));
}

/// Parameters, gradients, master weights and moments of one rank on its device.
inline double state_bytes(const planner::Estimate& estimate) {
  return bytes_of(estimate.device, Category::kParameters) +
         bytes_of(estimate.device, Category::kGradients) +
         bytes_of(estimate.device, Category::kMaster) +
         bytes_of(estimate.device, Category::kMoments);
}

}  // namespace zero::testing
