#include "engine/checkpoint/safetensors_header.h"
#include <zero/core/error.h>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>

namespace zero {
namespace {

constexpr std::string_view kPrefix = "transformer.";

std::string file_of(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored)
             ? (std::filesystem::path(path) / "model.safetensors").string()
             : path;
}

bool ends_with(const std::string& name, std::string_view end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

/// Masks, not weights; and the head, which is the token embedding.
bool skipped(const std::string& name) {
  return name == "lm_head.weight" ||
         (name.rfind("h.", 0) == 0 &&
          (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias")));
}

}  // namespace

PretrainedWeights::PretrainedWeights(const std::string& path)
    : reader_(std::make_shared<SafetensorsReader>(file_of(path))) {
  for (const auto& [stored, entry] : reader_->entries()) {
    const std::string name = stored.rfind(kPrefix, 0) == 0 ? stored.substr(kPrefix.size()) : stored;
    if (!skipped(name) && !stored_names_.emplace(name, stored).second) {
      throw InputError(fmt::format("\"{}\" is there with and without the prefix", name),
                       reader_->path());
    }
  }
}

const std::string& PretrainedWeights::stored_name(const std::string& name) const {
  const auto found = stored_names_.find(name);
  if (found == stored_names_.end()) {
    throw InputError(fmt::format("no tensor \"{}\"", name),
                     reader_->path(),
                     "the file belongs to another model");
  }
  return found->second;
}

void PretrainedWeights::check(std::span<const ParamInfo> parameters) const {
  std::set<std::string> known;
  for (const ParamInfo& parameter : parameters) {
    known.insert(parameter.name);
    const SafetensorsEntry& entry = reader_->entry(stored_name(parameter.name));
    if (entry.shape != safetensors::dims_of(parameter.shape)) {
      throw InputError(fmt::format("tensor \"{}\" has shape [{}], the model's is {}",
                                   parameter.name,
                                   fmt::join(entry.shape, ", "),
                                   parameter.shape.to_string()),
                       reader_->path(),
                       "the file belongs to another model");
    }
    if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
      throw InputError(fmt::format("tensor \"{}\" has dtype {}", parameter.name, entry.dtype),
                       reader_->path(),
                       "weights may be F32, F16 or BF16");
    }
  }
  for (const auto& [name, stored] : stored_names_) {
    if (known.count(name) == 0) {
      throw InputError(fmt::format("the model has no parameter \"{}\"", name),
                       reader_->path(),
                       "the file belongs to another model");
    }
  }
}

void PretrainedWeights::operator()(const ParamInfo& parameter,
                                   std::int64_t begin,
                                   std::span<float> values) const {
  reader_->read(stored_name(parameter.name), begin, values);
}

}  // namespace zero
