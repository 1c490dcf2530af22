#include "cli/commands.h"
#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>
#include <zero/engine/safetensors.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>

namespace zero::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Elements that are in memory at a time.
constexpr std::int64_t kChunkElems = 1 << 20;

struct Options {
  std::string dir;
  std::string other;
  std::string tag;
  std::string dtype = "fp32";
  std::string format;
  double shard_gb = 5.0;
  bool json = false;
};

std::uint64_t bytes_of(const CheckpointManifest& manifest) {
  std::uint64_t bytes = 0;
  for (const CheckpointManifest::DataFile& file : manifest.files) {
    bytes += file.bytes;
  }
  return bytes;
}

std::int64_t elems_of(const CheckpointManifest& manifest) {
  std::int64_t elems = 0;
  for (const CheckpointManifest::Parameter& parameter : manifest.parameters) {
    elems += parameter.elems();
  }
  return elems;
}

void inspect(const Options& options) {
  const CheckpointReader reader(options.dir, options.tag);
  const CheckpointManifest& manifest = reader.manifest();
  if (options.json) {
    Json parameters = Json::array();
    for (const CheckpointManifest::Parameter& parameter : manifest.parameters) {
      parameters.push_back({{"name", parameter.name},
                            {"shape", parameter.shape},
                            {"trainable", parameter.trainable}});
    }
    const Json out = {{"tag", reader.tag()},
                      {"bytes", bytes_of(manifest)},
                      {"elems", elems_of(manifest)},
                      {"ranks", manifest.ranks},
                      {"stage", manifest.stage},
                      {"precision", manifest.precision},
                      {"optimizer", manifest.optimizer},
                      {"states", manifest.states},
                      {"counters", manifest.counters},
                      {"loss_scale", manifest.loss_scaler.scale},
                      {"client_state", manifest.client_state},
                      {"parameters", parameters}};
    std::cout << out.dump() << "\n";
    return;
  }
  std::cout << fmt::format(
      "{}: {} parameters with {} elements, {} bytes in {} files\n"
      "written by {} ranks in stage {}, {}, {} ({})\n",
      reader.tag(),
      manifest.parameters.size(),
      elems_of(manifest),
      bytes_of(manifest),
      manifest.files.size(),
      manifest.ranks,
      manifest.stage,
      manifest.precision,
      manifest.optimizer.empty() ? "weights alone" : manifest.optimizer,
      fmt::join(manifest.states, ", "));
  for (const auto& [name, value] : manifest.counters) {
    std::cout << fmt::format("  {:<20} {}\n", name, value);
  }
  for (const CheckpointManifest::Parameter& parameter : manifest.parameters) {
    std::cout << fmt::format("  {:<40} [{}]{}\n",
                             parameter.name,
                             fmt::join(parameter.shape, ", "),
                             parameter.trainable ? "" : " frozen");
  }
}

void verify(const Options& options) {
  const CheckpointReader reader(options.dir, options.tag);
  reader.verify();
  std::cout << fmt::format(
      "{}: {} bytes are as they were written\n", reader.tag(), bytes_of(reader.manifest()));
}

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == dtype_name(dtype)) {
      return dtype;
    }
  }
  throw InputError("--dtype " + name + " is unknown", "command line", "use fp32, fp16 or bf16");
}

/// Indices of parameters for each output file: a new one starts where the next parameter would make
/// it larger than the limit.
std::vector<std::vector<std::size_t>> cut_into_shards(const CheckpointManifest& manifest,
                                                      DType dtype,
                                                      double limit_bytes) {
  std::vector<std::vector<std::size_t>> shards(1);
  double filled = 0.0;
  for (std::size_t index = 0; index < manifest.parameters.size(); ++index) {
    const double bytes = static_cast<double>(manifest.parameters[index].elems()) *
                         static_cast<double>(dtype_size(dtype));
    if (!shards.back().empty() && filled + bytes > limit_bytes) {
      shards.emplace_back();
      filled = 0.0;
    }
    shards.back().push_back(index);
    filled += bytes;
  }
  return shards;
}

void write_shard(const CheckpointReader& reader,
                 const std::vector<std::size_t>& parameters,
                 DType dtype,
                 const std::string& path) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const std::size_t index : parameters) {
    const CheckpointManifest::Parameter& parameter = reader.manifest().parameters[index];
    tensors.push_back(
        {parameter.name, dtype, Shape(std::span<const std::int64_t>(parameter.shape))});
  }
  SafetensorsWriter writer(path, std::move(tensors));
  std::vector<float> values(static_cast<std::size_t>(kChunkElems));
  for (const std::size_t index : parameters) {
    const CheckpointManifest::Parameter& parameter = reader.manifest().parameters[index];
    for (std::int64_t done = 0; done < parameter.elems(); done += kChunkElems) {
      const auto piece = std::span(values).first(
          static_cast<std::size_t>(std::min(kChunkElems, parameter.elems() - done)));
      reader.read(index, 0, done, piece);
      writer.write(parameter.name, done, piece);
    }
  }
  writer.finish();
}

/// One file, or shards with an index as HuggingFace names them.
void consolidate(const Options& options) {
  const CheckpointReader reader(options.dir, options.tag);
  reader.verify();
  const DType dtype = dtype_of(options.dtype);
  const auto shards = cut_into_shards(reader.manifest(), dtype, options.shard_gb * 1e9);
  fs::create_directories(options.other);
  if (shards.size() == 1) {
    const std::string path = (fs::path(options.other) / "model.safetensors").string();
    write_shard(reader, shards.front(), dtype, path);
    std::cout << path << "\n";
    return;
  }
  Json map = Json::object();
  std::int64_t elems = 0;
  for (std::size_t shard = 0; shard < shards.size(); ++shard) {
    const std::string name =
        fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards.size());
    write_shard(reader, shards[shard], dtype, (fs::path(options.other) / name).string());
    for (const std::size_t index : shards[shard]) {
      map[reader.manifest().parameters[index].name] = name;
      elems += reader.manifest().parameters[index].elems();
    }
    std::cout << name << "\n";
  }
  const Json index = {
      {"metadata", {{"total_size", elems * static_cast<std::int64_t>(dtype_size(dtype))}}},
      {"weight_map", map}};
  const std::string path = (fs::path(options.other) / "model.safetensors.index.json").string();
  const std::string text = index.dump(2) + "\n";
  std::error_code ignored;
  fs::remove(path, ignored);
  File file = File::create(path);
  file.write_at(std::as_bytes(std::span(text)), 0);
  file.sync();
  file.close();
}

void convert(const Options& options) {
  const PretrainedWeights weights(options.other);
  write_weights_checkpoint(weights, options.dir);
  const CheckpointReader reader(options.dir);
  std::cout << fmt::format("{}: {} parameters with {} elements, weights alone\n",
                           reader.folder(),
                           reader.manifest().parameters.size(),
                           elems_of(reader.manifest()));
}

/// Largest difference of a parameter's fp32 values.
double largest_difference(const CheckpointReader& a,
                          std::size_t index_a,
                          const CheckpointReader& b,
                          std::size_t index_b) {
  const std::int64_t elems = a.manifest().parameters[index_a].elems();
  std::vector<float> left(static_cast<std::size_t>(kChunkElems));
  std::vector<float> right(left.size());
  double largest = 0.0;
  for (std::int64_t done = 0; done < elems; done += kChunkElems) {
    const auto count = static_cast<std::size_t>(std::min(kChunkElems, elems - done));
    a.read(index_a, 0, done, std::span(left).first(count));
    b.read(index_b, 0, done, std::span(right).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      const double difference =
          std::abs(static_cast<double>(left[i]) - static_cast<double>(right[i]));
      largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
    }
  }
  return largest;
}

/// What differs; exit status 1 if anything does.
int diff(const Options& options) {
  const CheckpointReader a(options.dir, options.tag);
  const CheckpointReader b(options.other, options.tag);
  bool same = true;
  const auto tell = [&](const std::string& line) {
    std::cout << line << "\n";
    same = false;
  };
  std::map<std::string, std::size_t> places;
  for (std::size_t index = 0; index < b.manifest().parameters.size(); ++index) {
    places[b.manifest().parameters[index].name] = index;
  }
  for (std::size_t index = 0; index < a.manifest().parameters.size(); ++index) {
    const CheckpointManifest::Parameter& parameter = a.manifest().parameters[index];
    const auto found = places.find(parameter.name);
    if (found == places.end()) {
      tell(parameter.name + ": only in the first");
      continue;
    }
    if (b.manifest().parameters[found->second].shape != parameter.shape) {
      tell(parameter.name + ": another shape");
    } else if (const double difference = largest_difference(a, index, b, found->second);
               difference > 0.0) {
      tell(fmt::format("{}: differs by up to {:.3g}", parameter.name, difference));
    }
    places.erase(found);
  }
  for (const auto& [name, index] : places) {
    tell(name + ": only in the second");
  }
  for (const auto& [name, value] : a.manifest().counters) {
    const auto found = b.manifest().counters.find(name);
    if (found != b.manifest().counters.end() && found->second != value) {
      tell(fmt::format("{}: {} and {}", name, value, found->second));
    }
  }
  return same ? 0 : 1;
}

template <class Run>
CLI::App* add_action(CLI::App& command,
                     const char* name,
                     const char* what,
                     std::shared_ptr<Options> options,
                     Run run) {
  CLI::App* action = command.add_subcommand(name, what);
  action->add_option("dir", options->dir, "folder that checkpoints were saved to")->required();
  action->add_option("--tag", options->tag, "which; default: the latest");
  action->callback([options, run] { run(*options); });
  return action;
}

}  // namespace

void add_checkpoint(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("checkpoint", "Looks at saved checkpoints");
  command->require_subcommand(1);
  add_action(*command, "inspect", "Says what is in it", options, inspect)
      ->add_flag("--json", options->json, "as one JSON object");
  (void)add_action(*command, "verify", "Compares every byte with its checksum", options, verify);
  CLI::App* out = add_action(*command,
                             "consolidate",
                             "Writes the weights as HuggingFace safetensors",
                             options,
                             consolidate);
  out->add_option("out", options->other, "folder to write to")->required();
  out->add_option("--dtype", options->dtype, "fp32, fp16 or bf16")->capture_default_str();
  out->add_option("--max-shard-size", options->shard_gb, "in GB (10^9 bytes)")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI::App* from =
      command->add_subcommand("convert", "Makes a checkpoint of weights from elsewhere");
  from->add_option("--from", options->format, "what it is: hf (HuggingFace safetensors)")
      ->required()
      ->check(CLI::IsMember({"hf"}));
  from->add_option("source", options->other, "the file, or the folder of the model")->required();
  from->add_option("dir", options->dir, "folder to write the checkpoint to")->required();
  from->callback([options] { convert(*options); });
  add_action(*command,
             "diff",
             "Says what differs between two",
             options,
             [&status](const Options& given) { status = diff(given); })
      ->add_option("other", options->other, "the other folder")
      ->required();
}

}  // namespace zero::cli
