#include "engine/planner/text.h"
#include <zero/core/error.h>
#include <zero/engine/planner.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

namespace zero::planner {
namespace {

constexpr double kGB = 1e9;
constexpr double kTera = 1e12;

/// Of peak FLOPs, for devices that nobody has published a training run of.
constexpr double kUsualEfficiency = 0.45;

struct Known {
  const char* name;
  double memory_gib, peak, plain, zero, parallel, narrow, hbm_tb, node, tensor, inter, host,
      exposed;
};

/// Usable GiB; TFLOPs: peak, then reached under DDP, ZeRO, tensor parallelism of wide and of narrow
/// models; TB/s; then GB/s: collectives in a node, tensor-parallel all-reduces, between nodes,
/// host. 0: not measured. Source of each number: docs/PLAN.md.
constexpr std::array kKnown = {
    Known{"a100-80gb", 79.1, 312, 150, 150, 168, 150, 2.0, 175, 230, 17, 24, 0.5},
    Known{"a100-40gb", 39.3, 312, 150, 150, 168, 150, 1.55, 175, 230, 17, 24, 0.5},
    Known{"h100", 79.1, 989.5, 400, 400, 440, 440, 3.35, 266, 350, 40, 48, 0.2},
    Known{"h200", 139.8, 989.5, 400, 400, 440, 440, 4.8, 266, 350, 40, 48, 0.2},
    Known{"b200", 178.0, 2250, 0, 0, 0, 0, 8.0, 530, 700, 40, 48, 0.2},
    Known{"v100-32gb", 31.5, 125, 68, 45, 68, 68, 0.9, 130, 150, 6, 12, 0.5},
    Known{"v100-16gb", 15.7, 125, 68, 45, 68, 68, 0.9, 130, 150, 6, 12, 0.5},
    Known{"rtx4090", 23.5, 165, 0, 0, 0, 0, 1.0, 12, 12, 1.1, 24, 0.5},
    Known{"rtx3090", 23.5, 71, 35, 35, 35, 35, 0.94, 12, 12, 1.1, 24, 0.5},
    Known{"l40s", 44.5, 362, 0, 0, 0, 0, 0.86, 24, 24, 2.8, 24, 0.5},
};

Gpu from_table(const Known& known) {
  Gpu gpu;
  gpu.name = known.name;
  gpu.memory_bytes = known.memory_gib * kGiB;
  gpu.peak_flops = known.peak * kTera;
  const auto reached = [&](double tera) {
    return tera > 0 ? tera * kTera : kUsualEfficiency * gpu.peak_flops;
  };
  gpu.plain_flops = reached(known.plain);
  gpu.zero_flops = reached(known.zero);
  gpu.parallel_flops = reached(known.parallel);
  gpu.narrow_parallel_flops = reached(known.narrow);
  gpu.hbm_bytes_s = known.hbm_tb * kTera;
  gpu.node_bytes_s = known.node * kGB;
  gpu.tensor_bytes_s = known.tensor * kGB;
  gpu.inter_bytes_s = known.inter * kGB;
  gpu.host_bytes_s = known.host * kGB;
  gpu.exposed = known.exposed;
  return gpu;
}

double number(const std::string& text, std::string& unit, const std::string& option) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  unit.assign(end, text.data() + text.size());
  if (error != std::errc() || !std::isfinite(value) || value < 0) {
    throw InputError("\"" + text + "\" is no size", option, "write one such as 80GB or 1.5TiB");
  }
  return value;
}

double parse_flops(const std::string& text, const std::string& option) {
  std::string unit;
  const double value = number(text, unit, option);
  if (unit == "T" || unit == "TFLOPS") {
    return value * kTera;
  }
  if (unit == "P" || unit == "PFLOPS") {
    return value * 1e15;
  }
  throw InputError("\"" + text + "\" has no unit", option, "write 312T or 2.2P FLOPs a second");
}

Gpu by_hand(const std::string& text) {
  Gpu gpu;
  gpu.name = text;
  const std::string where = "--gpu " + text;
  const std::map<std::string, double Gpu::*> keys = {{"memory", &Gpu::memory_bytes},
                                                     {"hbm", &Gpu::hbm_bytes_s},
                                                     {"link", &Gpu::node_bytes_s},
                                                     {"host", &Gpu::host_bytes_s},
                                                     {"inter", &Gpu::inter_bytes_s}};
  for (const auto& [key, value] : key_values(text)) {
    if (key == "flops") {
      gpu.peak_flops = parse_flops(value, where);
    } else if (const auto known = keys.find(key); known != keys.end()) {
      gpu.*(known->second) = parse_bytes(value, where);
    } else {
      throw InputError(fmt::format("\"{}\"", key),
                       where,
                       "write memory=80GB,flops=312T[,hbm,link,host,inter=BANDWIDTH]");
    }
  }
  if (gpu.memory_bytes <= 0 || gpu.peak_flops <= 0) {
    throw InputError("memory or flops is missing", where, "write memory=80GB,flops=312T");
  }
  const auto otherwise = [](double& value, double usual) { value = value > 0 ? value : usual; };
  otherwise(gpu.hbm_bytes_s, kTera);
  otherwise(gpu.node_bytes_s, 12 * kGB);
  otherwise(gpu.host_bytes_s, 12 * kGB);
  otherwise(gpu.inter_bytes_s, 2.8 * kGB);
  gpu.tensor_bytes_s = gpu.node_bytes_s;
  gpu.plain_flops = gpu.zero_flops = gpu.parallel_flops = gpu.narrow_parallel_flops =
      kUsualEfficiency * gpu.peak_flops;
  return gpu;
}

}  // namespace

double parse_bytes(const std::string& text, const std::string& option) {
  static const std::map<std::string, double> kUnits = {{"B", 1},
                                                       {"KB", 1e3},
                                                       {"MB", 1e6},
                                                       {"GB", kGB},
                                                       {"TB", kTera},
                                                       {"PB", 1e15},
                                                       {"KiB", 1024},
                                                       {"MiB", 1024.0 * 1024},
                                                       {"GiB", kGiB},
                                                       {"TiB", 1024 * kGiB},
                                                       {"Mb", 1e6 / 8},
                                                       {"Gb", kGB / 8},
                                                       {"Tb", kTera / 8},
                                                       {"GB/s", kGB},
                                                       {"Gb/s", kGB / 8},
                                                       {"MB/s", 1e6}};
  std::string unit;
  const double value = number(text, unit, option);
  const auto factor = kUnits.find(unit);
  if (factor == kUnits.end()) {
    throw InputError(unit.empty() && value == 0 ? "\"0\" has no unit"
                                                : fmt::format("\"{}\" has no known unit", text),
                     option,
                     "write one such as 80GB, 1.5TiB or 200Gb (bits)");
  }
  return value * factor->second;
}

Gpu parse_gpu(const std::string& text) {
  for (const Known& known : kKnown) {
    if (text == known.name) {
      return from_table(known);
    }
  }
  if (text.find('=') != std::string::npos) {
    return by_hand(text);
  }
  throw InputError(
      "\"" + text + "\" is no known GPU",
      "--gpu",
      fmt::format("known: {}; or memory=80GB,flops=312T", fmt::join(known_gpus(), ", ")));
}

std::vector<std::string> known_gpus() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    names.emplace_back(known.name);
  }
  return names;
}

void check_cluster(const Cluster& cluster) {
  constexpr std::int64_t kMostGpus = 1'000'000;
  if (cluster.nodes < 1 || cluster.gpus_per_node < 1 || cluster.nodes > kMostGpus ||
      cluster.gpus_per_node > kMostGpus || cluster.gpus() > kMostGpus) {
    throw InputError(fmt::format("{} nodes of {} GPUs", cluster.nodes, cluster.gpus_per_node),
                     "--nodes and --gpus-per-node",
                     fmt::format("give 1 to {} GPUs", kMostGpus));
  }
  if (cluster.nvme_bytes > 0 && cluster.nvme_bytes_s <= 0) {
    throw InputError("NVMe without a bandwidth", "--nvme", "write SIZE,BANDWIDTH: 28TB,25GB");
  }
}

}  // namespace zero::planner
