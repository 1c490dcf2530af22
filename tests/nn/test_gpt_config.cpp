#include <support/catch.h>
#include <zero/core/error.h>
#include <zero/nn/gpt.h>

namespace zero::nn {
namespace {

TEST_CASE("gpt config: a HuggingFace config.json gives the sizes", "[nn][config]") {
  const GptConfig expected{
      .layers = 2, .hidden = 64, .heads = 4, .positions = 64, .vocabulary = 256, .inner = 256};
  CHECK(load_gpt_config(ZERO_TEST_DATA "/parity/config.json") == expected);
  CHECK(load_gpt_config(ZERO_TEST_DATA "/parity") == expected);
  CHECK(parse_gpt_config(R"({"n_inner": 100, "n_embd": 12, "layer_norm_epsilon": 1e-6})", "text") ==
        GptConfig{.hidden = 12, .inner = 100, .layer_norm_eps = 1e-6F});
  CHECK(parse_gpt_config("{}", "text") == load_gpt_config("gpt2"));
  CHECK(parse_gpt_config(R"({"n_inner": null, "resid_pdrop": 0, "unknown": [1]})", "text") ==
        GptConfig{});
}

TEST_CASE("gpt config: named sizes have the published numbers of parameters", "[nn][config]") {
  const std::vector<std::pair<const char*, std::int64_t>> cases = {{"byte-3m", 3'257'856},
                                                                   {"gpt2", 124'439'808},
                                                                   {"gpt2-medium", 354'823'168},
                                                                   {"gpt2-large", 774'030'080},
                                                                   {"gpt2-xl", 1'557'611'200}};
  for (const auto& [name, elems] : cases) {
    INFO(name);
    const GptConfig config = load_gpt_config(name);
    CHECK(config.elems() == elems);
    Gpt gpt(config);
    std::int64_t declared = 0;
    for (const auto& parameter : parameters_of(gpt)) {
      declared += parameter->info.shape.elems();
    }
    CHECK(declared == elems);
  }
}

TEST_CASE("gpt config: what is not implemented is refused by key and value", "[nn][config]") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"activation_function": "relu"})", "\"activation_function\" is \"relu\""},
      {R"({"activation_function": 3})", "\"activation_function\" is 3"},
      {R"({"resid_pdrop": 1.0})", "\"resid_pdrop\" is 1.0"},
      {R"({"embd_pdrop": -0.5})", "\"embd_pdrop\" is -0.5"},
      {R"({"attn_pdrop": "0"})", "\"attn_pdrop\" is \"0\""},
      {R"({"tie_word_embeddings": false})", "\"tie_word_embeddings\" is false"},
      {R"({"scale_attn_weights": false})", "\"scale_attn_weights\" is false"},
      {R"({"scale_attn_by_inverse_layer_idx": true})",
       "\"scale_attn_by_inverse_layer_idx\" is true"},
      {R"({"reorder_and_upcast_attn": true})", "\"reorder_and_upcast_attn\" is true"},
      {R"({"reorder_and_upcast_attn": 1})", "\"reorder_and_upcast_attn\" is 1"},
      {R"({"model_type": "llama"})", "\"model_type\" is \"llama\""},
      {R"({"n_layer": 0})", "\"n_layer\" is 0"},
      {R"({"n_layer": 2.5})", "\"n_layer\" is 2.5"},
      {R"({"n_layer": "2"})", "\"n_layer\" is \"2\""},
      {R"({"n_embd": 18446744073709551615})", "\"n_embd\" is 18446744073709551615"},
      {R"({"vocab_size": -4})", "\"vocab_size\" is -4"},
      {R"({"n_head": 5, "n_embd": 64})", "\"n_head\" is 5"},
      {R"({"layer_norm_epsilon": 0})", "\"layer_norm_epsilon\" is 0"},
      {R"([1, 2])", "not a JSON object"},
      {R"({"n_layer": )", "not a JSON object"},
      {"", "not a JSON object"},
  };
  for (const auto& [text, message] : cases) {
    INFO(text);
    CHECK_THROWS_AS(parse_gpt_config(text, "config.json"), ConfigError);
    CHECK_THROWS_WITH(parse_gpt_config(text, "config.json"), Catch::Contains(message));
    CHECK_THROWS_WITH(parse_gpt_config(text, "config.json"), Catch::Contains("config.json"));
  }
}

TEST_CASE("gpt config: an unknown name says which names there are", "[nn][config]") {
  CHECK_THROWS_AS(load_gpt_config("gpt3"), InputError);
  CHECK_THROWS_WITH(load_gpt_config("gpt3"), Catch::Contains("gpt2-medium"));
}

TEST_CASE("gpt: parameters have HuggingFace's names, blocks are units", "[nn][gpt]") {
  Gpt gpt(load_gpt_config(ZERO_TEST_DATA "/parity"));
  std::vector<std::string> names;
  for (const auto& parameter : parameters_of(gpt)) {
    names.push_back(parameter->info.name);
  }
  REQUIRE(names.size() == 2 + 2 * 12 + 2);
  CHECK(std::vector<std::string>(names.begin(), names.begin() + 14) ==
        std::vector<std::string>{"wte.weight",
                                 "wpe.weight",
                                 "h.0.ln_1.weight",
                                 "h.0.ln_1.bias",
                                 "h.0.attn.c_attn.weight",
                                 "h.0.attn.c_attn.bias",
                                 "h.0.attn.c_proj.weight",
                                 "h.0.attn.c_proj.bias",
                                 "h.0.ln_2.weight",
                                 "h.0.ln_2.bias",
                                 "h.0.mlp.c_fc.weight",
                                 "h.0.mlp.c_fc.bias",
                                 "h.0.mlp.c_proj.weight",
                                 "h.0.mlp.c_proj.bias"});
  CHECK(names.back() == "ln_f.bias");
  std::vector<std::string> blocks;
  for (const Module* module : modules_of(gpt)) {
    if (module->is_block()) {
      blocks.push_back(module->name());
    }
  }
  CHECK(blocks == std::vector<std::string>{"h.0", "h.1"});
}

}  // namespace
}  // namespace zero::nn
