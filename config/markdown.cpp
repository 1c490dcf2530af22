#include "config/convert.h"
#include "config/keys.h"
#include "config/text.h"
#include <zero/config/report.h>

namespace zero::config {
namespace {

std::string cell(std::string_view text) {
  std::string out;
  for (const char ch : text) {
    out += ch == '|' ? "\\|" : std::string(1, ch);
  }
  return out;
}

std::string in_force(const Key& key) {
  if (key.feature == Feature::kIdle) {
    return "no effect";
  }
  return feature_state(key.feature).available ? "yes" : "not yet";
}

std::string level(const Key& key) {
  return key.level == Level::kCore ? "core" : key.level == Level::kShould ? "should" : "other";
}

std::string row(const Key& key) {
  std::string name = "`" + std::string(key.name) + "`";
  if (!key.extras.other_name.empty()) {
    name += ", `" + std::string(key.extras.other_name) + "`";
  }
  std::string meaning(key.meaning);
  if (!key.extras.replaced_by.empty()) {
    meaning = "deprecated, write `" + std::string(key.extras.replaced_by) + "`: " + meaning;
  }
  if (!key.cost.empty()) {
    meaning += " (" + std::string(key.cost) + ")";
  }
  return "| " + name + " | " + cell(allowed_text(key)) + " | `" + std::string(key.fallback) +
         "` | " + level(key) + " | " + in_force(key) + " | " + cell(meaning) + " |\n";
}

std::string table(const Block& block) {
  std::string text =
      "### " + (block.path.empty() ? "Top level" : "`" + std::string(block.path) + "`");
  if (!block.variant.empty()) {
    text += " for type " + cell(block.variant);
  }
  text += "\n\n" + std::string(block.meaning) + ". " +
          (block.strict ? "Unknown keys are errors."
           : block.open ? "Keys are free."
                        : "Unknown keys warn.");
  text += block.nullable ? " May be null.\n\n" : "\n\n";
  if (block.keys.empty()) {
    return text;
  }
  text +=
      "| key | value | default | level | in force | meaning (cost or consequence) "
      "|\n|---|---|---|---|---|---|\n";
  for (const Key& key : block.keys) {
    text += row(key);
  }
  return text + "\n";
}

std::string core_not_in_force() {
  std::string text =
      "### Core keys that are not in force\n\nThey are read and checked; a value other than the "
      "default warns where the numbers of a training do not depend on it, and is refused where "
      "they do.\n\n";
  for (const Block& block : blocks()) {
    std::string names;
    for (const Key& key : block.keys) {
      if (key.level == Level::kCore && in_force(key) != "yes") {
        names += (names.empty() ? "" : ", ") + ("`" + std::string(key.name) + "`");
      }
    }
    if (!names.empty()) {
      text += "- `" + std::string(block.path.empty() ? "top level" : block.path) + "`" +
              (block.variant.empty() ? "" : " (" + std::string(block.variant) + ")") + ": " +
              names + "\n";
    }
  }
  return text + "\n";
}

}  // namespace

std::string markdown_tables() {
  std::string text = core_not_in_force();
  text += "### Removed blocks\n\n";
  for (const Removed& removed : removed_blocks()) {
    text += "- `" + std::string(removed.name) + "`: " + std::string(removed.what) + "; use " +
            std::string(removed.instead) + "\n";
  }
  text += "\n";
  for (const Block& block : blocks()) {
    text += table(block);
  }
  return text;
}

}  // namespace zero::config
