#include "config/document.h"

#include "config/number.h"
#include "config/text.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

namespace zero::config {
namespace {

struct SyntaxFault {
  std::string message;
  std::size_t offset;
};

bool is_white(char ch) {
  return ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r';
}

bool is_punctuation(char ch) {
  return ch == '{' || ch == '}' || ch == '[' || ch == ']' || ch == ',' || ch == ':';
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto tail = [&](unsigned shift) {
    out.push_back(static_cast<char>(0x80U | ((code >> shift) & 0x3FU)));
  };
  if (code < 0x80U) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800U) {
    out.push_back(static_cast<char>(0xC0U | (code >> 6U)));
    tail(0);
  } else if (code < 0x10000U) {
    out.push_back(static_cast<char>(0xE0U | (code >> 12U)));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0U | (code >> 18U)));
    tail(12);
    tail(6);
    tail(0);
  }
}

/// Recursive-descent reader of one text. Throws SyntaxFault.
class Reader {
 public:
  explicit Reader(Document& document) : document_(document), text_(document.text) {}

  void read() {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") {
      note("a byte-order mark");
      at_ = 3;
    }
    skip();
    if (ended()) {
      note("no root braces");
      return;
    }
    if (peek() == '{' || peek() == '[') {
      read_value(document_.root, document_.spot, 0);
      skip();
      if (!ended()) {
        throw SyntaxFault{"text after the end of the root value", at_};
      }
      return;
    }
    note("no root braces");
    document_.spot.begin = offset();
    read_members(document_.root, document_.spot, 0, false);
    document_.spot.end = offset();
  }

 private:
  [[nodiscard]] bool ended() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] std::uint32_t offset() const { return static_cast<std::uint32_t>(at_); }

  void note(const char* what) {
    document_.strict_json = false;
    auto& notes = document_.notes;
    if (std::find(notes.begin(), notes.end(), what) == notes.end()) {
      notes.emplace_back(what);
    }
  }

  /// Skips white space and comments.
  void skip() {
    while (!ended()) {
      if (is_white(peek())) {
        ++at_;
      } else if (peek() == '#' || (peek() == '/' && peek(1) == '/')) {
        note("comments");
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (peek() == '/' && peek(1) == '*') {
        note("comments");
        const auto end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else {
        return;
      }
    }
  }

  void read_value(Json& out, Spot& spot, int depth) {
    if (++values_ > kMaxValues) {
      throw SyntaxFault{"more than " + std::to_string(kMaxValues) + " values", at_};
    }
    if (depth > kMaxDepth) {
      throw SyntaxFault{"nesting deeper than " + std::to_string(kMaxDepth), at_};
    }
    if (ended()) {
      throw SyntaxFault{"a value is missing at the end of the text", at_};
    }
    spot.begin = offset();
    switch (peek()) {
      case '{':
        ++at_;
        out = Json::object();
        read_members(out, spot, depth, true);
        break;
      case '[':
        ++at_;
        out = Json::array();
        read_elements(out, spot, depth);
        break;
      case '\'':
        note("single-quoted strings");
        out = text_.substr(at_, 3) == "'''" ? read_multiline() : read_quoted();
        break;
      case '"':
        out = read_quoted();
        break;
      default:
        out = read_unquoted();
        spot.end = unquoted_end_;
        return;
    }
    spot.end = offset();
  }

  /// Members up to the closing brace, or to the end of the text for a root without braces.
  void read_members(Json& out, Spot& spot, int depth, bool braces) {
    auto& members = out.get_ref<Json::object_t&>();
    std::unordered_set<std::string> seen;
    skip();
    if (braces && peek() == '}') {
      ++at_;
      return;
    }
    while (true) {
      Spot child;
      child.key_begin = offset();
      std::string key = read_key();
      child.key_end = offset();
      skip();
      if (peek() != ':') {
        throw SyntaxFault{"expected ':' after the key " + in_quotes(key), at_};
      }
      ++at_;
      skip();
      Json value;
      read_value(value, child, depth + 1);
      if (seen.insert(key).second) {
        members.emplace_back(std::move(key), std::move(value));
        spot.children.push_back(std::move(child));
      } else {
        const std::string message = "the key " + in_quotes(key) + " stands twice in one object";
        document_.faults.push_back({"duplicate_key", key, message, child.key_begin});
      }
      const bool comma = read_comma(braces ? '}' : '\0', braces);
      if (!braces && ended()) {
        return;
      }
      if (braces && peek() == '}') {
        ++at_;
        return;
      }
      if (!comma) {
        note("missing commas");
      }
    }
  }

  void read_elements(Json& out, Spot& spot, int depth) {
    skip();
    if (peek() == ']') {
      ++at_;
      return;
    }
    while (true) {
      Spot child;
      Json value;
      read_value(value, child, depth + 1);
      out.push_back(std::move(value));
      spot.children.push_back(std::move(child));
      const bool comma = read_comma(']', true);
      if (peek() == ']') {
        ++at_;
        return;
      }
      if (ended()) {
        throw SyntaxFault{"the array that begins here is not closed by ']'", spot.begin};
      }
      if (!comma) {
        note("missing commas");
      }
    }
  }

  bool read_comma(char close, bool closed) {
    skip();
    if (ended() || peek() != ',') {
      return false;
    }
    ++at_;
    skip();
    if (closed ? peek() == close : ended()) {
      note("trailing commas");
    }
    return true;
  }

  std::string read_key() {
    if (peek() == '"') {
      return read_quoted();
    }
    if (peek() == '\'') {
      note("single-quoted strings");
      return read_quoted();
    }
    const std::size_t begin = at_;
    std::size_t end = at_;
    for (;; ++at_) {
      if (ended()) {
        throw SyntaxFault{"a key or a closing brace is missing at the end of the text", begin};
      }
      const char ch = peek();
      if (ch == ':') {
        break;
      }
      if (is_punctuation(ch)) {
        throw SyntaxFault{std::string("found '") + ch + "' where a key was expected", begin};
      }
      if (!is_white(ch)) {
        if (end != at_) {
          throw SyntaxFault{"white space inside a key without quotes", end};
        }
        end = at_ + 1;
      }
    }
    if (end == begin) {
      throw SyntaxFault{"':' without a key before it", begin};
    }
    note("keys without quotes");
    return std::string(text_.substr(begin, end - begin));
  }

  std::string read_quoted() {
    const std::size_t begin = at_;
    const char quote = peek();
    std::string out;
    for (++at_;; ++at_) {
      if (ended()) {
        throw SyntaxFault{"the string that begins here is not closed", begin};
      }
      const char ch = peek();
      if (ch == quote) {
        ++at_;
        return out;
      }
      if (static_cast<unsigned char>(ch) < 0x20U) {
        throw SyntaxFault{"a control character inside a string (is a quote missing?)", at_};
      }
      if (ch == '\\') {
        ++at_;
        read_escape(out);
      } else {
        out.push_back(ch);
      }
    }
  }

  void read_escape(std::string& out) {
    static constexpr std::string_view kNames = "\"'\\/bfnrt";
    static constexpr std::string_view kValues = "\"'\\/\b\f\n\r\t";
    if (peek() == 'u') {
      append_utf8(out, read_code_point());
      return;
    }
    const auto index = ended() ? std::string_view::npos : kNames.find(peek());
    if (index == std::string_view::npos) {
      throw SyntaxFault{"an unknown escape sequence inside a string", at_ - 1};
    }
    if (peek() == '\'') {
      note("the escape \\'");
    }
    out.push_back(kValues[index]);
  }

  /// At the `u` of an escape; ends at its last digit. A lone surrogate becomes U+FFFD.
  std::uint32_t read_code_point() {
    const std::uint32_t first = read_hex4();
    if (first < 0xD800U || first > 0xDFFFU) {
      return first;
    }
    if (first < 0xDC00U && peek(1) == '\\' && peek(2) == 'u') {
      const std::size_t back = at_;
      at_ += 2;
      const std::uint32_t second = read_hex4();
      if (second >= 0xDC00U && second <= 0xDFFFU) {
        return 0x10000U + ((first - 0xD800U) << 10U) + (second - 0xDC00U);
      }
      at_ = back;
    }
    note("half of a surrogate pair");
    return 0xFFFDU;
  }

  std::uint32_t read_hex4() {
    std::uint32_t value = 0;
    const std::string_view digits = text_.substr(std::min(at_ + 1, text_.size()), 4);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 4 || error != std::errc{} || end != digits.data() + 4) {
      throw SyntaxFault{"\\u needs four hexadecimal digits", at_ - 1};
    }
    at_ += 4;
    return value;
  }

  /// A string between triple quotes; the indent of its first line is taken off the others.
  std::string read_multiline() {
    const std::size_t begin = at_;
    const std::size_t line = text_.rfind('\n', at_) + 1;  // npos + 1 is 0
    const std::size_t indent = at_ - line;
    at_ += 3;
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') {
      ++at_;
    }
    if (peek() == '\n') {
      ++at_;
      skip_indent(indent);
    }
    std::string out;
    while (text_.substr(at_, 3) != "'''") {
      if (ended()) {
        throw SyntaxFault{"the string that begins here is not closed", begin};
      }
      const char ch = text_[at_++];
      if (ch != '\r') {
        out.push_back(ch);
      }
      if (ch == '\n') {
        skip_indent(indent);
      }
    }
    at_ += 3;
    if (!out.empty() && out.back() == '\n') {
      out.pop_back();
    }
    return out;
  }

  void skip_indent(std::size_t columns) {
    for (; columns > 0 && (peek() == ' ' || peek() == '\t' || peek() == '\r'); --columns) {
      ++at_;
    }
  }

  /// null, true, false or a number up to the next delimiter, else a string up to the end of line.
  Json read_unquoted() {
    const std::size_t begin = at_;
    if (is_punctuation(peek())) {
      throw SyntaxFault{std::string("found '") + peek() + "' where a value was expected", at_};
    }
    const std::size_t number_end = scan_number(text_, begin);
    for (;; ++at_) {
      const char ch = peek();
      const bool end_of_line = ended() || ch == '\n' || ch == '\r';
      const bool comment = ch == '#' || (ch == '/' && (peek(1) == '/' || peek(1) == '*'));
      if (!end_of_line && ch != ',' && ch != '}' && ch != ']' && !comment) {
        continue;
      }
      if (at_ - begin <= 64 || number_end == at_) {
        if (auto value = literal(begin, number_end); !value.is_discarded()) {
          return value;
        }
      }
      if (end_of_line) {
        note("strings without quotes");
        const std::string_view body = trim(text_.substr(begin, at_ - begin));
        unquoted_end_ = static_cast<std::uint32_t>(begin + body.size());
        return std::string(body);
      }
    }
  }

  Json literal(std::size_t begin, std::size_t number_end) {
    const std::string_view word = trim(text_.substr(begin, at_ - begin));
    unquoted_end_ = static_cast<std::uint32_t>(begin + word.size());
    if (word == "null") {
      return nullptr;
    }
    if (word == "true") {
      return true;
    }
    if (word == "false") {
      return false;
    }
    if (number_end != at_) {
      return Json(Json::value_t::discarded);
    }
    auto number = read_number(word);
    if (!number) {
      throw SyntaxFault{"the number is larger than any double", begin};
    }
    return std::move(*number);
  }

  Document& document_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;
  std::uint32_t unquoted_end_ = 0;
};

}  // namespace

Place Document::place(std::size_t offset) const {
  const std::string_view whole = text;
  const std::string_view head = whole.substr(0, offset);
  const std::size_t line_begin = head.rfind('\n') + 1;  // npos + 1 is 0
  Place place;
  place.line = 1 + static_cast<int>(std::count(head.begin(), head.end(), '\n'));
  place.column = 1;
  for (std::size_t i = line_begin; i < head.size(); ++i) {
    place.column += (static_cast<unsigned char>(head[i]) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return place;
}

Document read_document(std::string text) {
  Document document;
  if (text.size() > kMaxTextBytes) {
    document.faults.push_back(
        {"parse_error", {}, "the text is larger than " + std::to_string(kMaxTextBytes) + " bytes"});
    return document;
  }
  document.text = std::move(text);
  if (const auto bad = find_invalid_utf8(document.text); bad < document.text.size()) {
    document.faults.push_back({"parse_error", {}, "a byte that is not UTF-8", bad});
    return document;
  }
  try {
    Reader(document).read();
  } catch (const SyntaxFault& fault) {
    document.root = Json::object();
    document.spot = {};
    document.faults = {{"parse_error", {}, fault.message, fault.offset}};
    return document;
  }
  if (!document.root.is_object()) {
    document.faults.push_back(
        {"parse_error", {}, "the file must hold one object, not an array", document.spot.begin});
    document.root = Json::object();
    document.spot = {};
  }
  return document;
}

}  // namespace zero::config
