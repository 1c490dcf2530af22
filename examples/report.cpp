#include "examples/report.h"

#include <fmt/format.h>

#include <algorithm>

namespace zero::examples {
namespace {

struct Row {
  std::string name;
  std::vector<std::int64_t> bytes;  ///< plan, stage 0, rank 0, rank 1, …
};

/// 1234567 → "1,234,567".
std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

std::vector<Row> rows_of(const StatePlan& plan,
                         const StatePlan& stage0,
                         const std::vector<RankMemory>& ranks) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < kCategories; ++i) {
    Row row{
        std::string(category_name(static_cast<Category>(i))),
        {plan.bytes.at(i) + plan.host_bytes.at(i), stage0.bytes.at(i) + stage0.host_bytes.at(i)}};
    for (const RankMemory& rank : ranks) {
      row.bytes.push_back(rank.device.peak_bytes.at(i) + rank.host.peak_bytes.at(i));
    }
    if (std::any_of(row.bytes.begin(), row.bytes.end(), [](std::int64_t b) { return b != 0; })) {
      rows.push_back(std::move(row));
    }
  }
  Row total{"all", {plan.total_bytes(), stage0.total_bytes()}};
  for (const RankMemory& rank : ranks) {
    total.bytes.push_back(rank.device.total_peak_bytes + rank.host.total_peak_bytes);
  }
  rows.push_back(std::move(total));
  return rows;
}

}  // namespace

std::string memory_table(const StatePlan& plan,
                         const StatePlan& stage0,
                         const std::vector<RankMemory>& ranks) {
  std::vector<std::string> heads = {fmt::format("plan, stage {}", plan.stage), "plan, stage 0"};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    heads.push_back(fmt::format("rank {}", rank));
  }
  std::string text = fmt::format("{:<14}", "peak bytes");
  for (const std::string& head : heads) {
    text += fmt::format("{:>16}", head);
  }
  text += "\n";
  for (const Row& row : rows_of(plan, stage0, ranks)) {
    text += fmt::format("{:<14}", row.name);
    for (const std::int64_t bytes : row.bytes) {
      text += fmt::format("{:>16}", grouped(bytes));
    }
    text += "\n";
  }
  return text;
}

}  // namespace zero::examples
