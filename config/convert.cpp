#include "config/convert.h"

#include "config/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace zero::config {
namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;

bool is_one_of(std::string_view word, std::string_view words) {
  const auto list = split(words, '|');
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// Digits with single underscores between them, as Python writes them; without the underscores.
std::optional<std::string> plain_digits(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (i == 0 || i + 1 == text.size() || text[i - 1] == '_') {
        return std::nullopt;
      }
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char ch) { return ch >= '0' && ch <= '9'; });
}

std::optional<Json> to_int_from_text(std::string_view text) {
  text = trim(text);
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    text.remove_prefix(1);
  }
  if (const auto point = text.find('.'); point != std::string_view::npos) {
    const std::string_view fraction = text.substr(point + 1);
    if (fraction.find_first_not_of('0') != std::string_view::npos || fraction.empty()) {
      return std::nullopt;
    }
    text = text.substr(0, point);
  }
  const auto digits = plain_digits(text);
  if (!digits || !all_digits(*digits)) {
    return std::nullopt;
  }
  const std::string number = (negative ? "-" : "") + *digits;
  std::int64_t value = 0;
  if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc{}) {
    return std::nullopt;
  }
  return value;
}

std::optional<Json> to_int(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean:
      return value.get<bool>() ? 1 : 0;
    case Json::value_t::number_integer:
      return value;
    case Json::value_t::number_unsigned:
      return value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                 ? std::optional<Json>(value.get<std::int64_t>())
                 : std::nullopt;
    case Json::value_t::number_float: {
      const double number = value.get<double>();
      if (number != std::floor(number) || std::abs(number) >= kTwoTo63) {
        return std::nullopt;
      }
      return static_cast<std::int64_t>(number);
    }
    case Json::value_t::string:
      return to_int_from_text(value.get_ref<const std::string&>());
    default:
      return std::nullopt;
  }
}

std::optional<Json> to_float(const Json& value) {
  if (value.is_boolean()) {
    return value.get<bool>() ? 1.0 : 0.0;
  }
  if (value.is_number()) {
    return value.get<double>();
  }
  if (!value.is_string()) {
    return std::nullopt;
  }
  auto text = plain_digits(trim(value.get_ref<const std::string&>()));
  if (!text || text->empty() || text->find_first_not_of("0123456789+-.eE") != std::string::npos) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double number = std::strtod(text->c_str(), &end);
  if (end != text->c_str() + text->size() || !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

std::optional<Json> to_bool(const Json& value) {
  if (value.is_boolean()) {
    return value;
  }
  if (value.is_number()) {
    const double number = value.get<double>();
    return number == 0.0 || number == 1.0 ? std::optional<Json>(number == 1.0) : std::nullopt;
  }
  if (!value.is_string()) {
    return std::nullopt;
  }
  const std::string word = lower(value.get_ref<const std::string&>());
  if (is_one_of(word, "true|t|yes|y|on|1")) {
    return true;
  }
  return is_one_of(word, "false|f|no|n|off|0") ? std::optional<Json>(false) : std::nullopt;
}

std::optional<Json> to_strings(const Json& value) {
  if (value.is_string()) {
    return Json::array({value});
  }
  const bool good = value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& v) {
                      return v.is_string();
                    });
  return good ? std::optional<Json>(value) : std::nullopt;
}

std::optional<Json> to_numbers(const Json& value) {
  if (!value.is_array()) {
    return value.is_number() ? std::optional<Json>(value) : std::nullopt;
  }
  const bool good = !value.empty() && std::all_of(value.begin(), value.end(), [](const Json& v) {
    return v.is_number();
  });
  return good ? std::optional<Json>(value) : std::nullopt;
}

std::optional<Json> to_word(const Key& key, const Json& value) {
  if (!value.is_string()) {
    return std::nullopt;
  }
  const auto& text = value.get_ref<const std::string&>();
  const std::string word = key.kind == Kind::kWordAnyCase ? lower(text) : text;
  return is_one_of(word, key.allowed) ? std::optional<Json>(word) : std::nullopt;
}

std::optional<Json> to_type(const Key& key, const Json& value) {
  switch (key.kind) {
    case Kind::kBool:
      return to_bool(value);
    case Kind::kIntNotBool:
    case Kind::kInt:
      return value.is_boolean() && key.kind == Kind::kIntNotBool ? std::nullopt : to_int(value);
    case Kind::kScale:
    case Kind::kFloat:
      return value.is_boolean() && key.kind == Kind::kScale ? std::nullopt : to_float(value);
    case Kind::kString:
    case Kind::kPath:
      return value.is_string() ? std::optional<Json>(value) : std::nullopt;
    case Kind::kWord:
    case Kind::kWordAnyCase:
      return to_word(key, value);
    case Kind::kStage: {
      auto stage = to_int(value);
      return stage && *stage >= 0 && *stage <= 3 ? stage : std::nullopt;
    }
    case Kind::kList:
      return value.is_array() ? std::optional<Json>(value) : std::nullopt;
    case Kind::kStrings:
      return to_strings(value);
    case Kind::kIntOrAuto:
      return value.is_string() ? std::nullopt : to_int(value);
    case Kind::kObject:
      return value.is_object() ? std::optional<Json>(value) : std::nullopt;
    case Kind::kNumbers:
      return to_numbers(value);
    case Kind::kAny:
      return value;
    case Kind::kNever:
      return std::nullopt;
  }
  return std::nullopt;
}

bool in_range(std::string_view allowed, double value) {
  if (allowed == ">=0") {
    return value >= 0.0;
  }
  if (allowed == ">0") {
    return value > 0.0;
  }
  return allowed != "0..1" || (value >= 0.0 && value <= 1.0);
}

std::string number_text(std::string_view noun, std::string_view allowed) {
  const std::string text(noun);
  if (allowed == ">=0") {
    return text + " of at least 0";
  }
  if (allowed == ">0") {
    return text + " above 0";
  }
  return allowed == "0..1" ? text + " from 0 to 1" : text;
}

std::string words_text(std::string_view allowed) {
  std::string text;
  for (const std::string_view word : split(allowed, '|')) {
    text += (text.empty() ? "one of \"" : ", \"") + std::string(word) + "\"";
  }
  return text;
}

std::string type_text(const Key& key) {
  switch (key.kind) {
    case Kind::kBool:
      return "true or false";
    case Kind::kInt:
    case Kind::kIntNotBool:
      return number_text("a whole number", key.allowed);
    case Kind::kFloat:
    case Kind::kScale:
      return number_text("a number", key.allowed);
    case Kind::kString:
      return "a string";
    case Kind::kPath:
      return "a path";
    case Kind::kWord:
    case Kind::kWordAnyCase:
      return words_text(key.allowed);
    case Kind::kStage:
      return "0, 1, 2 or 3";
    case Kind::kList:
      return key.allowed.empty() ? "a list" : "a list of " + words_text(key.allowed);
    case Kind::kStrings:
      return "a list of strings";
    case Kind::kIntOrAuto:
      return "a whole number or \"auto\"";
    case Kind::kObject:
      return "an object";
    case Kind::kNumbers:
      return "a number, or a list with one for each parameter group";
    case Kind::kAny:
      return "any value";
    case Kind::kNever:
      return "nothing: leave it out";
  }
  return {};
}

}  // namespace

std::optional<Json> convert_value(const Key& key, const Json& value) {
  if (value.is_null()) {
    return key.fallback == "null" ? std::optional<Json>(nullptr) : std::nullopt;
  }
  auto converted = to_type(key, value);
  if (converted && converted->is_number() && !in_range(key.allowed, converted->get<double>())) {
    return std::nullopt;
  }
  if (converted && key.kind == Kind::kList && !key.allowed.empty()) {
    for (const Json& item : *converted) {
      if (!item.is_string() || !is_one_of(item.get_ref<const std::string&>(), key.allowed)) {
        return std::nullopt;
      }
    }
  }
  return converted;
}

std::string allowed_text(const Key& key) {
  const std::string text = type_text(key);
  return key.fallback == "null" && key.kind != Kind::kAny && key.kind != Kind::kNever
             ? text + " (or null)"
             : text;
}

Json fallback_value(const Key& key) {
  return Json::parse(key.fallback);
}

bool truthy(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return false;
    case Json::value_t::boolean:
      return value.get<bool>();
    case Json::value_t::string:
      return !value.get_ref<const std::string&>().empty();
    case Json::value_t::array:
    case Json::value_t::object:
      return !value.empty();
    default:
      return value.get<double>() != 0.0;
  }
}

std::string value_text(const Json& value) {
  if (value.is_string()) {
    return in_quotes(value.get_ref<const std::string&>());
  }
  if (value.is_array()) {
    return "a list of " + std::to_string(value.size());
  }
  if (value.is_object()) {
    return value.empty() ? "{}" : "an object of " + std::to_string(value.size());
  }
  return value.dump();
}

}  // namespace zero::config
