#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace zero::planner {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// "a=1,b=2" → {a, 1}, {b, 2}; an item without "=" has an empty value.
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> key_values(
    const std::string& text) {
  std::vector<std::pair<std::string, std::string>> all;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t equals = std::min(item.find('='), item.size());
    all.emplace_back(item.substr(0, equals), equals < item.size() ? item.substr(equals + 1) : "");
    begin = end + 1;
  }
  return all;
}

}  // namespace zero::planner
