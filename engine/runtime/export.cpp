#include "engine/runtime/parts.h"
#include <zero/engine/safetensors.h>

#include <fmt/format.h>

#include <algorithm>

namespace zero {
namespace {

/// Elements that travel at a time: bounds the memory that reading whole parameters takes.
constexpr std::int64_t kChunkElems = 1 << 20;

Range intersect(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<std::int64_t>(0, std::min(a.begin + a.count, b.begin + b.count) - begin)};
}

/// Brings fp32 values to where they are wanted, through one bounded buffer on each side.
class MasterReader {
 public:
  explicit MasterReader(EngineParts& parts)
      : parts_(parts),
        device_(parts.world.device.allocate(kChunkElems * sizeof(float), Category::kStaging)),
        host_(parts.world.device.allocate(
            kChunkElems * sizeof(float), Category::kStaging, MemorySpace::kHost)) {
    parts.compute->synchronize();
    parts.comm->synchronize();
  }

  /// Calls take(range, values) on rank 0 (or on all, with `everywhere`) for every part of `wanted`,
  /// in order of the flat. Collective: every rank takes part in moving it.
  template <class Take>
  void read(int flat, Range wanted, bool everywhere, Take take) {
    const Flat& layout = parts_.plan.flats.at(static_cast<std::size_t>(flat));
    const bool cut = is_cut(layout);
    const std::int64_t part = cut ? layout.slice_elems : layout.padded_elems;
    for (int owner = 0; owner < (cut ? parts_.plan.ranks : 1); ++owner) {
      const Range owned = intersect(wanted, {owner * part, part});
      for (std::int64_t done = 0; done < owned.count; done += kChunkElems) {
        const Range range{owned.begin + done, std::min(kChunkElems, owned.count - done)};
        if (move(flat, range, cut ? owner : parts_.world.group.rank(), everywhere)) {
          take(range, std::span<const float>(host(range.count).as<float>()));
        }
      }
    }
  }

 private:
  /// Whether each rank holds a slice of the fp32 values only.
  static bool is_cut(const Flat& flat) {
    return flat.trainable ? flat.state.partitioned : flat.parameters.partitioned;
  }

  TensorView host(std::int64_t count) const {
    return host_.view(DType::kF32, Shape{kChunkElems}).slice(0, count);
  }

  /// Whether the values are in this rank's host buffer now.
  bool move(int flat, Range range, int owner, bool everywhere) {
    comm::Group& group = parts_.world.group;
    accel::Stream& stream = *parts_.comm;
    const TensorView chunk = device_.view(DType::kF32, Shape{kChunkElems}).slice(0, range.count);
    if (group.rank() == owner) {
      parts_.world.device.kernels().cast(parts_.store.master(flat, range), chunk, stream);
    }
    const bool cut = is_cut(parts_.plan.flats[static_cast<std::size_t>(flat)]);
    if (cut && everywhere) {
      (void)group.broadcast(chunk, owner, stream, comm::Payload::kControl);
    } else if (cut && owner != 0 && group.rank() == owner) {
      (void)group.send(chunk, 0, stream);
    } else if (cut && owner != 0 && group.rank() == 0) {
      (void)group.recv(chunk, owner, stream);
    }
    const bool wanted_here = everywhere || group.rank() == 0;
    if (wanted_here) {
      parts_.world.device.copy(chunk, host(range.count), stream);
    }
    stream.synchronize();
    return wanted_here;
  }

  EngineParts& parts_;
  accel::Buffer device_;
  accel::Buffer host_;
};

}  // namespace

void Engine::export_weights(const std::string& path) {
  EngineParts& parts = *parts_;
  MasterReader reader(parts);
  std::unique_ptr<SafetensorsWriter> writer;
  if (parts.world.group.rank() == 0) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const ParamInfo& info : parts.plan.params) {
      tensors.push_back({info.name, DType::kF32, info.shape});
    }
    writer = std::make_unique<SafetensorsWriter>(path, std::move(tensors));
  }
  for (int flat = 0; flat < static_cast<int>(parts.plan.flats.size()); ++flat) {
    const Flat& layout = parts.plan.flats[static_cast<std::size_t>(flat)];
    reader.read(
        flat, {0, layout.padded_elems}, false, [&](Range range, std::span<const float> values) {
          for (const FlatParam& param : layout.params) {
            const Range part = intersect(range, {param.offset, param.elems});
            if (part.count > 0) {
              writer->write(parts.plan.params[param.param].name,
                            part.begin - param.offset,
                            values.subspan(static_cast<std::size_t>(part.begin - range.begin),
                                           static_cast<std::size_t>(part.count)));
            }
          }
        });
  }
  if (writer != nullptr) {
    writer->finish();
  }
}

std::vector<float> Engine::full_fp32_parameter(std::string_view name) {
  EngineParts& parts = *parts_;
  for (int flat = 0; flat < static_cast<int>(parts.plan.flats.size()); ++flat) {
    for (const FlatParam& param : parts.plan.flats[static_cast<std::size_t>(flat)].params) {
      if (parts.plan.params[param.param].name == name) {
        std::vector<float> whole(static_cast<std::size_t>(param.elems));
        MasterReader(parts).read(
            flat,
            {param.offset, param.elems},
            true,
            [&](Range range, std::span<const float> values) {
              std::copy(values.begin(), values.end(), whole.begin() + (range.begin - param.offset));
            });
        return whole;
      }
    }
  }
  throw InputError(fmt::format("no parameter is called \"{}\"", name),
                   "full_fp32_parameter",
                   "see the plan for the names");
}

}  // namespace zero
