#include "engine/checkpoint/safetensors_header.h"
#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>

#include <algorithm>

namespace zero {
namespace {

constexpr const char* kTag = "global_step0";
constexpr const char* kFileName = "weights.safetensors";
/// Elements that are in memory at a time.
constexpr std::int64_t kChunkElems = 1 << 20;

std::vector<std::uint64_t> write_values(const PretrainedWeights& weights,
                                        const std::vector<ParamInfo>& parameters,
                                        const std::string& path) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const ParamInfo& info : parameters) {
    tensors.push_back({CheckpointManifest::extent_name("master", info.name, 0),
                       DType::kF32,
                       Shape{info.shape.elems()}});
  }
  SafetensorsWriter writer(path, tensors, SafetensorsWriter::Order::kGiven);
  std::vector<float> values(static_cast<std::size_t>(kChunkElems));
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const std::int64_t elems = parameters[index].shape.elems();
    for (std::int64_t done = 0; done < elems; done += kChunkElems) {
      const auto piece =
          std::span(values).first(static_cast<std::size_t>(std::min(kChunkElems, elems - done)));
      weights(parameters[index], done, piece);
      writer.write(tensors[index].name, done, piece);
    }
  }
  writer.finish();
  return writer.block_sums().value();
}

CheckpointManifest describe(const std::vector<ParamInfo>& parameters,
                            const std::string& path,
                            std::vector<std::uint64_t> sums) {
  CheckpointManifest manifest;
  manifest.precision = "fp32";
  manifest.states = {"master"};
  manifest.files.push_back({kFileName, File::open_to_read(path).size_bytes(), std::move(sums)});
  const SafetensorsReader reader(path);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const ParamInfo& info = parameters[index];
    manifest.parameters.push_back({info.name, safetensors::dims_of(info.shape)});
    if (info.shape.elems() > 0) {
      const auto& entry = reader.entry(CheckpointManifest::extent_name("master", info.name, 0));
      manifest.extents.push_back({index, 0, 0, entry.elems, 0, entry.begin});
    }
  }
  return manifest;
}

}  // namespace

void write_weights_checkpoint(const PretrainedWeights& weights, const std::string& dir) {
  if (!checkpoint_tags(dir).empty()) {
    throw InputError("there are checkpoints already", dir, "give a new folder");
  }
  const std::vector<ParamInfo> parameters = weights.parameters();
  const CheckpointFolder folder(dir, kTag);
  (void)folder.prepare();
  try {
    const std::string path = folder.file(kFileName);
    auto sums = write_values(weights, parameters, path);
    write_new_file(folder.file("manifest.json"),
                   describe(parameters, path, std::move(sums)).to_json());
    folder.publish();
  } catch (...) {
    folder.discard();
    throw;
  }
}

}  // namespace zero
