#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/engine/safetensors.h>

namespace zero {
namespace {

using support::TemporaryFolder;

/// A file in which each tensor [2] holds its number in the list.
void write_tensors(const std::string& path, const std::vector<std::string>& names) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back({name, DType::kF32, Shape{2}});
  }
  SafetensorsWriter writer(path, tensors);
  for (std::size_t i = 0; i < names.size(); ++i) {
    writer.write(names[i], 0, std::vector<float>(2, static_cast<float>(i)));
  }
  writer.finish();
}

std::vector<ParamInfo> parameters(const std::vector<std::string>& names) {
  std::vector<ParamInfo> infos;
  for (const std::string& name : names) {
    infos.push_back({.name = name, .shape = Shape{2}});
  }
  return infos;
}

float first_value(const PretrainedWeights& weights, const std::string& name) {
  std::vector<float> values(1);
  weights(ParamInfo{.name = name, .shape = Shape{2}}, 1, values);
  return values.front();
}

TEST_CASE("pretrained weights: names with and without the prefix, masks and tied head skipped",
          "[checkpoint][pretrained]") {
  const TemporaryFolder folder;
  const std::string prefix = GENERATE("", "transformer.");
  write_tensors(folder / "model.safetensors",
                {prefix + "wte.weight",
                 prefix + "h.0.attn.bias",
                 prefix + "h.0.attn.masked_bias",
                 prefix + "h.0.attn.c_attn.bias",
                 "lm_head.weight"});
  const auto infos = parameters({"wte.weight", "h.0.attn.c_attn.bias"});
  for (const std::string& path : {folder / "model.safetensors", folder.path().string()}) {
    const PretrainedWeights weights(path);
    CHECK_NOTHROW(weights.check(infos));
    CHECK(first_value(weights, "wte.weight") == 0.0F);
    CHECK(first_value(weights, "h.0.attn.c_attn.bias") == 3.0F);
  }
}

TEST_CASE("pretrained weights: a file of another model is refused", "[checkpoint][pretrained]") {
  const TemporaryFolder folder;
  write_tensors(folder / "x", {"a", "b"});
  const PretrainedWeights weights(folder / "x");
  CHECK_NOTHROW(weights.check(parameters({"a", "b"})));
  CHECK_THROWS_WITH(weights.check(parameters({"a", "b", "c"})), Catch::Contains("no tensor \"c\""));
  CHECK_THROWS_WITH(weights.check(parameters({"a"})), Catch::Contains("no parameter \"b\""));
  auto reshaped = parameters({"a", "b"});
  reshaped[1].shape = Shape{2, 1};
  CHECK_THROWS_WITH(weights.check(reshaped), Catch::Contains("\"b\" has shape [2]"));
  write_tensors(folder / "y", {"a", "transformer.a"});
  CHECK_THROWS_AS(PretrainedWeights(folder / "y"), InputError);
}

}  // namespace
}  // namespace zero
