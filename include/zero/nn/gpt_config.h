#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::nn {

/// Sizes of a GPT-2 model: pre-normalisation, learned positions, tied head, tanh GELU.
struct GptConfig {
  std::int64_t layers = 12;         ///< n_layer
  std::int64_t hidden = 768;        ///< n_embd
  std::int64_t heads = 12;          ///< n_head, divides hidden
  std::int64_t positions = 1024;    ///< n_positions
  std::int64_t vocabulary = 50257;  ///< vocab_size
  std::int64_t inner = 3072;        ///< n_inner, 4 · hidden if null
  float layer_norm_eps = 1e-5F;     ///< layer_norm_epsilon
  float embedding_dropout = 0.0F;   ///< embd_pdrop
  float attention_dropout = 0.0F;   ///< attn_pdrop
  float residual_dropout = 0.0F;    ///< resid_pdrop
  friend bool operator==(const GptConfig&, const GptConfig&) = default;

  /// Number of parameters, each counted once.
  [[nodiscard]] std::int64_t elems() const noexcept;
};

/// A name of named_gpt_configs(), a HuggingFace config.json, or a folder with one.
///
/// Keys that are absent have HuggingFace's defaults, except that dropout is 0. ConfigError, naming
/// key and value, for what is not implemented (another activation, untied head, ...), for
/// wrong types and for sizes that do not fit each other. InputError if there is no such name or
/// file.
[[nodiscard]] GptConfig load_gpt_config(const std::string& name_or_path);
/// The text of a config.json; `where` names it in errors.
[[nodiscard]] GptConfig parse_gpt_config(std::string_view json, const std::string& where);

struct NamedGptConfig {
  std::string_view name;
  GptConfig config;
};
/// Models known by name: byte-* take bytes as tokens, gpt2* have GPT-2's published sizes.
[[nodiscard]] const std::vector<NamedGptConfig>& named_gpt_configs();

}  // namespace zero::nn
