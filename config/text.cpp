#include "config/text.h"

#include <algorithm>
#include <numeric>

namespace zero::config {
namespace {

std::string folded(std::string_view text) {
  std::string out = lower(trim(text));
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

/// Insertions, deletions, replacements and swaps of neighbours that lead from `a` to `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = above[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U);
      row[j] = std::min({replace, above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view trim(std::string_view text) {
  static constexpr std::string_view kBlank = " \t\n\r\f\v";
  const auto first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::string shortened(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) {
    return std::string(text);
  }
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0U) == 0x80U) {
    --limit;
  }
  return std::string(text.substr(0, limit)) + "…";
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char ch : shortened(text, 60)) {
    out.push_back(static_cast<unsigned char>(ch) < 0x20U || ch == 0x7F ? ' ' : ch);
  }
  return out + "\"";
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& ch : out) {
    if (ch >= 'A' && ch <= 'Z') {
      ch = static_cast<char>(ch - 'A' + 'a');
    }
  }
  return out;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return parts;
}

std::string nearest(std::string_view name, const std::vector<std::string_view>& names) {
  const std::string wanted = folded(name);
  if (wanted.size() > 80) {
    return {};
  }
  std::string_view best;
  std::size_t best_distance =
      std::max<std::size_t>(1, std::min<std::size_t>(wanted.size() / 3, 6)) + 1;
  for (const std::string_view candidate : names) {
    const std::string target = folded(candidate);
    std::size_t distance = edit_distance(wanted, target);
    if (target == "stage3_" + wanted) {
      distance = 1;
    }
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return std::string(best);
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  while (at < text.size()) {
    const unsigned char lead = byte(at);
    const std::size_t length = lead < 0x80U                     ? 1
                               : lead >= 0xC2U && lead <= 0xDFU ? 2
                               : lead >= 0xE0U && lead <= 0xEFU ? 3
                               : lead >= 0xF0U && lead <= 0xF4U ? 4
                                                                : 0;
    if (length == 0 || at + length > text.size()) {
      return at;
    }
    for (std::size_t i = 1; i < length; ++i) {
      if ((byte(at + i) & 0xC0U) != 0x80U) {
        return at;
      }
    }
    const bool overlong = length > 2 && ((lead == 0xE0U && byte(at + 1) < 0xA0U) ||
                                         (lead == 0xF0U && byte(at + 1) < 0x90U));
    const bool out_of_range = length > 2 && ((lead == 0xEDU && byte(at + 1) > 0x9FU) ||
                                             (lead == 0xF4U && byte(at + 1) > 0x8FU));
    if (overlong || out_of_range) {
      return at;
    }
    at += length;
  }
  return at;
}

}  // namespace zero::config
