#include "engine/runtime/checkpoint_saver.h"

#include <fmt/format.h>

#include <filesystem>
#include <limits>

namespace zero {
namespace {

constexpr int kAllFlats = std::numeric_limits<int>::max();

std::string file_name(int rank) {
  return fmt::format("rank-{:05}.safetensors", rank);
}

}  // namespace

CheckpointSaver::CheckpointSaver(EngineParts& parts,
                                 Lane lane,
                                 const std::string& dir,
                                 std::string tag,
                                 std::string client_state)
    : parts_(parts),
      lane_(lane),
      folder_(dir, std::move(tag)),
      manifest_(parts.describe()),
      access_(parts, lane.stream) {
  manifest_.client_state = std::move(client_state);
}

void CheckpointSaver::run(const std::function<void(int count)>& staged) {
  const auto on_rank_0 = [&](const auto& body) {
    parts_.together(lane_, [&] {
      if (lane_.group.rank() == 0) {
        body();
      }
    });
  };
  try {
    on_rank_0([&] {
      for (const std::string& left : folder_.prepare()) {
        ZERO_LOG(parts_.world.context.log,
                 kInfo,
                 "checkpoint",
                 "removed {}, which an interrupted save has left",
                 left);
      }
    });
    parts_.together(lane_, [&] { write_rank_file(staged); });
    on_rank_0([&] { write_manifest(); });
    on_rank_0([&] { folder_.publish(); });
  } catch (...) {
    if (lane_.group.rank() == 0) {
      folder_.discard();
    }
    throw;
  }
}

template <class Body>
void CheckpointSaver::each_part(int flat, Body body) const {
  const Flat& layout = parts_.plan.flats[static_cast<std::size_t>(flat)];
  for (const StateRef state : states_of(layout, parts_.plan.moments)) {
    for (const FlatPart& part : parts_in(layout, parts_.store.own_slice(flat))) {
      const std::string name =
          CheckpointManifest::extent_name(manifest_.states.at(state.number()),
                                          parts_.plan.params[part.place->param].name,
                                          part.range.begin - part.place->offset);
      body(name, state, part);
    }
  }
}

/// This rank's slice of every flat, whatever the plan lets it keep beyond that. One copy of the
/// model is enough.
void CheckpointSaver::write_rank_file(const std::function<void(int count)>& staged) {
  if (!parts_.store.counts()) {
    staged(kAllFlats);
    return;
  }
  const auto flats = static_cast<int>(parts_.plan.flats.size());
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (int flat = 0; flat < flats; ++flat) {
    each_part(flat, [&](const std::string& name, StateRef /*state*/, const FlatPart& part) {
      tensors.push_back({name, DType::kF32, Shape{part.range.count}});
    });
  }
  const std::string path = folder_.file(file_name(lane_.group.rank()));
  SafetensorsWriter writer(path, std::move(tensors), SafetensorsWriter::Order::kGiven);
  for (int flat = 0; flat < flats; ++flat) {
    each_part(flat, [&](const std::string& name, StateRef state, const FlatPart& part) {
      access_.read_own(flat, state, part.range, [&](Range range, std::span<const float> values) {
        writer.write(name, range.begin - part.range.begin, values);
      });
    });
    staged(flat + 1);
  }
  writer.finish();
  const std::vector<std::uint64_t> sums = writer.block_sums().value();
  write_new_file(path + ".sums",
                 {reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(sums[0])});
}

void CheckpointSaver::write_manifest() {
  const auto path_of = [&](int rank) { return folder_.file(file_name(rank)); };
  std::vector<SafetensorsReader> files;
  for (int rank = 0; rank < parts_.plan.shards; ++rank) {
    const File sums = File::open_to_read(path_of(rank) + ".sums");
    std::vector<std::uint64_t> blocks(sums.size_bytes() / sizeof(std::uint64_t));
    sums.read_at(std::as_writable_bytes(std::span(blocks)), 0);
    manifest_.files.push_back(
        {file_name(rank), File::open_to_read(path_of(rank)).size_bytes(), std::move(blocks)});
    files.emplace_back(path_of(rank));
  }
  for (const Flat& flat : parts_.plan.flats) {
    for (int rank = 0; rank < parts_.plan.shards; ++rank) {
      add_extents(flat, rank, files[static_cast<std::size_t>(rank)]);
    }
  }
  write_new_file(folder_.file("manifest.json"), manifest_.to_json());
  for (int rank = 0; rank < parts_.plan.shards; ++rank) {
    std::filesystem::remove(path_of(rank) + ".sums");
  }
}

void CheckpointSaver::add_extents(const Flat& flat, int rank, const SafetensorsReader& file) {
  for (const StateRef state : states_of(flat, parts_.plan.moments)) {
    for (const FlatPart& part : parts_in(flat, {rank * flat.slice_elems, flat.slice_elems})) {
      const std::int64_t begin = part.range.begin - part.place->offset;
      const std::string name = CheckpointManifest::extent_name(
          manifest_.states.at(state.number()), manifest_.parameters[part.place->param].name, begin);
      manifest_.extents.push_back({part.place->param,
                                   state.number(),
                                   begin,
                                   begin + part.range.count,
                                   static_cast<std::size_t>(rank),
                                   file.entry(name).begin});
    }
  }
}

BackgroundSave::BackgroundSave(std::unique_ptr<CheckpointSaver> saver)
    : saver_(std::move(saver)), thread_([this] {
        try {
          saver_->run([this](int count) { set_staged(count); });
        } catch (...) {
          error_ = std::current_exception();
        }
        set_staged(kAllFlats);
      }) {}

BackgroundSave::~BackgroundSave() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void BackgroundSave::set_staged(int count) {
  {
    const std::lock_guard lock(mutex_);
    staged_ = count;
  }
  changed_.notify_all();
}

void BackgroundSave::wait_staged(int flat) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return staged_ > flat; });
}

void BackgroundSave::finish() {
  thread_.join();
  if (error_) {
    std::rethrow_exception(error_);
  }
}

}  // namespace zero
