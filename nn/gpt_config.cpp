#include <zero/core/error.h>
#include <zero/nn/gpt_config.h>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace zero::nn {
namespace {

using Json = nlohmann::json;

/// No dimension of a model is larger; keeps products of three dimensions inside 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 20;

/// Reads keys of one config.json; every error names file, key and value.
class Reader {
 public:
  Reader(const Json& object, const std::string& where) : object_(object), where_(where) {}

  [[noreturn]] void refuse(const char* key, const std::string& allowed) const {
    throw ConfigError(fmt::format("\"{}\" is {}", key, object_.at(key).dump()), where_, allowed);
  }
  [[nodiscard]] bool has(const char* key) const {
    return object_.contains(key) && !object_.at(key).is_null();
  }
  [[nodiscard]] std::int64_t size(const char* key, std::int64_t otherwise) const {
    if (!has(key)) {
      return otherwise;
    }
    const Json& value = object_.at(key);
    if (!value.is_number_integer() || value < 1 || value > kLargestSize) {
      refuse(key, fmt::format("give an integer from 1 to {}", kLargestSize));
    }
    return value.get<std::int64_t>();
  }
  [[nodiscard]] double number(const char* key, double otherwise) const {
    if (!has(key)) {
      return otherwise;
    }
    if (!object_.at(key).is_number()) {
      refuse(key, "give a number");
    }
    return object_.at(key).get<double>();
  }
  void require_flag(const char* key, bool wanted, bool otherwise) const {
    const bool given = has(key);
    if (given && !object_.at(key).is_boolean()) {
      refuse(key, "give true or false");
    }
    if ((given ? object_.at(key).get<bool>() : otherwise) != wanted) {
      refuse(key, fmt::format("only {} is implemented", wanted));
    }
  }
  void require_text(const char* key, const std::vector<std::string>& implemented) const {
    if (!has(key)) {
      return;
    }
    for (const std::string& text : implemented) {
      if (object_.at(key) == text) {
        return;
      }
    }
    refuse(key, fmt::format("implemented: {}", fmt::join(implemented, ", ")));
  }

 private:
  const Json& object_;
  const std::string& where_;
};

void refuse_unimplemented(const Reader& reader) {
  reader.require_text("model_type", {"gpt2"});
  reader.require_text("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  reader.require_flag("tie_word_embeddings", true, true);
  reader.require_flag("scale_attn_weights", true, true);
  reader.require_flag("scale_attn_by_inverse_layer_idx", false, false);
  reader.require_flag("reorder_and_upcast_attn", false, false);
  reader.require_flag("add_cross_attention", false, false);
}

float dropout_rate(const Reader& reader, const char* key) {
  const double rate = reader.number(key, 0.0);
  if (!(rate >= 0.0 && rate < 1.0)) {
    reader.refuse(key, "give a share from 0 to below 1");
  }
  return static_cast<float>(rate);
}

constexpr GptConfig sized(std::int64_t layers,
                          std::int64_t hidden,
                          std::int64_t heads,
                          std::int64_t positions,
                          std::int64_t vocabulary) {
  return {.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .positions = positions,
          .vocabulary = vocabulary,
          .inner = 4 * hidden};
}

}  // namespace

std::int64_t GptConfig::elems() const noexcept {
  const std::int64_t norm = 2 * hidden;
  const std::int64_t attention = hidden * 3 * hidden + 3 * hidden + hidden * hidden + hidden;
  const std::int64_t mlp = hidden * inner + inner + inner * hidden + hidden;
  return (vocabulary + positions) * hidden + layers * (2 * norm + attention + mlp) + norm;
}

GptConfig parse_gpt_config(std::string_view json, const std::string& where) {
  const Json object = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw ConfigError("not a JSON object", where, "give a HuggingFace config.json");
  }
  const Reader reader(object, where);
  refuse_unimplemented(reader);
  const GptConfig defaults;
  GptConfig config;
  config.layers = reader.size("n_layer", defaults.layers);
  config.hidden = reader.size("n_embd", defaults.hidden);
  config.heads = reader.size("n_head", defaults.heads);
  config.positions = reader.size("n_positions", reader.size("n_ctx", defaults.positions));
  config.vocabulary = reader.size("vocab_size", defaults.vocabulary);
  config.inner = reader.size("n_inner", 4 * config.hidden);
  const double eps = reader.number("layer_norm_epsilon", 1e-5);
  if (!(eps > 0.0 && eps < 1.0)) {
    reader.refuse("layer_norm_epsilon", "give a number between 0 and 1");
  }
  config.layer_norm_eps = static_cast<float>(eps);
  config.embedding_dropout = dropout_rate(reader, "embd_pdrop");
  config.attention_dropout = dropout_rate(reader, "attn_pdrop");
  config.residual_dropout = dropout_rate(reader, "resid_pdrop");
  if (config.hidden % config.heads != 0) {
    throw ConfigError(
        fmt::format(
            "\"n_head\" is {}, which does not divide \"n_embd\" {}", config.heads, config.hidden),
        where,
        "choose heads that divide the width");
  }
  return config;
}

const std::vector<NamedGptConfig>& named_gpt_configs() {
  static const std::vector<NamedGptConfig> kConfigs = {
      {"byte-3m", sized(4, 256, 8, 128, 256)},
      {"byte-25m", sized(8, 512, 8, 256, 256)},
      {"byte-85m", sized(12, 768, 12, 512, 256)},
      {"gpt2", sized(12, 768, 12, 1024, 50257)},
      {"gpt2-medium", sized(24, 1024, 16, 1024, 50257)},
      {"gpt2-large", sized(36, 1280, 20, 1024, 50257)},
      {"gpt2-xl", sized(48, 1600, 25, 1024, 50257)},
  };
  return kConfigs;
}

GptConfig load_gpt_config(const std::string& name_or_path) {
  std::string names;
  for (const NamedGptConfig& named : named_gpt_configs()) {
    if (named.name == name_or_path) {
      return named.config;
    }
    names += names.empty() ? "" : ", ";
    names += named.name;
  }
  std::filesystem::path path(name_or_path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    path /= "config.json";
  }
  std::ifstream file(path, std::ios::binary);
  if (!std::filesystem::is_regular_file(path, ignored) || !file) {
    throw InputError(fmt::format("no model \"{}\"", name_or_path),
                     path.string(),
                     fmt::format("give a config.json, a folder with one, or a name: {}", names));
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_gpt_config(text, path.string());
}

}  // namespace zero::nn
