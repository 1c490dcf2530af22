#include <zero/config/config.h>
#include <zero/core/error.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace zero::config {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
void take(const Json& block, const char* key, T& target) {
  if (block.contains(key) && block[key] != "auto") {
    target = block[key].get<T>();
  }
}

std::optional<std::int64_t> take_count(const Json& root,
                                       const char* key,
                                       const std::optional<std::int64_t>& given) {
  if (given || !root.contains(key) || root[key].is_null() || root[key] == "auto") {
    return given;
  }
  return root[key].get<std::int64_t>();
}

void resolve_batch(const Json& root, const LoadOptions& options, Config& config) {
  auto total = take_count(root, "train_batch_size", options.train_batch_size);
  auto micro =
      take_count(root, "train_micro_batch_size_per_gpu", options.train_micro_batch_size_per_gpu);
  auto steps =
      take_count(root, "gradient_accumulation_steps", options.gradient_accumulation_steps);
  if (!total && !micro) {
    throw ConfigError("train_batch_size or train_micro_batch_size_per_gpu must be given");
  }
  if (!steps) {
    steps = total && micro && *micro != 0 ? *total / *micro / options.world : 1;
  }
  if (!micro) {
    micro = *steps == 0 ? 0 : *total / options.world / *steps;
  }
  if (!total) {
    total = *micro * *steps * options.world;
  }
  if (*total <= 0 || *micro <= 0 || *steps <= 0 || *total != *micro * *steps * options.world) {
    throw ConfigError("train_batch_size " + std::to_string(*total) +
                      " is not train_micro_batch_size_per_gpu " + std::to_string(*micro) +
                      " x gradient_accumulation_steps " + std::to_string(*steps) + " x world " +
                      std::to_string(options.world));
  }
  config.train_batch_size = *total;
  config.train_micro_batch_size_per_gpu = *micro;
  config.gradient_accumulation_steps = *steps;
}

void read_zero(const Json& root, ZeroOptimization& zero) {
  if (!root.contains("zero_optimization")) {
    return;
  }
  const Json& block = root["zero_optimization"];
  take(block, "stage", zero.stage);
  take(block, "contiguous_gradients", zero.contiguous_gradients);
  take(block, "reduce_scatter", zero.reduce_scatter);
  take(block, "reduce_bucket_size", zero.reduce_bucket_size);
  take(block, "allgather_partitions", zero.allgather_partitions);
  take(block, "allgather_bucket_size", zero.allgather_bucket_size);
  take(block, "sub_group_size", zero.sub_group_size);
  take(block, "stage3_prefetch_bucket_size", zero.stage3_prefetch_bucket_size);
  take(block, "stage3_param_persistence_threshold", zero.stage3_param_persistence_threshold);
  take(block, "stage3_model_persistence_threshold", zero.stage3_model_persistence_threshold);
  take(block, "stage3_max_live_parameters", zero.stage3_max_live_parameters);
  take(block, "stage3_max_reuse_distance", zero.stage3_max_reuse_distance);
  if (block.contains("overlap_comm") && block["overlap_comm"].is_boolean()) {
    zero.overlap_comm = block["overlap_comm"].get<bool>();
  }
}

void read_optimizer(const Json& root, OptimizerConfig& optimizer) {
  if (!root.contains("optimizer")) {
    return;
  }
  take(root["optimizer"], "type", optimizer.type);
  if (!root["optimizer"].contains("params")) {
    return;
  }
  const Json& params = root["optimizer"]["params"];
  take(params, "lr", optimizer.lr);
  take(params, "eps", optimizer.eps);
  take(params, "weight_decay", optimizer.weight_decay);
  take(params, "momentum", optimizer.momentum);
  take(params, "dampening", optimizer.dampening);
  take(params, "nesterov", optimizer.nesterov);
  take(params, "bias_correction", optimizer.bias_correction);
  take(params, "adam_w_mode", optimizer.adam_w_mode);
  if (params.contains("betas") && params["betas"].is_array()) {
    optimizer.beta1 = params["betas"].at(0).get<double>();
    optimizer.beta2 = params["betas"].at(1).get<double>();
  }
}

}  // namespace

Config parse(const std::string& text, const std::string& name, const LoadOptions& options) {
  try {
    const Json root = Json::parse(text);
    Config config;
    resolve_batch(root, options, config);
    take(root, "gradient_clipping", config.gradient_clipping);
    take(root, "steps_per_print", config.steps_per_print);
    read_zero(root, config.zero_optimization);
    read_optimizer(root, config.optimizer);
    return config;
  } catch (const Json::exception& error) {
    throw ConfigError(error.what(), name);
  }
}

Config load(const std::string& path, const LoadOptions& options) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw InputError("cannot read the configuration", path, "check the path");
  }
  std::ostringstream text;
  text << file.rdbuf();
  return parse(text.str(), path, options);
}

}  // namespace zero::config
