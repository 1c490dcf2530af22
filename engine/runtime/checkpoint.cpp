#include "engine/checkpoint/safetensors_header.h"
#include "engine/runtime/state_access.h"
#include <zero/engine/checkpoint.h>
#include <zero/engine/safetensors.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace zero {
namespace {

namespace fs = std::filesystem;

/// Elements that are read from a checkpoint at a time.
constexpr std::int64_t kReadElems = 1 << 20;

/// The states that a checkpoint keeps of a flat: the fp32 parameters, then those of the optimizer.
std::vector<StateRef> states_of(const Flat& flat, int optimizer_states) {
  std::vector<StateRef> states = {{StateRef::Kind::kMaster}};
  for (int index = 0; flat.trainable && index < optimizer_states; ++index) {
    states.push_back({StateRef::Kind::kOptimizer, index});
  }
  return states;
}

std::size_t number_of(StateRef state) {
  return state.kind == StateRef::Kind::kMaster ? 0 : static_cast<std::size_t>(state.index) + 1;
}

/// Name of one extent in a rank's file: state, parameter and first element.
std::string extent_name(std::string_view state, std::string_view parameter, std::int64_t begin) {
  return fmt::format("{}|{}|{}", state, parameter, begin);
}

std::string file_name(int rank) {
  return fmt::format("rank-{:05}.safetensors", rank);
}

/// A part of a parameter that lies in some range of its flat.
struct Part {
  const FlatParam* place = nullptr;
  Range range;  ///< in the flat
};

std::vector<Part> parts_in(const Flat& flat, Range range) {
  std::vector<Part> parts;
  for (const FlatParam& place : flat.params) {
    const Range part = intersect(range, {place.offset, place.elems});
    if (part.count > 0) {
      parts.push_back({&place, part});
    }
  }
  return parts;
}

void write_text(const std::string& path, std::string_view text) {
  File file = File::create(path);
  file.write_at(std::as_bytes(std::span(text)), 0);
  file.sync();
  file.close();
}

/// Saves one checkpoint. Everything is written beside the target and takes its name at the end.
class Saver {
 public:
  Saver(EngineParts& parts, const std::string& dir, const std::string& tag)
      : parts_(parts),
        rank_(parts.world.group.rank()),
        states_(parts.rule->states()),
        dir_(dir),
        tag_(tag),
        partial_((fs::path(dir) / ("." + tag + ".partial")).string()) {
    states_.insert(states_.begin(), "master");
  }

  void run(const std::string& client_state) {
    try {
      on_rank_0([&] { prepare(); });
      parts_.together([&] { write_rank_file(); });
      on_rank_0([&] { write_manifest(client_state); });
      on_rank_0([&] { publish(); });
    } catch (...) {
      if (rank_ == 0) {
        std::error_code ignored;
        fs::remove_all(partial_, ignored);
      }
      throw;
    }
  }

 private:
  template <class Body>
  void on_rank_0(Body body) {
    parts_.together([&] {
      if (rank_ == 0) {
        body();
      }
    });
  }

  [[nodiscard]] std::string in_partial(const std::string& name) const {
    return (fs::path(partial_) / name).string();
  }

  /// Makes the folder, and clears away what killed runs have left.
  void prepare() {
    std::error_code error;
    fs::create_directories(dir_, error);
    if (!error) {
      for (const fs::directory_entry& entry : fs::directory_iterator(dir_, error)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with(".") && name.ends_with(".partial")) {
          ZERO_LOG(parts_.world.context.log,
                   kInfo,
                   "checkpoint",
                   "removing {}, which an interrupted save has left",
                   entry.path().string());
          fs::remove_all(entry.path(), error);
        }
      }
    }
    if (!error) {
      fs::create_directory(partial_, error);
    }
    if (error) {
      throw IoError("cannot make the folder of the checkpoint: " + error.message(),
                    partial_,
                    "choose another folder or change its rights");
    }
  }

  /// This rank's slice of every flat, whatever the plan lets it keep beyond that. One copy of the
  /// model is enough.
  void write_rank_file() {
    if (!parts_.store.counts()) {
      return;
    }
    std::vector<SafetensorsWriter::Tensor> tensors;
    each_part([&](int /*flat*/, StateRef state, const Part& part) {
      tensors.push_back({name_of(state, part), DType::kF32, Shape{part.range.count}});
    });
    const std::string path = in_partial(file_name(rank_));
    SafetensorsWriter writer(path, std::move(tensors));
    StateAccess access(parts_);
    each_part([&](int flat, StateRef state, const Part& part) {
      access.read_own(flat, state, part.range, [&](Range range, std::span<const float> values) {
        writer.write(name_of(state, part), range.begin - part.range.begin, values);
      });
    });
    writer.finish();
    std::string sums;
    for (const std::uint64_t sum : block_sums_of(File::open_to_read(path))) {
      sums.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
    }
    write_text(path + ".sums", sums);
  }

  template <class Body>
  void each_part(Body body) const {
    for (int flat = 0; flat < static_cast<int>(parts_.plan.flats.size()); ++flat) {
      const Flat& layout = parts_.plan.flats[static_cast<std::size_t>(flat)];
      for (const StateRef state : states_of(layout, parts_.plan.moments)) {
        for (const Part& part : parts_in(layout, parts_.store.own_slice(flat))) {
          body(flat, state, part);
        }
      }
    }
  }

  [[nodiscard]] std::string name_of(StateRef state, const Part& part) const {
    return extent_name(states_.at(number_of(state)),
                       parts_.plan.params[part.place->param].name,
                       part.range.begin - part.place->offset);
  }

  void write_manifest(const std::string& client_state) {
    CheckpointManifest manifest = parts_.describe();
    manifest.states = states_;
    manifest.client_state = client_state;
    for (const ParamInfo& info : parts_.plan.params) {
      manifest.parameters.push_back(
          {info.name, safetensors::dims_of(info.shape), info.trainable, info.group});
    }
    std::vector<SafetensorsReader> files;
    for (int rank = 0; rank < parts_.plan.shards; ++rank) {
      const std::string path = in_partial(file_name(rank));
      const File sums = File::open_to_read(path + ".sums");
      std::vector<std::uint64_t> blocks(sums.size_bytes() / sizeof(std::uint64_t));
      sums.read_at(std::as_writable_bytes(std::span(blocks)), 0);
      manifest.files.push_back(
          {file_name(rank), File::open_to_read(path).size_bytes(), std::move(blocks)});
      files.emplace_back(path);
    }
    for (const Flat& flat : parts_.plan.flats) {
      for (int rank = 0; rank < parts_.plan.shards; ++rank) {
        add_extents(flat, rank, files[static_cast<std::size_t>(rank)], manifest);
      }
    }
    write_text(in_partial("manifest.json"), manifest.to_json());
    for (int rank = 0; rank < parts_.plan.shards; ++rank) {
      fs::remove(in_partial(file_name(rank) + ".sums"));
    }
  }

  void add_extents(const Flat& flat,
                   int rank,
                   const SafetensorsReader& file,
                   CheckpointManifest& manifest) const {
    for (const StateRef state : states_of(flat, parts_.plan.moments)) {
      for (const Part& part : parts_in(flat, {rank * flat.slice_elems, flat.slice_elems})) {
        const std::int64_t begin = part.range.begin - part.place->offset;
        manifest.extents.push_back({part.place->param,
                                    number_of(state),
                                    begin,
                                    begin + part.range.count,
                                    static_cast<std::size_t>(rank),
                                    file.entry(name_of(state, part)).begin});
      }
    }
  }

  void publish() {
    replace_folder(partial_, (fs::path(dir_) / tag_).string());
    const std::string latest = (fs::path(dir_) / "latest").string();
    const std::string beside = (fs::path(dir_) / ".latest.partial").string();
    std::error_code ignored;
    fs::remove(beside, ignored);
    write_text(beside, tag_ + "\n");
    replace_file(beside, latest);
  }

  EngineParts& parts_;
  int rank_;
  std::vector<std::string> states_;
  std::string dir_;
  std::string tag_;
  std::string partial_;
};

/// Index of each of the plan's parameters in the checkpoint. InputError for a model that differs.
std::vector<std::size_t> match_parameters(const StatePlan& plan, const CheckpointReader& reader) {
  std::map<std::string, std::size_t, std::less<>> places;
  const auto& stored = reader.manifest().parameters;
  for (std::size_t index = 0; index < stored.size(); ++index) {
    places[stored[index].name] = index;
  }
  const auto refuse = [&](const std::string& what) {
    throw InputError(what, reader.folder(), "load it into the model that was saved");
  };
  std::vector<std::size_t> found;
  for (const ParamInfo& info : plan.params) {
    const auto place = places.find(info.name);
    if (place == places.end()) {
      refuse(fmt::format("the checkpoint has no parameter \"{}\"", info.name));
    }
    if (safetensors::dims_of(info.shape) != stored[place->second].shape) {
      refuse(fmt::format("\"{}\" is [{}] in the checkpoint and {} in the model",
                         info.name,
                         fmt::join(stored[place->second].shape, ", "),
                         info.shape.to_string()));
    }
    found.push_back(place->second);
  }
  if (found.size() != stored.size()) {
    refuse(
        fmt::format("the checkpoint has {} parameters, the model {}", stored.size(), found.size()));
  }
  return found;
}

void check_optimizer(const EngineParts& parts, const CheckpointReader& reader) {
  std::vector<std::string> expected = parts.rule->states();
  expected.insert(expected.begin(), "master");
  if (reader.manifest().states != expected) {
    throw InputError(
        fmt::format("the checkpoint has the states {} of {}, the optimizer here has {}",
                    fmt::join(reader.manifest().states, ", "),
                    reader.manifest().optimizer,
                    fmt::join(expected, ", ")),
        reader.folder(),
        "use the same optimizer, or load the weights alone");
  }
}

/// Brings what this rank keeps of every state from the files to its place.
void read_states(EngineParts& parts,
                 const CheckpointReader& reader,
                 const std::vector<std::size_t>& places,
                 bool optimizer_states) {
  StateAccess access(parts);
  std::vector<float> values(static_cast<std::size_t>(kReadElems));
  for (int flat = 0; flat < static_cast<int>(parts.plan.flats.size()); ++flat) {
    const Flat& layout = parts.plan.flats[static_cast<std::size_t>(flat)];
    for (const StateRef state : states_of(layout, optimizer_states ? parts.plan.moments : 0)) {
      for (const Part& part : parts_in(layout, access.kept(flat, state))) {
        const std::size_t place = places[part.place->param];
        if (state.kind == StateRef::Kind::kOptimizer &&
            !reader.manifest().parameters[place].trainable) {
          continue;  // frozen when it was saved: its moments start at zero
        }
        for (std::int64_t done = 0; done < part.range.count; done += kReadElems) {
          const Range range{part.range.begin + done, std::min(kReadElems, part.range.count - done)};
          const auto piece = std::span(values).first(static_cast<std::size_t>(range.count));
          reader.read(place, number_of(state), range.begin - part.place->offset, piece);
          access.write(flat, state, range, piece);
        }
      }
    }
  }
}

}  // namespace

/// Runs `body` on every rank and agrees on how it went: where it failed on one, all throw, each its
/// own error or that of nobody it knows.
void EngineParts::together(const std::function<void()>& body) {
  std::exception_ptr error;
  try {
    body();
  } catch (const PeerError&) {
    throw;  // there is nobody left to agree with
  } catch (...) {
    error = std::current_exception();
  }
  const std::int64_t mine = error ? 1 : 0;
  const Shape one{1};
  const accel::Buffer sum = world.device.allocate(sizeof(mine), Category::kOther);
  const TensorView view = sum.view(DType::kI64, one);
  std::int64_t failed = 0;
  world.device.copy(view_of(std::span(&mine, 1)), view, *comm);
  (void)world.group.all_reduce_in_place(
      {&view, 1}, comm::ReduceOp::kSum, *comm, comm::Payload::kControl);
  world.device.copy(view, view_of(std::span(&failed, 1)), *comm);
  comm->synchronize();
  if (error) {
    std::rethrow_exception(error);
  }
  if (failed > 0) {
    throw IoError(fmt::format("{} of {} ranks failed", failed, world.group.size()),
                  "checkpoint",
                  "see their messages");
  }
}

CheckpointManifest EngineParts::describe() const {
  CheckpointManifest manifest;
  manifest.ranks = plan.ranks;
  manifest.stage = plan.stage;
  manifest.precision = std::string(dtype_name(plan.model_dtype));
  manifest.seed = seed;
  manifest.optimizer = config.optimizer.type;
  for (const optim::Hyper& group : groups) {
    manifest.groups.push_back({group.lr, group.weight_decay});
  }
  manifest.counters = {{"global_steps", global_steps},
                       {"applied_steps", applied_steps},
                       {"skipped_steps", skipped_steps},
                       {"skipped_in_a_row", skipped_in_a_row},
                       {"micro_steps", boundary_micro_steps},
                       {"training_samples", boundary_samples},
                       {"micro_steps_since", micro_steps - boundary_micro_steps}};
  manifest.loss_scaler = scaler.state();
  for (const auto& buffer : buffers_of(model)) {
    std::vector<float>& values = manifest.buffers[buffer->name];
    values.resize(static_cast<std::size_t>(buffer->shape.elems()));
    const Shape flat{buffer->shape.elems()};
    world.device.copy(buffer->value.reshape(flat), view_of(std::span(values)), *compute);
    compute->synchronize();
  }
  return manifest;
}

void EngineParts::restore(const CheckpointManifest& manifest) {
  const auto counter = [&](const char* name) {
    const auto found = manifest.counters.find(name);
    return found == manifest.counters.end() ? 0 : found->second;
  };
  global_steps = counter("global_steps");
  applied_steps = counter("applied_steps");
  skipped_steps = counter("skipped_steps");
  skipped_in_a_row = static_cast<int>(counter("skipped_in_a_row"));
  micro_steps = boundary_micro_steps = counter("micro_steps");
  training_samples = boundary_samples = counter("training_samples");
  seed = manifest.seed;
  scaler.restore(manifest.loss_scaler);
  for (std::size_t group = 0; groups.size() == manifest.groups.size() && group < groups.size();
       ++group) {
    groups[group].lr = manifest.groups[group].lr;
    groups[group].weight_decay = manifest.groups[group].weight_decay;
  }
}

void EngineParts::restore_buffers(const CheckpointManifest& manifest) {
  for (const auto& buffer : buffers_of(model)) {
    const auto found = manifest.buffers.find(buffer->name);
    const Shape flat{buffer->shape.elems()};
    if (found == manifest.buffers.end() ||
        static_cast<std::int64_t>(found->second.size()) != flat.elems()) {
      throw InputError(fmt::format("the checkpoint has no such buffer \"{}\"", buffer->name),
                       "Engine::load_checkpoint",
                       "load it into the model that was saved");
    }
    world.device.copy(
        view_of(std::span<const float>(found->second)), buffer->value.reshape(flat), *compute);
    compute->synchronize();
  }
}

std::string Engine::save_checkpoint(const std::string& dir,
                                    const std::string& tag,
                                    const std::string& client_state) {
  EngineParts& parts = *parts_;
  parts.settle(true);
  const std::string name = tag.empty() ? fmt::format("global_step{}", parts.global_steps) : tag;
  if (name[0] == '.' || name.find('/') != std::string::npos || name == "latest") {
    throw InputError(fmt::format("\"{}\" is no name for a checkpoint", name),
                     "Engine::save_checkpoint",
                     "use one without '/' that does not start with a dot");
  }
  Saver(parts, dir, name).run(client_state);
  return name;
}

LoadedCheckpoint Engine::load_checkpoint(const std::string& dir,
                                         const std::string& tag,
                                         const LoadCheckpointOptions& options) {
  EngineParts& parts = *parts_;
  parts.settle(true);
  if (!parts.outstanding.empty()) {
    throw InputError(
        "a forward waits for its backward", "Engine::load_checkpoint", "load between steps");
  }
  parts.synchronize();
  std::optional<CheckpointReader> reader;
  std::vector<std::size_t> places;
  parts.together([&] {
    reader.emplace(dir, tag);
    places = match_parameters(parts.plan, *reader);
    if (options.optimizer_states) {
      check_optimizer(parts, *reader);
    }
    // Every block is checked by one rank before any value is used.
    reader->verify(static_cast<std::size_t>(parts.world.group.rank()),
                   static_cast<std::size_t>(parts.world.group.size()));
  });
  parts.together([&] {
    read_states(parts, *reader, places, options.optimizer_states);
    parts.restore_buffers(reader->manifest());
  });
  if (options.optimizer_states) {
    parts.restore(reader->manifest());
  }
  parts.forget_window();
  return {reader->tag(), parts.global_steps, reader->manifest().client_state};
}

}  // namespace zero
