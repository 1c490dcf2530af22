#include "engine/checkpoint/safetensors_header.h"
#include "engine/runtime/checkpoint_saver.h"
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
      for (const FlatPart& part : parts_in(layout, access.kept(flat, state))) {
        const std::size_t place = places[part.place->param];
        if (state.kind == StateRef::Kind::kOptimizer &&
            !reader.manifest().parameters[place].trainable) {
          continue;  // frozen when it was saved: its moments start at zero
        }
        for (std::int64_t done = 0; done < part.range.count; done += kReadElems) {
          const Range range{part.range.begin + done, std::min(kReadElems, part.range.count - done)};
          const auto piece = std::span(values).first(static_cast<std::size_t>(range.count));
          reader.read(place, state.number(), range.begin - part.place->offset, piece);
          access.write(flat, state, range, piece);
        }
      }
    }
  }
}

}  // namespace

/// Runs `body` on every rank and agrees on how it went: where it failed on one, all throw, each its
/// own error or that of nobody it knows.
void EngineParts::together(Lane lane, const std::function<void()>& body) {
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
  world.device.copy(view_of(std::span(&mine, 1)), view, lane.stream);
  (void)lane.group.all_reduce_in_place(
      {&view, 1}, comm::ReduceOp::kSum, lane.stream, comm::Payload::kControl);
  world.device.copy(view, view_of(std::span(&failed, 1)), lane.stream);
  lane.stream.synchronize();
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
  manifest.states = rule->states();
  manifest.states.insert(manifest.states.begin(), "master");
  for (const ParamInfo& info : plan.params) {
    manifest.parameters.push_back(
        {info.name, safetensors::dims_of(info.shape), info.trainable, info.group});
  }
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
  if (manifest.optimizer.empty()) {
    return;  // weights alone
  }
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
  parts.finish_save();
  const bool background = parts.save != nullptr;
  auto saver = std::make_unique<CheckpointSaver>(
      parts, background ? parts.save_lane() : parts.lane(), dir, name, client_state);
  if (background) {
    parts.saving = std::make_unique<BackgroundSave>(std::move(saver));
  } else {
    const comm::About about(parts.world.group, "save_checkpoint");
    saver->run([](int /*staged*/) {});
  }
  return name;
}

void Engine::finish_checkpoint() {
  parts_->finish_save();
}

Lane EngineParts::lane() const {
  return {*comm, world.group};
}

Lane EngineParts::save_lane() const {
  return {*save, *save_group};
}

void EngineParts::wait_staged(int flat) {
  if (saving != nullptr) {
    saving->wait_staged(flat);
  }
}

void EngineParts::finish_save() {
  if (const std::unique_ptr<BackgroundSave> ending = std::move(saving); ending != nullptr) {
    ending->finish();
  }
}

LoadedCheckpoint Engine::load_checkpoint(const std::string& dir,
                                         const std::string& tag,
                                         const LoadCheckpointOptions& options) {
  EngineParts& parts = *parts_;
  parts.finish_save();
  parts.settle(true);
  if (!parts.outstanding.empty()) {
    throw InputError(
        "a forward waits for its backward", "Engine::load_checkpoint", "load between steps");
  }
  parts.synchronize();
  std::optional<CheckpointReader> reader;
  std::vector<std::size_t> places;
  bool whole = options.optimizer_states;
  const comm::About about(parts.world.group, "load_checkpoint");
  parts.together(parts.lane(), [&] {
    reader.emplace(dir, tag);
    places = match_parameters(parts.plan, *reader);
    whole = whole && !reader->manifest().optimizer.empty();
    if (whole) {
      check_optimizer(parts, *reader);
    }
    // Every block is checked by one rank before any value is used.
    reader->verify(static_cast<std::size_t>(parts.world.group.rank()),
                   static_cast<std::size_t>(parts.world.group.size()));
  });
  parts.together(parts.lane(), [&] {
    read_states(parts, *reader, places, whole);
    parts.restore_buffers(reader->manifest());
  });
  if (whole) {
    parts.restore(reader->manifest());
  }
  parts.forget_window();
  return {reader->tag(), parts.global_steps, reader->manifest().client_state};
}

}  // namespace zero
