#include "engine/planner/text.h"
#include <zero/engine/planner.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace zero::planner {
namespace {

constexpr double kBarLeft = 270;
constexpr double kBarWidth = 560;
constexpr double kRow = 20;
constexpr double kTop = 60;
constexpr double kWidth = 1000;
constexpr double kSweepHeight = 320;

/// One a category, in the order of Category; distinguishable by brightness too.
constexpr std::array<const char*, kCategories> kColours = {"#1f4e79",
                                                           "#c55a11",
                                                           "#538135",
                                                           "#a9d18e",
                                                           "#2e75b6",
                                                           "#f4b183",
                                                           "#7f6000",
                                                           "#ffd966",
                                                           "#bfbfbf",
                                                           "#7f7f7f"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return out;
}

std::string text_at(double x, double y, const std::string& text, const char* anchor = "start") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                     x,
                     y,
                     anchor,
                     escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n",
                     x1,
                     y1,
                     x2,
                     y2,
                     style);
}

constexpr const char* kLimit = "stroke=\"#c00000\" stroke-dasharray=\"5 3\"";

/// Stacked bars, one a candidate. Bars beyond twice the limit are cut there.
std::string bars(const Plan& plan, double limit) {
  double most = limit;
  for (const Estimate& e : plan.candidates) {
    most = std::max(most, e.device_bytes());
  }
  most = std::min(most, 2 * limit);
  const double scale = kBarWidth / most;
  std::string svg;
  double y = kTop;
  for (std::size_t index = 0; index < plan.candidates.size(); ++index, y += kRow) {
    const Estimate& e = plan.candidates[index];
    svg += text_at(kBarLeft - 8,
                   y + 12,
                   (static_cast<int>(index) == plan.recommended ? "> " : "") + e.setup.name() +
                       (e.setup.recompute ? ", recompute" : ""),
                   "end");
    double at = 0;
    for (std::size_t category = 0; category < kCategories && at < most; ++category) {
      const double bytes = std::min(static_cast<double>(e.device[category]), most - at);
      if (bytes > 0) {
        svg += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" fill=\"{}\"/>\n",
            kBarLeft + at * scale,
            y,
            bytes * scale,
            kColours[category]);
        at += bytes;
      }
    }
    svg += text_at(kBarLeft + at * scale + 5,
                   y + 12,
                   fmt::format("{:.1f} GiB{}", e.device_bytes() / kGiB, e.fits() ? "" : " (no)"));
  }
  const double x = kBarLeft + limit * scale;
  svg += line_at(x, kTop - 6, x, y, kLimit);
  svg += text_at(x, kTop - 10, fmt::format("usable {:.1f} GiB", limit / kGiB), "middle");
  double left = 20;
  for (std::size_t category = 0; category < kCategories; ++category) {
    const std::string name(category_name(static_cast<Category>(category)));
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                       left,
                       y + 8,
                       kColours[category]);
    svg += text_at(left + 14, y + 17, name);
    left += 30 + 7.0 * static_cast<double>(name.size());
  }
  return svg;
}

/// Device memory of each stage over the number of GPUs, both logarithmic.
std::string sweep(const Evaluator& evaluator, double top) {
  constexpr int kDoublings = 12;
  constexpr double kLeft = 80;
  constexpr std::array<const char*, 4> kStageColours = {"#7f7f7f", "#2e75b6", "#538135", "#c55a11"};
  const double right = kWidth - 130;
  const double bottom = top + kSweepHeight;
  std::array<std::vector<double>, 4> bytes;
  double least = evaluator.cluster().gpu.memory_bytes;
  double most = least;
  for (int doubling = 0; doubling <= kDoublings; ++doubling) {
    Cluster cluster = evaluator.cluster();
    cluster.nodes = std::int64_t{1} << doubling;
    cluster.gpus_per_node = 1;
    Workload workload = evaluator.workload();
    workload.batch = 0;
    const Evaluator at(evaluator.shape(), cluster, workload);
    for (int stage = 0; stage < 4; ++stage) {
      Setup setup;
      setup.stage = stage;
      setup.recompute = workload.recompute.value_or(true);
      setup.data = cluster.gpus();
      const double value = at.evaluate(setup).device_bytes();
      bytes.at(static_cast<std::size_t>(stage)).push_back(value);
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  const auto x_of = [&](int doubling) {
    return kLeft + (right - kLeft) * doubling / static_cast<double>(kDoublings);
  };
  const auto y_of = [&](double value) {
    const double span = std::max(1e-9, std::log(most / least));
    return bottom - kSweepHeight * std::log(value / least) / span;
  };
  std::string svg =
      text_at(kLeft, top - 12, "device memory of a rank over GPUs, micro-batch 1, GiB");
  for (int doubling = 0; doubling <= kDoublings; doubling += 2) {
    svg += text_at(x_of(doubling), bottom + 16, fmt::format("{}", 1 << doubling), "middle");
  }
  for (double gib = 1; gib * kGiB <= most; gib *= 4) {
    if (gib * kGiB >= least) {
      svg += text_at(kLeft - 8, y_of(gib * kGiB) + 4, fmt::format("{:g}", gib), "end");
      svg += line_at(kLeft, y_of(gib * kGiB), right, y_of(gib * kGiB), "stroke=\"#dddddd\"");
    }
  }
  const double limit = y_of(evaluator.cluster().gpu.memory_bytes);
  svg += line_at(kLeft, limit, right, limit, kLimit);
  for (std::size_t stage = 0; stage < bytes.size(); ++stage) {
    std::string points;
    for (std::size_t doubling = 0; doubling < bytes[stage].size(); ++doubling) {
      points += fmt::format(
          "{:.1f},{:.1f} ", x_of(static_cast<int>(doubling)), y_of(bytes[stage][doubling]));
    }
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                       points,
                       kStageColours.at(stage));
    svg += text_at(right + 8,
                   y_of(bytes[stage].back()) + 4,
                   stage == 0 ? "DDP" : fmt::format("ZeRO-{}", stage));
  }
  return svg;
}

}  // namespace

std::string plan_svg(const Plan& plan, const Evaluator& evaluator) {
  const double sweep_top = kTop + kRow * static_cast<double>(plan.candidates.size()) + 80;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
             "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             kWidth,
             sweep_top + kSweepHeight + 40) +
         text_at(20,
                 24,
                 fmt::format("{} on {} x {} {}: device memory of a rank",
                             evaluator.shape().name,
                             evaluator.cluster().nodes,
                             evaluator.cluster().gpus_per_node,
                             evaluator.cluster().gpu.name)) +
         bars(plan, evaluator.cluster().gpu.memory_bytes) + sweep(evaluator, sweep_top) +
         "</svg>\n";
}

}  // namespace zero::planner
