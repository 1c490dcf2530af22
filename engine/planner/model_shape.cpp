#include "engine/planner/text.h"
#include <zero/config/report.h>
#include <zero/core/error.h>
#include <zero/engine/planner.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>

namespace zero::planner {
namespace {

using Json = nlohmann::json;

/// No dimension of a model is larger, and none has more parameters: keeps products inside 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 24;
constexpr double kLargestModel = 1e15;

struct Known {
  const char* name;
  std::int64_t layers, hidden, heads, kv_heads, head_size, ffn, vocabulary, positions, sequence;
  bool gated, tied, biases;
};

constexpr std::int64_t kSame = 0;  ///< kv_heads = heads, head_size = hidden ÷ heads, ffn = 4 hidden

/// Shapes as their authors published them (docs/PLAN.md names each source).
constexpr std::array kKnown = {
    Known{"gpt2", 12, 768, 12, kSame, kSame, kSame, 50257, 1024, 1024, false, true, true},
    Known{"gpt2-medium", 24, 1024, 16, kSame, kSame, kSame, 50257, 1024, 1024, false, true, true},
    Known{"gpt2-large", 36, 1280, 20, kSame, kSame, kSame, 50257, 1024, 1024, false, true, true},
    Known{"gpt2-xl", 48, 1600, 25, kSame, kSame, kSame, 50257, 1024, 1024, false, true, true},
    Known{"gpt3-125m", 12, 768, 12, kSame, kSame, kSame, 50257, 2048, 2048, false, true, true},
    Known{"gpt3-1.3b", 24, 2048, 16, kSame, kSame, kSame, 50257, 2048, 2048, false, true, true},
    Known{"gpt3-2.7b", 32, 2560, 32, kSame, kSame, kSame, 50257, 2048, 2048, false, true, true},
    Known{"gpt3-6.7b", 32, 4096, 32, kSame, kSame, kSame, 50257, 2048, 2048, false, true, true},
    Known{"gpt3-13b", 40, 5140, 40, kSame, 128, kSame, 50257, 2048, 2048, false, true, true},
    Known{"gpt3-175b", 96, 12288, 96, kSame, kSame, kSame, 51200, 2048, 2048, false, true, true},
    Known{
        "mt-nlg-530b", 105, 20480, 128, kSame, kSame, kSame, 51200, 2048, 2048, false, true, true},
    Known{
        "megatron-1t", 128, 25600, 160, kSame, kSame, kSame, 51200, 2048, 2048, false, true, true},
    Known{"opt-125m", 12, 768, 12, kSame, kSame, kSame, 50272, 2050, 2048, false, true, true},
    Known{"opt-1.3b", 24, 2048, 32, kSame, kSame, kSame, 50272, 2050, 2048, false, true, true},
    Known{"opt-6.7b", 32, 4096, 32, kSame, kSame, kSame, 50272, 2050, 2048, false, true, true},
    Known{"opt-13b", 40, 5120, 40, kSame, kSame, kSame, 50272, 2050, 2048, false, true, true},
    Known{"opt-30b", 48, 7168, 56, kSame, kSame, kSame, 50272, 2050, 2048, false, true, true},
    Known{"opt-66b", 64, 9216, 72, kSame, kSame, kSame, 50272, 2050, 2048, false, true, true},
    Known{"llama2-7b", 32, 4096, 32, kSame, kSame, 11008, 32000, 0, 4096, true, false, false},
    Known{"llama2-13b", 40, 5120, 40, kSame, kSame, 13824, 32000, 0, 4096, true, false, false},
    Known{"llama2-70b", 80, 8192, 64, 8, kSame, 28672, 32000, 0, 4096, true, false, false},
    Known{"llama3-1b", 16, 2048, 32, 8, kSame, 8192, 128256, 0, 8192, true, true, false},
    Known{"llama3-3b", 28, 3072, 24, 8, kSame, 8192, 128256, 0, 8192, true, true, false},
    Known{"llama3-8b", 32, 4096, 32, 8, kSame, 14336, 128256, 0, 8192, true, false, false},
    Known{"llama3-70b", 80, 8192, 64, 8, kSame, 28672, 128256, 0, 8192, true, false, false},
    Known{"llama3-405b", 126, 16384, 128, 8, kSame, 53248, 128256, 0, 8192, true, false, false},
    Known{"qwen2.5-0.5b", 24, 896, 14, 2, kSame, 4864, 151936, 0, 4096, true, true, false},
    Known{"qwen2.5-7b", 28, 3584, 28, 4, kSame, 18944, 152064, 0, 4096, true, false, false},
    Known{"qwen2.5-14b", 48, 5120, 40, 8, kSame, 13824, 152064, 0, 4096, true, false, false},
    Known{"qwen2.5-32b", 64, 5120, 40, 8, kSame, 27648, 152064, 0, 4096, true, false, false},
    Known{"qwen2.5-72b", 80, 8192, 64, 8, kSame, 29568, 152064, 0, 4096, true, false, false},
    Known{"mistral-7b", 32, 4096, 32, 8, kSame, 14336, 32000, 0, 4096, true, false, false},
};

ModelShape complete(ModelShape shape) {
  shape.kv_heads = shape.kv_heads > 0 ? shape.kv_heads : shape.heads;
  if (shape.head_size == 0 && shape.heads > 0) {
    if (shape.hidden % shape.heads != 0) {
      throw InputError(
          fmt::format("{} heads do not divide a hidden size of {}", shape.heads, shape.hidden),
          "--model " + shape.name,
          "give a number of heads that divides it");
    }
    shape.head_size = shape.hidden / shape.heads;
  }
  shape.ffn = shape.ffn > 0 ? shape.ffn : 4 * shape.hidden;
  return shape;
}

std::optional<ModelShape> find_known(const std::string& name) {
  for (const Known& known : kKnown) {
    if (name == known.name) {
      return complete({known.name,
                       known.layers,
                       known.hidden,
                       known.heads,
                       known.kv_heads,
                       known.head_size,
                       known.ffn,
                       known.vocabulary,
                       known.positions,
                       known.sequence,
                       known.gated,
                       known.tied,
                       known.biases});
    }
  }
  return {};
}

/// "20B", "350M", "1.3e9" as a number of parameters; nothing if it is no such number.
std::optional<double> parse_count(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  static const std::map<std::string, double> kUnits = {{"", 1},
                                                       {"K", 1e3},
                                                       {"M", 1e6},
                                                       {"B", 1e9},
                                                       {"b", 1e9},
                                                       {"T", 1e12},
                                                       {"m", 1e6},
                                                       {"t", 1e12}};
  const auto factor = kUnits.find(unit);
  if (error != std::errc() || factor == kUnits.end()) {
    return {};
  }
  return value * factor->second;
}

std::int64_t nearest_multiple(double value, std::int64_t of) {
  return std::max<std::int64_t>(of, std::llround(value / static_cast<double>(of)) * of);
}

/// The published GPT shape that has so many parameters, within 1.5 %.
std::optional<ModelShape> published_gpt(double params) {
  constexpr double kNear = 0.015;
  std::optional<ModelShape> nearest;
  double off = kNear;
  for (const Known& known : kKnown) {
    const ModelShape shape = *find_known(known.name);
    const double error = std::abs(static_cast<double>(shape.params()) / params - 1.0);
    if (!shape.gated && error < off) {
      nearest = shape;
      off = error;
    }
  }
  return nearest;
}

/// A GPT shape of about so many parameters: width ÷ depth as published models have it (Narayanan et
/// al. 2021, table 1: 96 at 1.7 billion to 200 at a trillion).
ModelShape shape_of_count(const std::string& text, double params) {
  constexpr double kSmallest = 1e5;
  constexpr std::int64_t kHeadSize = 128;
  if (!(params >= kSmallest) || params > kLargestModel) {
    throw InputError(fmt::format("{} parameters", text),
                     "--model",
                     fmt::format("give a number from {:g} to {:g}", kSmallest, kLargestModel));
  }
  if (auto known = published_gpt(params)) {
    known->name = text;
    return *known;
  }
  constexpr double kLarge = 1e10;  // from here tensors and pipelines are cut: sizes that divide
  const double ratio = std::clamp(96.0 + 35.0 * std::log10(params / 1.7e9), 48.0, 400.0);
  ModelShape shape;
  shape.name = text;
  constexpr std::int64_t kLargeStep = 1024;
  shape.hidden = nearest_multiple(std::cbrt(params * ratio / 12.0),
                                  params < 1e9      ? 64
                                  : params < kLarge ? kHeadSize
                                                    : kLargeStep);
  shape.vocabulary = params < 3e7 ? 256 : 50257;
  shape.sequence = 2048;
  shape.positions = 2048;
  const double rest =
      params - static_cast<double>((shape.vocabulary + shape.positions) * shape.hidden);
  const double width = static_cast<double>(shape.hidden);
  shape.layers = nearest_multiple(rest / (12.0 * width * width), params < kLarge ? 1 : 4);
  shape.heads = std::max<std::int64_t>(1, shape.hidden / (params < 1e9 ? 64 : kHeadSize));
  return complete(shape);
}

std::int64_t parse_size(const std::string& key, const std::string& text, const std::string& where) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 ||
      value > kLargestSize) {
    throw InputError(fmt::format("{} is {}", key, text),
                     where,
                     fmt::format("give an integer from 1 to {}", kLargestSize));
  }
  return value;
}

ModelShape shape_of_list(const std::string& text) {
  ModelShape shape;
  shape.name = text;
  const std::string where = "--model " + text;
  const std::map<std::string, std::int64_t ModelShape::*> keys = {
      {"layers", &ModelShape::layers},
      {"hidden", &ModelShape::hidden},
      {"heads", &ModelShape::heads},
      {"kv_heads", &ModelShape::kv_heads},
      {"head_size", &ModelShape::head_size},
      {"ffn", &ModelShape::ffn},
      {"vocab", &ModelShape::vocabulary},
      {"seq", &ModelShape::sequence},
      {"positions", &ModelShape::positions}};
  const std::map<std::string, bool ModelShape::*> flags = {
      {"gated", &ModelShape::gated}, {"tied", &ModelShape::tied}, {"biases", &ModelShape::biases}};
  for (const auto& [key, value] : key_values(text)) {
    if (const auto known = keys.find(key); known != keys.end()) {
      shape.*(known->second) = parse_size(key, value, where);
    } else if (const auto flag = flags.find(key);
               flag != flags.end() && (value == "0" || value == "1")) {
      shape.*(flag->second) = value == "1";
    } else {
      throw InputError(
          fmt::format("\"{}\"", key),
          where,
          "write layers=N,hidden=N[,heads,kv_heads,head_size,ffn,seq,vocab,positions=N]"
          "[,gated,tied,biases=0|1]");
    }
  }
  if (shape.layers == 0 || shape.hidden == 0) {
    throw InputError("layers or hidden is missing", where, "give both");
  }
  constexpr std::int64_t kUsualHead = 128;
  shape.heads = shape.heads > 0
                    ? shape.heads
                    : std::max<std::int64_t>(
                          1, shape.hidden % kUsualHead == 0 ? shape.hidden / kUsualHead : 1);
  shape.vocabulary = shape.vocabulary > 0 ? shape.vocabulary : 50257;
  shape.sequence = shape.sequence > 0 ? shape.sequence : 2048;
  return complete(shape);
}

ModelShape shape_of_file(const std::string& path) {
  const Json json = Json::parse(config::read_text(path), nullptr, false);
  if (!json.is_object()) {
    throw InputError("no JSON object", "--model " + path, "give a HuggingFace config.json");
  }
  const auto size = [&](std::initializer_list<const char*> keys,
                        std::optional<std::int64_t> otherwise) -> std::int64_t {
    for (const char* key : keys) {
      if (json.contains(key) && !json.at(key).is_null()) {
        return parse_size(key, json.at(key).dump(), "--model " + path);
      }
    }
    if (!otherwise) {
      throw InputError(fmt::format("none of {}", fmt::join(keys, ", ")),
                       "--model " + path,
                       "give a HuggingFace config.json of a decoder");
    }
    return *otherwise;
  };
  const std::string type =
      json.contains("model_type") && json["model_type"].is_string() ? json["model_type"] : "";
  ModelShape shape;
  shape.name = path;
  shape.layers = size({"n_layer", "num_hidden_layers"}, {});
  shape.hidden = size({"n_embd", "hidden_size"}, {});
  shape.heads = size({"n_head", "num_attention_heads"}, {});
  shape.kv_heads = size({"num_key_value_heads"}, shape.heads);
  shape.head_size = size({"head_dim"}, 0);
  shape.ffn = size({"n_inner", "intermediate_size", "ffn_dim"}, 0);
  shape.vocabulary = size({"vocab_size"}, {});
  shape.sequence = size({"n_positions", "max_position_embeddings"}, 2048);
  const bool gpt = type == "gpt2" || type == "opt" || json.contains("n_embd");
  shape.positions = gpt ? shape.sequence : 0;
  shape.gated = !gpt && type != "gpt_neox";
  shape.biases = gpt || type == "gpt_neox";
  shape.tied = json.contains("tie_word_embeddings") && json["tie_word_embeddings"].is_boolean()
                   ? json["tie_word_embeddings"].get<bool>()
                   : gpt;
  return complete(shape);
}

}  // namespace

std::int64_t ModelShape::layer_params() const {
  const std::int64_t queries = heads * head_size;
  const std::int64_t keys = kv_heads * head_size;
  const std::int64_t matrices = hidden * (2 * queries + 2 * keys) + (gated ? 3 : 2) * hidden * ffn;
  const std::int64_t vectors =
      biases ? queries + 2 * keys + hidden + (gated ? 2 : 1) * ffn + hidden + 4 * hidden
             : 2 * hidden;
  return matrices + vectors;
}

std::int64_t ModelShape::adapter_params() const {
  const std::int64_t queries = heads * head_size;
  const std::int64_t keys = kv_heads * head_size;
  const std::int64_t sides = (hidden + queries + 2 * keys) + (queries + hidden) +
                             (hidden + (gated ? 2 : 1) * ffn) + (ffn + hidden);
  return layers * lora_rank * sides;
}

std::int64_t ModelShape::params() const {
  return layers * layer_params() + hidden * (vocabulary * (tied ? 1 : 2) + positions) +
         hidden * (biases ? 2 : 1);
}

void check_shape(const ModelShape& shape) {
  const auto rough = static_cast<double>(shape.hidden) *
                     (static_cast<double>(shape.layers) *
                          (4.0 * static_cast<double>(shape.heads * shape.head_size) +
                           3.0 * static_cast<double>(shape.ffn)) +
                      2.0 * static_cast<double>(shape.vocabulary));
  if (rough > 2 * kLargestModel) {
    throw InputError(fmt::format("{:.2g} parameters", rough),
                     "--model " + shape.name,
                     fmt::format("give a model of at most {:g}", kLargestModel));
  }
  if (shape.lora_rank < 0 || shape.lora_rank > shape.hidden) {
    throw InputError(fmt::format("adapters of rank {}", shape.lora_rank),
                     "--lora",
                     fmt::format("give 1 to {}", shape.hidden));
  }
  if (shape.kv_heads > shape.heads || shape.heads % shape.kv_heads != 0) {
    throw InputError(fmt::format("{} kv_heads with {} heads", shape.kv_heads, shape.heads),
                     "--model " + shape.name,
                     "give a number that divides the heads");
  }
}

ModelShape parse_model(const std::string& text) {
  ModelShape shape;
  std::error_code ignored;
  if (const auto known = find_known(text)) {
    shape = *known;
  } else if (std::filesystem::exists(text, ignored)) {
    shape = shape_of_file(text);
  } else if (text.find('=') != std::string::npos) {
    shape = shape_of_list(text);
  } else if (const auto count = parse_count(text)) {
    shape = shape_of_count(text, *count);
  } else {
    throw InputError("\"" + text + "\" is no known model, file, shape or number of parameters",
                     "--model",
                     fmt::format("known: {}", fmt::join(known_models(), ", ")));
  }
  check_shape(shape);
  return shape;
}

std::vector<std::string> known_models() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    names.emplace_back(known.name);
  }
  return names;
}

}  // namespace zero::planner
