#include "engine/checkpoint/safetensors_header.h"
#include <zero/core/error.h>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>

namespace zero {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "transformer.";
constexpr std::uint64_t kLargestIndex = std::uint64_t{1} << 30;

bool ends_with(const std::string& name, std::string_view end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

/// Masks, not weights; and the head, which is the token embedding.
bool skipped(const std::string& name) {
  return name == "lm_head.weight" ||
         (name.rfind("h.", 0) == 0 &&
          (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias")));
}

/// Files that an index names, each once.
std::set<std::string> shards_of(const std::string& index) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(what, index, "give a folder that HuggingFace or `consolidate` wrote");
  };
  const File file = File::open_to_read(index);
  if (file.size_bytes() > kLargestIndex) {
    refuse("it is too large for an index");
  }
  std::string text(file.size_bytes(), '\0');
  file.read_at(std::as_writable_bytes(std::span(text)), 0);
  const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("weight_map") ||
      !document["weight_map"].is_object()) {
    refuse("there is no \"weight_map\"");
  }
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : document["weight_map"].items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos) {
      refuse(fmt::format("the file of \"{}\" is no name", tensor));
    }
    shards.insert((fs::path(index).parent_path() / name).string());
  }
  return shards;
}

}  // namespace

PretrainedWeights::PretrainedWeights(const std::string& path) : path_(path) {
  std::error_code ignored;
  const std::string whole = (fs::path(path) / "model.safetensors").string();
  const std::string index = whole + ".index.json";
  if (!fs::is_directory(path, ignored)) {
    add_file(path);
  } else if (fs::exists(whole, ignored) || !fs::exists(index, ignored)) {
    add_file(whole);
  } else {
    for (const std::string& shard : shards_of(index)) {
      add_file(shard);
    }
  }
}

void PretrainedWeights::add_file(const std::string& path) {
  const auto file = std::make_shared<const SafetensorsReader>(path);
  for (const auto& [stored, entry] : file->entries()) {
    const std::string name = stored.rfind(kPrefix, 0) == 0 ? stored.substr(kPrefix.size()) : stored;
    if (!skipped(name) && !places_.emplace(name, Place{file, stored}).second) {
      throw InputError(
          fmt::format("\"{}\" is there twice, with and without the prefix or in two files", name),
          path);
    }
  }
}

const PretrainedWeights::Place& PretrainedWeights::place_of(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    throw InputError(
        fmt::format("no tensor \"{}\"", name), path_, "the file belongs to another model");
  }
  return found->second;
}

const SafetensorsEntry& PretrainedWeights::entry_of(const Place& place) {
  const SafetensorsEntry& entry = place.file->entry(place.stored_name);
  if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
    throw InputError(fmt::format("tensor \"{}\" has dtype {}", place.stored_name, entry.dtype),
                     place.file->path(),
                     "weights may be F32, F16 or BF16");
  }
  return entry;
}

std::vector<ParamInfo> PretrainedWeights::parameters() const {
  std::vector<ParamInfo> infos;
  for (const auto& [name, place] : places_) {
    const SafetensorsEntry& entry = entry_of(place);
    if (entry.shape.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
      throw InputError(fmt::format("tensor \"{}\" has {} dimensions", name, entry.shape.size()),
                       place.file->path(),
                       fmt::format("weights may have up to {}", Shape::kMaxRank));
    }
    infos.push_back({.name = name, .shape = Shape(std::span<const std::int64_t>(entry.shape))});
  }
  return infos;
}

void PretrainedWeights::check(std::span<const ParamInfo> parameters) const {
  std::set<std::string> known;
  for (const ParamInfo& parameter : parameters) {
    known.insert(parameter.name);
    const Place& place = place_of(parameter.name);
    const SafetensorsEntry& entry = entry_of(place);
    if (entry.shape != safetensors::dims_of(parameter.shape)) {
      throw InputError(fmt::format("tensor \"{}\" has shape [{}], the model's is {}",
                                   parameter.name,
                                   fmt::join(entry.shape, ", "),
                                   parameter.shape.to_string()),
                       place.file->path(),
                       "the file belongs to another model");
    }
  }
  for (const auto& [name, place] : places_) {
    if (known.count(name) == 0) {
      throw InputError(fmt::format("the model has no parameter \"{}\"", name),
                       path_,
                       "the file belongs to another model");
    }
  }
}

void PretrainedWeights::operator()(const ParamInfo& parameter,
                                   std::int64_t begin,
                                   std::span<float> values) const {
  const Place& place = place_of(parameter.name);
  place.file->read(place.stored_name, begin, values);
}

}  // namespace zero
