#include "engine/planner/text.h"
#include <zero/core/error.h>
#include <zero/engine/planner.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace zero::planner {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kTera = 1e12;

const char* home_name(Offload offload) {
  return offload == Offload::kNone ? "none" : offload == Offload::kCpu ? "cpu" : "nvme";
}

/// GiB with as many digits as say something.
std::string gib(double bytes) {
  const double value = bytes / kGiB;
  return value == 0      ? "-"
         : value < 9.995 ? fmt::format("{:.2f}", value)
                         : fmt::format("{:.1f}", value);
}

std::string seconds(double value) {
  return value == 0 ? "-" : fmt::format("{:.3g}", value);
}

std::string verdict(const Estimate& estimate) {
  if (!estimate.fits()) {
    return fmt::format("no: {} {} missing", gib(estimate.shortfall_bytes), estimate.scarce);
  }
  return estimate.tight ? "tight" : "yes";
}

std::string shape_line(const ModelShape& shape) {
  return fmt::format(
      "{}: {:.4g} billion parameters, {} layers, hidden {}, {} heads, {} words, "
      "{} tokens a sample\n",
      shape.name,
      static_cast<double>(shape.params()) / 1e9,
      shape.layers,
      shape.hidden,
      shape.heads,
      shape.vocabulary,
      shape.sequence);
}

std::string cluster_line(const Cluster& cluster) {
  std::string line = fmt::format("{} x {} x {}, {} GiB usable each",
                                 cluster.nodes,
                                 cluster.gpus_per_node,
                                 cluster.gpu.name,
                                 gib(cluster.gpu.memory_bytes));
  if (cluster.host_bytes > 0) {
    line += fmt::format("; host {} GiB a node", gib(cluster.host_bytes));
  }
  if (cluster.nvme_bytes > 0) {
    line += fmt::format(
        "; NVMe {} GiB a node at {:.3g} GB/s", gib(cluster.nvme_bytes), cluster.nvme_bytes_s / 1e9);
  }
  if (cluster.nodes > 1) {
    line += fmt::format("; {:.3g} GB/s a GPU between nodes", cluster.inter_bytes_s / 1e9);
  }
  return line + "\n";
}

constexpr std::size_t kNameWidth = 40;

std::string label(const Estimate& estimate) {
  return estimate.setup.name() + (estimate.setup.recompute ? ", recompute" : "");
}

using Lines = std::back_insert_iterator<std::string>;

/// Columns of one table; rows in the order of the candidates, the recommended one marked.
void time_table(Lines out, const std::vector<Estimate>& all, int marked) {
  fmt::format_to(
      out,
      "  {:<{}} {:>9} {:>9} {:>9} {:>9}  {:<22} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} "
      "{:>9} {:>6}\n",
      "set-up",
      kNameWidth,
      "batch",
      "device",
      "host",
      "NVMe",
      "fits (GiB)",
      "step s",
      "compute",
      "bubble",
      "comm",
      "copies",
      "IO",
      "update",
      "tokens/s",
      "MFU %");
  for (std::size_t row = 0; row < all.size(); ++row) {
    const Estimate& e = all[row];
    fmt::format_to(
        out,
        "{} {:<{}} {:>9} {:>9} {:>9} {:>9}  {:<22} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>9} "
        "{:>6.1f}\n",
        static_cast<int>(row) == marked ? '>' : ' ',
        label(e),
        kNameWidth,
        fmt::format("{}x{}", e.setup.micro_batch, e.setup.accumulation),
        gib(e.device_bytes()),
        gib(e.host_bytes()),
        gib(static_cast<double>(e.nvme_bytes)),
        verdict(e),
        seconds(e.seconds.total()),
        seconds(e.seconds.compute),
        seconds(e.seconds.bubble),
        seconds(e.seconds.communication_exposed),
        seconds(e.seconds.copies_exposed),
        seconds(e.seconds.io_exposed),
        seconds(e.seconds.update),
        fmt::format("{:.0f}", e.tokens_s),
        100 * e.utilisation);
  }
}

/// Bytes by category, of those that any row has.
void byte_table(Lines out,
                const char* title,
                const std::vector<Estimate>& all,
                PlannedBytes Estimate::*bytes) {
  std::vector<std::size_t> columns;
  for (std::size_t category = 0; category < kCategories; ++category) {
    if (std::any_of(
            all.begin(), all.end(), [&](const Estimate& e) { return (e.*bytes)[category] != 0; })) {
      columns.push_back(category);
    }
  }
  if (columns.empty()) {
    return;
  }
  fmt::format_to(out, "\n  {:<{}}", title, kNameWidth);
  for (const std::size_t category : columns) {
    fmt::format_to(out, " {:>11}", category_name(static_cast<Category>(category)));
  }
  fmt::format_to(out, "\n");
  for (const Estimate& e : all) {
    fmt::format_to(out, "  {:<{}}", label(e), kNameWidth);
    for (const std::size_t category : columns) {
      fmt::format_to(out, " {:>11}", gib(static_cast<double>((e.*bytes)[category])));
    }
    fmt::format_to(out, "\n");
  }
}

void tables(std::string& text, const std::vector<Estimate>& all, int marked) {
  time_table(std::back_inserter(text), all, marked);
  byte_table(std::back_inserter(text), "device bytes of a rank, GiB", all, &Estimate::device);
  byte_table(std::back_inserter(text), "host bytes of a node, GiB", all, &Estimate::host);
}

Json bytes_json(const PlannedBytes& bytes) {
  Json json = Json::object();
  std::int64_t total = 0;
  for (std::size_t category = 0; category < kCategories; ++category) {
    json[std::string(category_name(static_cast<Category>(category)))] = bytes[category];
    total += bytes[category];
  }
  json["total"] = total;
  return json;
}

Json estimate_json(const Estimate& e) {
  const Setup& setup = e.setup;
  return {
      {"name", setup.name()},
      {"stage", setup.stage},
      {"offload_optimizer", home_name(setup.offload_optimizer)},
      {"offload_param", home_name(setup.offload_param)},
      {"recompute", setup.recompute},
      {"tensor", setup.tensor},
      {"pipeline", setup.pipeline},
      {"virtual_stages", setup.virtual_stages},
      {"data", setup.data},
      {"micro_batch", setup.micro_batch},
      {"accumulation", setup.accumulation},
      {"fits", e.fits()},
      {"tight", e.tight},
      {"scarce", e.scarce},
      {"shortfall_bytes", std::llround(std::max(0.0, e.shortfall_bytes))},
      {"bytes",
       {{"device", bytes_json(e.device)}, {"host", bytes_json(e.host)}, {"nvme", e.nvme_bytes}}},
      {"seconds",
       {{"total", e.seconds.total()},
        {"compute", e.seconds.compute},
        {"bubble", e.seconds.bubble},
        {"communication", e.seconds.communication},
        {"communication_exposed", e.seconds.communication_exposed},
        {"copies", e.seconds.copies},
        {"copies_exposed", e.seconds.copies_exposed},
        {"io", e.seconds.io},
        {"io_exposed", e.seconds.io_exposed},
        {"update", e.seconds.update}}},
      {"tokens_per_second", e.tokens_s},
      {"flops_utilisation", e.utilisation}};
}

Json subject_json(const Evaluator& evaluator) {
  const ModelShape& shape = evaluator.shape();
  const Cluster& cluster = evaluator.cluster();
  return {{"model",
           {{"name", shape.name},
            {"parameters", shape.params()},
            {"layers", shape.layers},
            {"hidden", shape.hidden},
            {"heads", shape.heads},
            {"vocabulary", shape.vocabulary},
            {"sequence", shape.sequence}}},
          {"cluster",
           {{"gpu", cluster.gpu.name},
            {"nodes", cluster.nodes},
            {"gpus_per_node", cluster.gpus_per_node},
            {"gpu_bytes", cluster.gpu.memory_bytes},
            {"host_bytes", cluster.host_bytes},
            {"nvme_bytes", cluster.nvme_bytes},
            {"nvme_bytes_per_second", cluster.nvme_bytes_s},
            {"inter_node_bytes_per_second", cluster.inter_bytes_s}}}};
}

std::string one_line(const Estimate& e) {
  return fmt::format(
      "{}, micro-batch {} x {}: {} GiB a GPU, {} s a step, {:.0f} tokens/s, {:.1f} % of "
      "peak",
      label(e),
      e.setup.micro_batch,
      e.setup.accumulation,
      gib(e.device_bytes()),
      seconds(e.seconds.total()),
      e.tokens_s,
      100 * e.utilisation);
}

}  // namespace

std::string plan_text(const Plan& plan, const Evaluator& evaluator) {
  std::string text = shape_line(evaluator.shape()) + cluster_line(evaluator.cluster()) +
                     fmt::format("batch: {} samples a step\n\n", evaluator.batch());
  tables(text, plan.candidates, plan.recommended);
  text += plan.recommended < 0
              ? "\nrecommended: none\n"
              : fmt::format("\nrecommended: {}\n",
                            one_line(plan.candidates[static_cast<std::size_t>(plan.recommended)]));
  for (const std::string& reason : plan.reasons) {
    text += "  " + reason + "\n";
  }
  return text;
}

std::string plan_json(const Plan& plan, const Evaluator& evaluator) {
  Json json = subject_json(evaluator);
  json["batch"] = evaluator.batch();
  json["recommended"] =
      plan.recommended < 0
          ? Json()
          : estimate_json(plan.candidates[static_cast<std::size_t>(plan.recommended)]);
  json["reasons"] = plan.reasons;
  json["candidates"] = Json::array();
  for (const Estimate& candidate : plan.candidates) {
    json["candidates"].push_back(estimate_json(candidate));
  }
  return json.dump(2) + "\n";
}

std::string fit_text(const Fit& fit, const Evaluator& evaluator) {
  std::string text = shape_line(evaluator.shape()) + cluster_line(evaluator.cluster()) + "\n";
  std::vector<Estimate> all = {fit.now};
  for (const Fit::Change& change : fit.changes) {
    all.push_back(change.then);
  }
  tables(text, all, 0);
  text += fmt::format("\nthe file: {}\n", fit.now.fits() ? "fits" : "does not fit");
  if (fit.changes.empty()) {
    text += fit.now.fits() ? "no change makes it faster by more than 5 %\n"
                           : "no change of this file makes it fit\n";
  }
  for (std::size_t index = 0; index < fit.changes.size(); ++index) {
    const Fit::Change& change = fit.changes[index];
    text += fmt::format("\n{}: {}\n",
                        index == 0 ? (fit.now.fits() ? "smallest change that is faster"
                                                     : "smallest change that fits")
                                   : "fastest",
                        one_line(change.then));
    for (const std::string& line : change.diff) {
      text += "  " + line + "\n";
    }
  }
  return text;
}

std::string fit_json(const Fit& fit, const Evaluator& evaluator) {
  Json json = subject_json(evaluator);
  json["now"] = estimate_json(fit.now);
  json["changes"] = Json::array();
  for (const Fit::Change& change : fit.changes) {
    json["changes"].push_back({{"diff", change.diff}, {"then", estimate_json(change.then)}});
  }
  return json.dump(2) + "\n";
}

}  // namespace zero::planner
