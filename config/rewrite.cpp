#include "config/convert.h"
#include "config/document.h"
#include "config/text.h"
#include <zero/config/report.h>
#include <zero/core/error.h>

#include <algorithm>
#include <optional>

namespace zero::config {
namespace {

/// Replace bytes [begin, end) of the text.
struct Edit {
  std::size_t begin;
  std::size_t end;
  std::string replacement;
  std::string note;
};

struct Member {
  const Json* value = nullptr;
  const Spot* spot = nullptr;
  std::size_t index = 0;
  explicit operator bool() const { return value != nullptr; }
};

Member find(const Json& object, const Spot& spot, std::string_view name) {
  std::size_t index = 0;
  for (const auto& [key, value] : object.items()) {
    if (key == name) {
      return {&value, &spot.children[index], index};
    }
    ++index;
  }
  return {};
}

/// Takes a member out together with the comma and blanks that go with it.
Edit removal(const Spot& parent, const Member& member, std::string note) {
  const auto& all = parent.children;
  const std::size_t i = member.index;
  if (i + 1 < all.size()) {
    return {all[i].key_begin, all[i + 1].key_begin, "", std::move(note)};
  }
  return {i > 0 ? all[i - 1].end : all[i].key_begin, all[i].end, "", std::move(note)};
}

struct Renamed {
  std::string_view block, name, replacement;
};
constexpr Renamed kRenamed[] = {
    {"zero_optimization",
     "stage3_gather_fp16_weights_on_model_save",
     "stage3_gather_16bit_weights_on_model_save"},
    {"aio", "thread_count", "intra_op_parallelism"},
};

struct Offload {
  std::string_view name, replacement;
};
constexpr Offload kOffloads[] = {
    {"cpu_offload", "offload_optimizer"},
    {"cpu_offload_param", "offload_param"},
    {"cpu_offload_use_pin_memory", ""},
};

/// Rewrites one text: finds a deprecated key, edits, reads again, until none is left.
class Rewriter {
 public:
  Rewriter(std::string text, const std::string& name) : name_(name) { read(std::move(text)); }

  void run(std::vector<std::string>& notes) {
    while (auto edit = next()) {
      std::string text = document_.text;
      text.replace(edit->begin, edit->end - edit->begin, edit->replacement);
      notes.push_back(edit->note);
      read(std::move(text));
    }
  }

  [[nodiscard]] const Document& document() const { return document_; }

 private:
  void read(std::string text) {
    document_ = read_document(std::move(text));
    if (!document_.faults.empty()) {
      const TextFault& fault = document_.faults.front();
      refuse(fault.message, fault.offset);
    }
  }

  [[noreturn]] void refuse(const std::string& message, std::size_t offset) const {
    const Place place = document_.place(offset);
    throw ConfigError(name_ + ":" + std::to_string(place.line) + ":" +
                          std::to_string(place.column) + ": " + message,
                      {},
                      "correct the file first");
  }

  [[nodiscard]] std::optional<Edit> next() const {
    const Member zero = find(document_.root, document_.spot, "zero_optimization");
    if (zero && zero.value->is_boolean()) {
      return boolean_zero(zero);
    }
    if (zero && zero.value->is_object()) {
      for (const Offload& row : kOffloads) {
        if (const Member member = find(*zero.value, *zero.spot, row.name)) {
          return offload(zero, member, row);
        }
      }
    }
    for (const Renamed& row : kRenamed) {
      const Member block = find(document_.root, document_.spot, row.block);
      const Member member =
          block && block.value->is_object() ? find(*block.value, *block.spot, row.name) : Member{};
      if (member) {
        return rename(block, member, row);
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] Edit boolean_zero(const Member& zero) const {
    const bool on = zero.value->get<bool>();
    std::string block = on ? "{\"stage\": 1" : "{\"stage\": 0";
    if (const Member size = find(document_.root, document_.spot, "allgather_size"); on && size) {
      block += ", \"allgather_bucket_size\": " + size.value->dump();
    }
    return {zero.spot->begin,
            zero.spot->end,
            block + "}",
            std::string("zero_optimization: ") + (on ? "true" : "false") + " -> " + block + "}"};
  }

  [[nodiscard]] Edit offload(const Member& zero, const Member& member, const Offload& row) const {
    const std::string from = "zero_optimization." + std::string(row.name);
    const Key flag{"", Kind::kBool, "null", Level::kCore, Feature::kNow, ""};
    const auto on = *member.value == "auto" ? Json(false) : convert_value(flag, *member.value);
    if (!on) {
      refuse(from + " must be true or false", member.spot->begin);
    }
    if (!row.replacement.empty() && find(*zero.value, *zero.spot, row.replacement)) {
      refuse(from + " stands beside " + std::string(row.replacement), member.spot->key_begin);
    }
    if (row.replacement.empty() || *on != true) {
      return removal(*zero.spot, member, from + ": taken out, it has no effect");
    }
    const std::string block = "\"" + std::string(row.replacement) + "\": {\"device\": \"cpu\"}";
    return {member.spot->key_begin, member.spot->end, block, from + " -> " + block};
  }

  [[nodiscard]] Edit rename(const Member& block, const Member& member, const Renamed& row) const {
    const std::string from = std::string(row.block) + "." + std::string(row.name);
    if (find(*block.value, *block.spot, row.replacement)) {
      if (row.block != "aio") {
        refuse(from + " stands beside " + std::string(row.replacement), member.spot->key_begin);
      }
      return removal(*block.spot, member, from + ": taken out, it has no effect");
    }
    return {member.spot->key_begin,
            member.spot->key_end,
            "\"" + std::string(row.replacement) + "\"",
            from + " -> " + std::string(row.replacement)};
  }

  std::string name_;
  Document document_;
};

/// Prints a tree as plain JSON; numbers keep the digits of the source.
class Printer {
 public:
  explicit Printer(const Document& document) : document_(document) {}

  std::string print() {
    value(document_.root, document_.spot, 0);
    return out_ + "\n";
  }

 private:
  void indent(int depth) { out_ += "\n" + std::string(static_cast<std::size_t>(depth) * 2, ' '); }

  void value(const Json& json, const Spot& spot, int depth) {
    if (json.is_number()) {
      out_ += document_.text.substr(spot.begin, spot.end - spot.begin);
    } else if (json.is_structured() && !json.empty()) {
      items(json, spot, depth);
    } else {
      out_ += json.dump();
    }
  }

  void items(const Json& json, const Spot& spot, int depth) {
    const bool object = json.is_object();
    out_ += object ? "{" : "[";
    std::size_t index = 0;
    for (const auto& [key, item] : json.items()) {
      out_ += index > 0 ? "," : "";
      indent(depth + 1);
      out_ += object ? Json(key).dump() + ": " : "";
      value(item, spot.children[index++], depth + 1);
    }
    indent(depth);
    out_ += object ? "}" : "]";
  }

  const Document& document_;
  std::string out_;
};

}  // namespace

std::string convert(const std::string& text,
                    const std::string& name,
                    std::vector<std::string>& notes) {
  Rewriter rewriter(text, name);
  rewriter.run(notes);
  const Document& document = rewriter.document();
  if (document.strict_json) {
    return document.text;
  }
  for (const std::string& note : document.notes) {
    notes.push_back("written as plain JSON: the file had " + note);
  }
  return Printer(document).print();
}

}  // namespace zero::config
