#include "config/check.h"
#include "config/convert.h"
#include "config/text.h"

#include <map>

namespace zero::config {
namespace {

using Fills = std::map<std::string, Json, std::less<>>;

/// Names that mean a key elsewhere, but are too far from it for the spelling search.
struct Hint {
  std::string_view name;
  std::string_view instead;
};
constexpr Hint kHints[] = {
    {"max_grad_norm", "gradient_clipping"},
    {"zero_optimization_stage", "zero_optimization.stage"},
    {"allreduce_always_fp32", "communication_data_type"},
    {"fp32_allreduce", "communication_data_type"},
    {"batch_size", "train_batch_size"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"checkpoint_activations", "activation_checkpointing"},
    {"dynamic_loss_scale", "loss_scale: 0"},
    {"find_unused_parameters", "ignore_unused_parameters"},
    {"allreduce_bucket_size", "reduce_bucket_size"},
    {"cpu-offload", "offload_optimizer"},
};

/// What a name without meaning in `block` probably stands for.
std::string suggestion(const Block& block, std::string_view name) {
  for (const Hint& hint : kHints) {
    if (hint.name == name) {
      return std::string(hint.instead);
    }
  }
  if (std::string near = nearest(name, names_below(block)); !near.empty()) {
    return near;
  }
  if (name.size() < 4 || name == "enabled") {
    return {};
  }
  const std::string_view family = block.path.substr(0, block.path.find('.'));
  const std::string ending = "." + std::string(name);
  for (const Block& other : blocks()) {
    if (!other.variant.empty() || other.path.substr(0, family.size()) != family) {
      continue;
    }
    const std::size_t size = other.path.size();
    if (size > ending.size() && other.path.substr(size - ending.size()) == ending) {
      return std::string(other.path);
    }
    if (find_key(other, name) != nullptr) {
      return join_path(other.path, name);
    }
  }
  return {};
}

/// Walks the document's blocks with the table in hand.
class Walker {
 public:
  Walker(Checked& out, const LoadOptions& options)
      : out_(out), options_(options), fills_(auto_fills(options)) {}

  void root() {
    const Block& root = *find_block("");
    for_each_member(out_.document.root,
                    out_.document.spot,
                    [&](const std::string& name, const Json& value, const Spot& spot) {
                      if (refuse_removed(name, spot)) {
                        return;
                      }
                      if (const Block* block = find_block(name)) {
                        enter(*block, value, spot);
                      } else if (const Key* key = find_key(root, name)) {
                        loose_key(root, *key, name, value, spot);
                      } else {
                        unknown_at_root(root, name, value, spot);
                      }
                    });
  }

 private:
  template <class Visit>
  static void for_each_member(const Json& object, const Spot& spot, const Visit& visit) {
    std::size_t index = 0;
    for (const auto& [name, value] : object.items()) {
      visit(name, value, spot.children[index++]);
    }
  }

  bool refuse_removed(const std::string& name, const Spot& spot) {
    for (const Removed& removed : removed_blocks()) {
      if (removed.name == name) {
        out_.error("removed_feature",
                   {.path = name,
                    .message = std::string(removed.what) + " has been removed from DeepSpeed",
                    .todo = "take the block out; use " + std::string(removed.instead)},
                   spot.key_begin);
        return true;
      }
    }
    return false;
  }

  void unknown_at_root(const Block& root,
                       const std::string& name,
                       const Json& value,
                       const Spot& spot) {
    if (!name.empty() && (name.front() == '_' || name.front() == '$')) {
      return;  // a remark in JSON's only way of writing one
    }
    if ((options_.strict ? out_.errors : out_.warnings).size() >= kMaxIssues) {
      return;
    }
    const std::string guess = suggestion(root, name);
    Issue issue{.path = name,
                .value = value_text(value),
                .message = "is not a key of a ds_config; DeepSpeed ignores it",
                .todo = guess.empty() ? "take it out" : "did you mean " + guess + "?"};
    if (options_.strict) {
      out_.error("unknown_key", std::move(issue), spot.key_begin);
    } else {
      out_.warn("unknown_key", std::move(issue), spot.key_begin);
    }
  }

  static bool inside_strict(const Block& block) {
    const auto dot = block.path.rfind('.');
    return dot != std::string_view::npos && find_block(block.path.substr(0, dot))->strict;
  }

  void enter(const Block& block, const Json& value, const Spot& spot) {
    const std::string path(block.path);
    if (value == "auto" && inside_strict(block)) {
      return;  // dropped like any other key
    }
    out_.values[path] = {
        .value = value, .raw = value, .origin = Origin::kFile, .offset = spot.begin};
    if (path == "datastates_ckpt") {
      if (value != false) {
        idle(path, value, block.meaning, spot);
      }
      return;
    }
    if (value.is_null() && block.nullable) {
      return;
    }
    if (path == "zero_optimization" && value.is_boolean()) {
      boolean_zero(value.get<bool>(), spot);
      return;
    }
    if (!value.is_object()) {
      out_.error("bad_value",
                 {.path = path,
                  .value = value_text(value),
                  .message = "is a block, so it must be an object",
                  .todo = block.nullable ? "write { … } or null" : "write { … } or leave it out"},
                 spot.begin);
      return;
    }
    for_each_member(value, spot, [&](const std::string& name, const Json& item, const Spot& place) {
      member(block, name, item, place);
    });
  }

  void boolean_zero(bool on, const Spot& spot) {
    out_.values["zero_optimization.stage"] = {
        .value = on ? 1 : 0, .raw = on, .origin = Origin::kDerived, .offset = spot.begin};
    if (on) {
      const Json& size = out_.document.root.contains("allgather_size")
                             ? out_.document.root["allgather_size"]
                             : out_.at("allgather_size");
      const Key& key = *find_key(*find_block("zero_optimization"), "allgather_bucket_size");
      if (const auto converted = convert_value(key, size)) {
        out_.values["zero_optimization.allgather_bucket_size"] = {
            .value = *converted, .raw = size, .origin = Origin::kDerived, .offset = spot.begin};
      } else {
        bad_value("allgather_size", key, size, spot.begin);
      }
    }
    out_.warn("deprecated",
              {.path = "zero_optimization",
               .value = on ? "true" : "false",
               .message = "a boolean is deprecated",
               .todo = on ? "write {\"stage\": 1}" : "write {\"stage\": 0}"},
              spot.begin);
  }

  void member(const Block& block, const std::string& name, const Json& value, const Spot& spot) {
    const std::string path = join_path(block.path, name);
    if (const Block* below = find_block(path)) {
      enter(*below, value, spot);
      return;
    }
    const Key* key = find_key(block, name);
    if (block.strict && value == "auto") {
      strict_auto(block, key, spot);
      return;
    }
    if (key == nullptr) {
      unknown_member(block, name, value, spot);
      return;
    }
    if (block.strict) {
      strict_key(block, *key, name, value, spot);
    } else {
      loose_key(block, *key, name, value, spot);
    }
  }

  void strict_auto(const Block& block, const Key* key, const Spot& spot) {
    if (key == nullptr || !key->extras.replaced_by.empty()) {
      return;  // DeepSpeed drops the pair before it looks at the name
    }
    const std::string path = join_path(block.path, key->name);
    if (out_.values.count(path) != 0) {
      return;  // the key's other name has a value
    }
    const auto fill = fills_.find(path);
    const Json value = fill == fills_.end() ? fallback_value(*key) : fill->second;
    out_.values[path] = {
        .value = value, .raw = "auto", .origin = Origin::kAuto, .offset = spot.begin};
    if (fill != fills_.end()) {
      feature(path, *key, value, value, spot);
    }
  }

  void unknown_member(const Block& block,
                      const std::string& name,
                      const Json& value,
                      const Spot& spot) {
    if (block.open || (block.strict ? out_.errors : out_.warnings).size() >= kMaxIssues) {
      return;
    }
    const std::string guess = suggestion(block, name);
    Issue issue{.path = join_path(block.path, name),
                .value = value_text(value),
                .message = "is not a key of " + std::string(block.path),
                .todo = guess.empty() ? "take it out" : "did you mean " + guess + "?"};
    if (block.strict) {
      out_.error("unknown_key", std::move(issue), spot.key_begin);
    } else {
      issue.message += "; DeepSpeed ignores it";
      out_.warn("unknown_key", std::move(issue), spot.key_begin);
    }
  }

  void bad_value(const std::string& path, const Key& key, const Json& value, std::size_t offset) {
    out_.error("bad_value",
               {.path = path,
                .value = value_text(value),
                .message = "must be " + allowed_text(key),
                .todo = value.is_string() && convert_value(key, unquoted(value))
                            ? "write it without quotes"
                            : ""},
               offset);
  }

  /// The number that a string seems to mean.
  static Json unquoted(const Json& text) {
    const Json parsed = Json::parse(text.get_ref<const std::string&>(), nullptr, false);
    return parsed.is_number() || parsed.is_boolean() ? parsed : Json(nullptr);
  }

  void strict_key(const Block& block,
                  const Key& key,
                  const std::string& name,
                  const Json& value,
                  const Spot& spot) {
    const std::string path = join_path(block.path, key.name);
    const auto other = out_.values.find(path);
    if (other != out_.values.end() && other->second.origin != Origin::kAuto) {
      out_.error("unknown_key",
                 {.path = join_path(block.path, name),
                  .value = value_text(value),
                  .message = "means the same as " +
                             std::string(name == key.name ? key.extras.other_name : key.name) +
                             ", which is given too",
                  .todo = "keep one of them"},
                 spot.key_begin);
      return;
    }
    const auto converted = convert_value(key, value);
    if (!converted) {
      bad_value(join_path(block.path, name), key, value, spot.begin);
      return;
    }
    out_.values[path] = {
        .value = *converted, .raw = value, .origin = Origin::kFile, .offset = spot.begin};
    feature(path, key, *converted, value, spot);
  }

  void loose_key(const Block& block,
                 const Key& key,
                 const std::string& name,
                 const Json& value,
                 const Spot& spot) {
    const std::string path = join_path(block.path, key.name);
    Value& slot = out_.values[path];
    slot = {.value = value, .raw = value, .origin = Origin::kFile, .offset = spot.begin};
    if (key.extras.checked && !passes_parse(key, value)) {
      bad_value(join_path(block.path, name), key, value, spot.begin);
      return;
    }
    if (block.path.empty() && key.kind == Kind::kInt && key.fallback == "null" &&
        key.allowed == ">0" && key.feature == Feature::kNow) {
      return;  // the batch triple has its own arithmetic
    }
    if (value == "auto" && fills_.count(path) != 0) {
      slot.value = fills_.find(path)->second;
      slot.origin = Origin::kAuto;
      return;
    }
    if (const auto converted = convert_value(key, value)) {
      slot.value = *converted;
      if (key.kind == Kind::kBool && truthy(value) != truthy(*converted)) {
        misread(path, value, *converted, spot);
      }
      feature(path, key, *converted, value, spot);
      return;
    }
    slot.value = fallback_value(key);
    loose_misfit(path, key, value, spot);
  }

  /// What DeepSpeed itself checks while it reads a loose block.
  static bool passes_parse(const Key& key, const Json& value) {
    if (key.name == "wall_clock_breakdown") {
      return value.is_boolean() || value.is_number_integer();
    }
    if (key.name == "vocabulary_size") {
      return value.is_number() || !truthy(value) || value == true;
    }
    return convert_value(key, value).has_value();
  }

  void misread(const std::string& path, const Json& value, const Json& meant, const Spot& spot) {
    out_.block("bad_value",
               {.path = path,
                .value = value_text(value),
                .message = "is a string, which DeepSpeed takes for true",
                .todo = "write " + meant.dump() + " without quotes"},
               spot.begin);
  }

  /// A value that DeepSpeed does not look at while it reads the file, and trips over later.
  void loose_misfit(const std::string& path, const Key& key, const Json& value, const Spot& spot) {
    Issue issue{.path = path,
                .value = value_text(value),
                .message = "must be " + allowed_text(key),
                .todo = "DeepSpeed accepts the file and fails or misreads it later"};
    if (value == "auto") {
      issue.message = "is \"auto\" and nothing here fills it in";
      issue.todo = "write the value";
    }
    if (key.feature == Feature::kIdle) {
      out_.warn("bad_value", std::move(issue), spot.begin);
    } else {
      out_.block("bad_value", std::move(issue), spot.begin);
    }
  }

  void idle(const std::string& path, const Json& value, std::string_view why, const Spot& spot) {
    out_.warn("no_effect",
              {.path = path,
               .value = value_text(value),
               .message = "has no effect here",
               .todo = std::string(why)},
              spot.begin);
  }

  /// Warnings and refusals that follow from a converted value.
  void feature(const std::string& path,
               const Key& key,
               const Json& value,
               const Json& raw,
               const Spot& spot) {
    if (!key.extras.replaced_by.empty()) {
      out_.warn("deprecated",
                {.path = path,
                 .value = value_text(raw),
                 .message = "is deprecated",
                 .todo = "write " + std::string(key.extras.replaced_by) + " instead"},
                spot.key_begin);
      return;
    }
    if (value == fallback_value(key)) {
      return;
    }
    const FeatureState& state = feature_state(key.feature);
    if (key.feature == Feature::kIdle) {
      idle(path, raw, key.cost, spot);
    } else if (!state.available && key.extras.gate && refusable(path, value)) {
      out_.block("not_supported",
                 {.path = path,
                  .value = value_text(raw),
                  .message = std::string(state.what) + " is not supported yet",
                  .todo = "leave it at " + std::string(key.fallback)},
                 spot.begin);
    }
  }

  /// Whether a value other than the default asks for something by itself; check_rules() looks at
  /// those that depend on other keys.
  static bool refusable(const std::string& path, const Json& value) {
    if (path == "tensor_parallel.autotp_size" ||
        path == "zero_optimization.zero_hpz_partition_size") {
      return value > 1;
    }
    if (path == "zero_optimization.mics_shard_size") {
      return value > 0;
    }
    return path != "zero_optimization.offload_param.device" &&
           path != "data_types.grad_accum_dtype" && path != "communication_data_type" &&
           path.substr(0, 5) != "bf16." && path.substr(0, 9) != "bfloat16.";
  }

  Checked& out_;
  const LoadOptions& options_;
  Fills fills_;
};

}  // namespace

void walk(Checked& out, const LoadOptions& options) {
  Walker(out, options).root();
}

}  // namespace zero::config
