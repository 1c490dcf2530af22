#include "config/convert.h"
#include "config/document.h"
#include "config/keys.h"
#include "config/text.h"
#include <zero/config/report.h>

namespace zero::config {
namespace {

Json words(std::string_view allowed, const Key& key) {
  Json list = Json::array();
  for (const std::string_view word : split(allowed, '|')) {
    list.push_back(word);
    if (key.kind == Kind::kWordAnyCase) {
      std::string upper(word);
      upper[0] =
          static_cast<char>(upper[0] >= 'a' && upper[0] <= 'z' ? upper[0] - 'a' + 'A' : upper[0]);
      list.push_back(upper);
    }
  }
  return list;
}

Json number(const char* type, std::string_view allowed) {
  Json json{{"type", type}};
  if (allowed == ">0") {
    json["exclusiveMinimum"] = 0;
  } else if (allowed == ">=0" || allowed == "0..1") {
    json["minimum"] = 0;
  }
  if (allowed == "0..1") {
    json["maximum"] = 1;
  }
  return json;
}

Json list_of(const Json& item) {
  return Json{{"type", "array"}, {"items", item}};
}

/// The plain JSON types of a key; the lenient spellings of a value are left to the parser.
Json plain_type(const Key& key) {
  switch (key.kind) {
    case Kind::kBool:
      return Json{{"type", "boolean"}};
    case Kind::kInt:
    case Kind::kIntNotBool:
    case Kind::kIntOrAuto:
      return number("integer", key.allowed);
    case Kind::kFloat:
    case Kind::kScale:
      return number("number", key.allowed);
    case Kind::kString:
    case Kind::kPath:
      return Json{{"type", "string"}};
    case Kind::kWord:
    case Kind::kWordAnyCase:
      return Json{{"enum", words(key.allowed, key)}};
    case Kind::kStage:
      return Json{{"enum", {0, 1, 2, 3}}};
    case Kind::kList:
      return key.allowed.empty() ? Json{{"type", "array"}}
                                 : list_of(Json{{"enum", words(key.allowed, key)}});
    case Kind::kStrings:
      return list_of(Json{{"type", "string"}});
    case Kind::kObject:
      return Json{{"type", "object"}};
    case Kind::kNumbers:
      return Json{{"type", {"number", "array"}}};
    case Kind::kAny:
    case Kind::kNever:
      return Json::object();
  }
  return Json::object();
}

Json key_schema(const Key& key) {
  Json any = Json::array({plain_type(key), Json{{"const", "auto"}}});
  if (key.fallback == "null") {
    any.push_back(Json{{"type", "null"}});
  }
  Json json;
  json["description"] =
      std::string(key.meaning) + (key.cost.empty() ? "" : ". " + std::string(key.cost));
  json["default"] = fallback_value(key);
  if (!key.extras.replaced_by.empty()) {
    json["deprecated"] = true;
    json["description"] = "Deprecated: write " + std::string(key.extras.replaced_by) + ". " +
                          std::string(key.meaning);
  }
  if (!plain_type(key).empty()) {
    json["anyOf"] = any;
  }
  return json;
}

void add_keys(Json& properties, const Block& block) {
  for (const Key& key : block.keys) {
    properties[key.name] = key_schema(key);
    if (!key.extras.other_name.empty()) {
      properties[key.extras.other_name] = key_schema(key);
    }
  }
}

Json block_schema(const Block& block);

/// Blocks directly below `path` that do not depend on a type.
void add_blocks(Json& properties, std::string_view path) {
  const std::string prefix = path.empty() ? "" : std::string(path) + ".";
  for (const Block& other : blocks()) {
    const bool below = !other.path.empty() && other.path.substr(0, prefix.size()) == prefix &&
                       other.path.find('.', prefix.size()) == std::string_view::npos;
    if (below && other.path != path && other.variant.empty()) {
      properties[other.path.substr(prefix.size())] = block_schema(other);
    }
  }
}

/// "if type is … then params are …" for every variant of optimizer.params and scheduler.params.
Json variant_rules(std::string_view owner) {
  Json rules = Json::array();
  for (const Block& block : blocks()) {
    if (block.variant.empty() || block.path.substr(0, block.path.find('.')) != owner) {
      continue;
    }
    std::string pattern;
    for (const std::string_view name : split(block.variant, '|')) {
      pattern += pattern.empty() ? "^(" : "|";
      for (const char letter : name) {
        const bool fold = owner == "optimizer" && name != "sgd" && letter >= 'a' && letter <= 'z';
        const char upper = static_cast<char>(letter - 'a' + 'A');
        pattern += fold ? std::string{'[', letter, upper, ']'}
                        : std::string(1, name == "sgd" ? upper : letter);
      }
    }
    Json params = block_schema(block);
    params["type"] = Json::array({"object", "null"});
    rules.push_back(Json{
        {"if", {{"properties", {{"type", {{"pattern", pattern + ")$"}}}}}, {"required", {"type"}}}},
        {"then", {{"properties", {{"params", params}}}}}});
  }
  return rules;
}

Json block_schema(const Block& block) {
  Json json;
  json["description"] = block.meaning;
  json["type"] = block.nullable ? Json::array({"object", "null"}) : Json("object");
  if (block.path == "zero_optimization") {
    json["type"] = {"object", "boolean"};
  } else if (block.path.find('.') != std::string_view::npos && block.strict) {
    json["type"] = {"object", "null", "string"};
  }
  Json properties = Json::object();
  add_keys(properties, block);
  if (block.variant.empty()) {
    add_blocks(properties, block.path);
  }
  json["properties"] = properties;
  if (block.strict) {
    json["additionalProperties"] = Json{{"const", "auto"}};
  } else if (!block.variant.empty()) {
    json["additionalProperties"] = false;
  }
  if (const Json rules = variant_rules(block.path);
      block.path == "optimizer" || block.path == "scheduler") {
    json["allOf"] = rules;
  }
  return json;
}

}  // namespace

std::string schema() {
  Json json;
  json["$schema"] = "http://json-schema.org/draft-07/schema#";
  json["title"] = "ds_config";
  json["$comment"] = "Generated from the key table by zero_config_files; do not edit.";
  const Json root = block_schema(*find_block(""));
  for (const auto& [name, value] : root.items()) {
    json[name] = value;
  }
  json["description"] = "Configuration of a training with ZeRO, as DeepSpeed reads it";
  for (const Removed& removed : removed_blocks()) {
    json["properties"][removed.name] = Json{
        {"not", Json::object()},
        {"description",
         std::string(removed.what) + " has been removed; use " + std::string(removed.instead)}};
  }
  return json.dump(2) + "\n";
}

}  // namespace zero::config
