#pragma once

// Private to config/: the relaxed reader and the tree it yields.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::config {

using Json = nlohmann::ordered_json;

/// Line and column, both from 1; columns count characters, not bytes.
struct Place {
  int line = 0;
  int column = 0;
};

/// Where a value stands in the text (byte offsets, end exclusive). `children` runs parallel to the
/// members or elements of the value in Document::root; key offsets are equal for elements.
struct Spot {
  std::uint32_t key_begin = 0;
  std::uint32_t key_end = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::vector<Spot> children;
};

/// A fault of the text itself: syntax, encoding, size, or a key that stands twice in one object.
struct TextFault {
  std::string kind;  ///< parse_error or duplicate_key
  std::string key;   ///< for duplicates
  std::string message;
  std::size_t offset = 0;
};

/// What the reader makes of a file. Values are those that DeepSpeed's Hjson reader yields: an
/// integral number with point or exponent and a magnitude below 1e10 is an integer; an integer
/// beyond 64 bits is a double.
struct Document {
  std::string text;
  Json root = Json::object();
  Spot spot;
  std::vector<TextFault> faults;
  std::vector<std::string> notes;  ///< what a strict JSON reader would refuse, each kind once
  bool strict_json = true;         ///< nothing in `notes`

  [[nodiscard]] Place place(std::size_t offset) const;
};

/// Limits of the reader: a text of more bytes, values or nesting is refused, so that time and
/// memory stay bounded whatever a file holds.
inline constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20U;
inline constexpr std::size_t kMaxValues = 20'000;
inline constexpr int kMaxDepth = 200;

/// Reads `text` as Hjson. Never throws for bad text: faults say what is wrong, and `root` then
/// holds what was read if the faults are duplicates only (the first of them), else an empty object.
/// Thread: any. Source: the Hjson syntax page, and the quirks of section 0.1 in docs/CONFIG.md.
[[nodiscard]] Document read_document(std::string text);

}  // namespace zero::config
