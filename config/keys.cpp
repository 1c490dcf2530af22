#include "config/keys.h"

#include "config/text.h"

#include <algorithm>

namespace zero::config {
namespace {

std::vector<Block> collect() {
  std::vector<Block> all;
  for (const auto part : {root_blocks(),
                          params_blocks(),
                          zero_blocks(),
                          offload_blocks(),
                          training_blocks(),
                          foreign_blocks()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

bool lists(std::string_view variants, std::string_view wanted) {
  const auto words = split(variants, '|');
  return std::find(words.begin(), words.end(), wanted) != words.end();
}

}  // namespace

std::span<const Block> blocks() {
  static const std::vector<Block> all = collect();
  return all;
}

const Block* find_block(std::string_view path, std::string_view variant) {
  for (const Block& block : blocks()) {
    if (block.path == path &&
        (variant.empty() ? block.variant.empty() : lists(block.variant, variant))) {
      return &block;
    }
  }
  return nullptr;
}

const Key* find_key(const Block& block, std::string_view name) {
  for (const Key& key : block.keys) {
    if (key.name == name || (!key.extras.other_name.empty() && key.extras.other_name == name)) {
      return &key;
    }
  }
  return nullptr;
}

std::vector<std::string_view> names_below(const Block& block) {
  std::vector<std::string_view> names;
  for (const Key& key : block.keys) {
    if (key.extras.replaced_by.empty()) {
      names.push_back(key.name);
    }
  }
  const std::string prefix = block.path.empty() ? "" : std::string(block.path) + ".";
  for (const Block& other : blocks()) {
    const bool below =
        other.path.size() > prefix.size() && other.path.substr(0, prefix.size()) == prefix;
    const std::string_view rest = below ? other.path.substr(prefix.size()) : std::string_view{};
    if (!rest.empty() && rest.find('.') == std::string_view::npos && other.variant.empty()) {
      names.push_back(rest);
    }
  }
  return names;
}

std::string join_path(std::string_view block, std::string_view name) {
  return block.empty() ? std::string(name) : std::string(block) + "." + std::string(name);
}

}  // namespace zero::config
