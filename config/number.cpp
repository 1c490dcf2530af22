#include "config/number.h"

#include <charconv>
#include <cmath>

namespace zero::config {

std::size_t scan_number(std::string_view text, std::size_t at) {
  const auto digit = [&] { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  const auto is = [&](char ch) { return at < text.size() && text[at] == ch; };
  at += is('-') ? 1U : 0U;
  if (!digit()) {
    return 0;
  }
  if (is('0')) {
    ++at;
  } else {
    while (digit()) {
      ++at;
    }
  }
  std::size_t mark = at;
  if (is('.')) {
    ++at;
    while (digit()) {
      ++at;
    }
    at = at == mark + 1 ? mark : at;
  }
  mark = at;
  if (is('e') || is('E')) {
    ++at;
    at += is('-') || is('+') ? 1U : 0U;
    const std::size_t first = at;
    while (digit()) {
      ++at;
    }
    at = at == first ? mark : at;
  }
  while (is(' ') || is('\t')) {
    ++at;
  }
  return at;
}

std::optional<Json> read_number(std::string_view word) {
  const char* first = word.data();
  const char* last = first + word.size();
  if (word.find_first_of(".eE") == std::string_view::npos) {
    std::int64_t small = 0;
    if (std::from_chars(first, last, small).ec == std::errc{}) {
      return small;
    }
    std::uint64_t large = 0;
    if (std::from_chars(first, last, large).ec == std::errc{}) {
      return large;
    }
  }
  const double value = std::strtod(std::string(word).c_str(), nullptr);
  if (!std::isfinite(value)) {
    return std::nullopt;
  }
  if (std::abs(value) < 1e10 && value == std::floor(value)) {
    return static_cast<std::int64_t>(value);
  }
  return value;
}

}  // namespace zero::config
