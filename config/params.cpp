#include "config/check.h"
#include "config/convert.h"
#include "config/text.h"

#include <algorithm>

namespace zero::config {
namespace {

using Fills = std::map<std::string, Json, std::less<>>;

/// Names that DeepSpeed matches in any case; all other types are classes of PyTorch.
constexpr std::string_view kAnyCase =
    "adam|adamw|adagrad|lamb|lion|muon|onebitadam|onebitlamb|zerooneadam";
constexpr std::string_view kHere = "adam|adamw|sgd|lion|adagrad";
constexpr std::string_view kChoices = "use Adam, AdamW, SGD, Lion or Adagrad";
/// Their update of an element depends on the whole parameter, which no rank holds.
constexpr std::string_view kWholeParameter = "lamb|muon|onebitlamb";
constexpr std::string_view kSchedules =
    "WarmupLR|WarmupDecayLR|WarmupCosineLR|LRRangeTest|OneCycle";

bool lists(std::string_view words, std::string_view word) {
  const auto all = split(words, '|');
  return std::find(all.begin(), all.end(), word) != all.end();
}

void refuse(Checked& out,
            std::string path,
            const Json& value,
            std::string message,
            std::string todo,
            std::size_t offset) {
  out.block("bad_value",
            {.path = std::move(path),
             .value = value_text(value),
             .message = std::move(message),
             .todo = std::move(todo)},
            offset);
}

/// Name under which the table lists the type; empty if it is not known here.
std::string variant_of(Checked& out, std::string_view owner, const std::string& type) {
  const std::string path = join_path(owner, "type");
  const std::size_t offset = out.offset(path);
  if (owner == "scheduler") {
    if (!lists(kSchedules, type)) {
      const std::string near = nearest(type, split(kSchedules, '|'));
      refuse(out,
             path,
             type,
             "is not a schedule that is known here",
             near.empty()
                 ? "use one of WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle"
                 : "did you mean " + near + "?",
             offset);
      return {};
    }
    return type;
  }
  const std::string name = lower(type);
  if (type == "SGD" || lists(kAnyCase, name)) {
    if (!lists(kHere, name)) {
      refuse(out,
             path,
             type,
             lists(kWholeParameter, name)
                 ? "updates whole parameters at a time, which slices on several ranks do not allow"
                 : "is an optimizer that is not available here",
             std::string(kChoices),
             offset);
    }
    return name;
  }
  const std::string near =
      nearest(type, {"Adam", "AdamW", "SGD", "Adagrad", "Lion", "Lamb", "Muon"});
  refuse(out,
         path,
         type,
         "is not an optimizer that is available here",
         near.empty() ? std::string(kChoices) : "did you mean " + near + "?",
         offset);
  return {};
}

void check_betas(Checked& out, const std::string& path, const Json& value, std::size_t offset) {
  const bool good =
      value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number();
  if (!good && value != "auto") {
    refuse(out, path, value, "must be a list of two numbers", "for example [0.9, 0.999]", offset);
  }
}

void check_param(Checked& out,
                 const Block& block,
                 const std::string& name,
                 const Json& raw,
                 std::size_t offset,
                 const Fills& fills) {
  const std::string path = join_path(block.path, name);
  const Key* key = find_key(block, name);
  if (key == nullptr) {
    const std::string near = nearest(name, names_below(block));
    const bool clipping = name == "max_grad_norm";
    refuse(out,
           path,
           raw,
           "is not an argument of this type; DeepSpeed fails when it builds it",
           clipping       ? "write gradient_clipping at the top level"
           : near.empty() ? "take it out"
                          : "did you mean " + near + "?",
           offset);
    return;
  }
  Value& slot = out.values[path];
  slot = {.value = raw, .raw = raw, .origin = Origin::kFile, .offset = offset};
  if (raw == "auto") {
    const auto fill = fills.find(path);
    if (fill == fills.end()) {
      refuse(out, path, raw, "is \"auto\" and nothing here fills it in", "write the value", offset);
    } else {
      slot.value = fill->second;
      slot.origin = Origin::kAuto;
    }
    return;
  }
  if (name == "betas") {
    check_betas(out, path, raw, offset);
    return;
  }
  const bool text_number =
      raw.is_string() && key->kind != Kind::kString && key->kind != Kind::kWord;
  const auto converted = text_number ? std::nullopt : convert_value(*key, raw);
  if (!converted) {
    refuse(out,
           path,
           raw,
           "must be " + allowed_text(*key),
           text_number ? "write it without quotes" : "",
           offset);
    return;
  }
  slot.value = *converted;
  if (key->feature == Feature::kOptimizerFlags && key->extras.gate &&
      *converted != fallback_value(*key)) {
    out.block("not_supported",
              {.path = path,
               .value = value_text(raw),
               .message = std::string(feature_state(key->feature).what) + " is not supported yet",
               .todo = "leave it at " + std::string(key->fallback)},
              offset);
  }
}

void require(Checked& out, const Block& block, std::size_t offset) {
  for (const Key& key : block.keys) {
    const std::string path = join_path(block.path, key.name);
    if (key.extras.required && !out.given(path)) {
      out.block("missing",
                {.path = path,
                 .message = "is missing, and this type needs it",
                 .todo = "give " + allowed_text(key)},
                offset);
    }
  }
}

}  // namespace

void check_params(Checked& out,
                  std::string_view owner,
                  const Spot* params_spot,
                  const Fills& fills) {
  if (!out.given(owner) || !out.raw(owner).is_object()) {
    return;
  }
  const std::string type_path = join_path(owner, "type");
  const std::string params_path = join_path(owner, "params");
  const Json type = out.raw(type_path);
  if (type.is_null()) {
    return;
  }
  if (!type.is_string()) {
    if (owner == "optimizer") {  // DeepSpeed lowers its case while it reads the file
      out.error("bad_value",
                {.path = type_path,
                 .value = value_text(type),
                 .message = "must be a string",
                 .todo = "name an optimizer"},
                out.offset(type_path));
    }
    return;
  }
  const std::string variant = variant_of(out, owner, type.get<std::string>());
  const Block* block = variant.empty() ? nullptr : find_block(params_path, variant);
  if (block == nullptr) {
    return;
  }
  const Json& params = out.raw(params_path);
  const std::size_t place =
      out.given(params_path) ? out.offset(params_path) : out.offset(type_path);
  if (params.is_null() && owner == "scheduler") {
    out.block("missing",
              {.path = params_path,
               .message = "is missing; DeepSpeed fails when it builds the schedule",
               .todo = "give its arguments"},
              place);
  } else if (params.is_object() && params_spot != nullptr) {
    std::size_t index = 0;
    for (const auto& [name, value] : params.items()) {
      check_param(out, *block, name, value, params_spot->children[index++].begin, fills);
    }
    require(out, *block, place);
  }
}

}  // namespace zero::config
