#include "config/check.h"
#include "config/convert.h"
#include "config/text.h"
#include <zero/config/report.h>
#include <zero/core/error.h>

#include <algorithm>

namespace zero::config {
namespace {

std::string plain(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string origin_text(const Checked& c, const std::string& path, const Value& value) {
  switch (value.origin) {
    case Origin::kAuto:
      return "auto";
    case Origin::kDerived:
      return "derived";
    case Origin::kDefault:
      return "default";
    case Origin::kFile:
      break;
  }
  const Place place = c.document.place(c.offset(path));
  return "file " + std::to_string(place.line) + ":" + std::to_string(place.column);
}

std::string force_text(const Key& key) {
  if (key.feature == Feature::kIdle) {
    return "no effect here";
  }
  const FeatureState& state = feature_state(key.feature);
  return state.available ? "" : std::string(state.what) + " is not supported yet";
}

std::string line(const std::string& path,
                 const std::string& value,
                 const std::string& origin,
                 const Key& key) {
  std::string text = path + " = " + value;
  text.resize(std::max<std::size_t>(text.size(), 64), ' ');
  text += "  [" + origin + "]  " + std::string(key.meaning);
  if (const std::string force = force_text(key); !force.empty()) {
    text += "; " + force;
  }
  return text + (key.cost.empty() ? "" : "; " + std::string(key.cost)) + "\n";
}

/// Value and origin of keys whose default depends on others.
Value in_force(const Checked& c, const std::string& path) {
  const auto found = c.values.find(path);
  if (found != c.values.end()) {
    Value value = found->second;
    if (path == "gradient_clipping" && value.raw == "auto") {
      value.origin = Origin::kAuto;
    }
    return value;
  }
  Value value{.value = c.at(path), .raw = {}, .origin = Origin::kDefault};
  const auto derive = [&](Json derived) {
    value.value = std::move(derived);
    value.origin = Origin::kDerived;
  };
  if (path == "zero_optimization.overlap_comm") {
    derive(c.at("zero_optimization.stage") == 3);
  } else if (c.batch.known && path == "train_batch_size") {
    derive(c.batch.total.json());
  } else if (c.batch.known && path == "train_micro_batch_size_per_gpu") {
    derive(c.batch.micro.json());
  } else if (c.batch.known && path == "gradient_accumulation_steps") {
    derive(c.batch.steps.json());
  }
  return value;
}

/// Whether the block says something about this configuration: it is in the file, or its keys are
/// in force without being written.
bool concerns(const Checked& c, const Block& block) {
  return block.path.empty() || !block.variant.empty() || block.path == "zero_optimization" ||
         c.given(block.path);
}

/// The variant of optimizer.params or scheduler.params that the file uses.
bool is_active(const Checked& c, const Block& block) {
  if (block.variant.empty()) {
    return true;
  }
  const Json& type = c.raw(join_path(block.path.substr(0, block.path.find('.')), "type"));
  if (!type.is_string()) {
    return false;
  }
  const bool schedule = block.path[0] == 's';
  const std::string name = schedule ? type.get<std::string>() : lower(type.get<std::string>());
  const auto names = split(block.variant, '|');
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string explain_block(const Checked& c, const Block& block) {
  std::string text;
  for (const Key& key : block.keys) {
    const std::string path = join_path(block.path, key.name);
    const bool given = c.values.count(path) != 0;
    const bool quiet = key.feature == Feature::kIdle || !key.extras.replaced_by.empty() ||
                       !feature_state(key.feature).available;
    if (!given && quiet) {
      continue;
    }
    Value value = in_force(c, path);
    if (!given && !block.variant.empty()) {
      value.value = fallback_value(key);
    }
    text += line(path, plain(value.value), origin_text(c, path, value), key);
  }
  return text;
}

std::string describe(const Block& block, const Key& key) {
  std::string text = join_path(block.path, key.name);
  if (!block.variant.empty()) {
    text += " (" + std::string(block.variant) + ")";
  }
  text += "\n  " + std::string(key.meaning) + "\n  value: " + allowed_text(key) + ", default " +
          std::string(key.fallback) + "\n";
  const auto add = [&](const char* label, std::string_view what) {
    if (!what.empty()) {
      text += std::string("  ") + label + ": " + std::string(what) + "\n";
    }
  };
  add("also written", key.extras.other_name);
  add("deprecated; write instead", key.extras.replaced_by);
  const std::string force = force_text(key);
  add("in force", force.empty() ? std::string("yes") : force);
  add(key.feature == Feature::kIdle ? "consequence" : "cost", key.cost);
  return text;
}

/// The full path that is nearest by its whole or by its last part.
std::string nearest_key(const std::string& wanted, const std::vector<std::string>& paths) {
  std::vector<std::string_view> wholes(paths.begin(), paths.end());
  if (std::string near = nearest(wanted, wholes); !near.empty()) {
    return near;
  }
  std::vector<std::string_view> ends = wholes;
  for (std::string_view& end : ends) {
    end.remove_prefix(end.rfind('.') + 1);  // npos + 1 is 0
  }
  const std::string near = nearest(wanted, ends);
  const auto found = std::find(ends.begin(), ends.end(), near);
  return near.empty() ? near : paths[static_cast<std::size_t>(found - ends.begin())];
}

}  // namespace

std::string explain_file(const std::string& text,
                         const std::string& name,
                         const LoadOptions& options) {
  const Checked checked = check(text, options);
  if (!text.empty() && !checked.errors.empty()) {
    throw ConfigError(
        issue_text(checked.errors.front(), name), {}, "zero validate lists all errors");
  }
  std::string out;
  for (const Block& block : blocks()) {
    if (concerns(checked, block) && is_active(checked, block)) {
      out += explain_block(checked, block);
    }
  }
  return out;
}

std::string explain_key(const std::string& wanted) {
  std::string out;
  std::vector<std::string> paths;
  for (const Block& block : blocks()) {
    if (block.path == wanted && block.variant.empty() && !wanted.empty()) {
      out += std::string(block.path) + "\n  " + std::string(block.meaning) + "\n";
    }
    for (const Key& key : block.keys) {
      paths.push_back(join_path(block.path, key.name));
      const bool other = !key.extras.other_name.empty() &&
                         (wanted == key.extras.other_name ||
                          wanted == join_path(block.path, key.extras.other_name));
      if (wanted == paths.back() || wanted == key.name || other) {
        out += describe(block, key);
      }
    }
  }
  if (out.empty()) {
    const std::string near = nearest_key(wanted, paths);
    throw InputError("no key is called " + in_quotes(wanted),
                     {},
                     near.empty() ? "see docs/CONFIG.md" : "did you mean " + near + "?");
  }
  return out;
}

}  // namespace zero::config
