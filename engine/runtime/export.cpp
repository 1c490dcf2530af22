#include "engine/runtime/state_access.h"
#include <zero/engine/safetensors.h>

namespace zero {

void Engine::export_weights(const std::string& path) {
  EngineParts& parts = *parts_;
  StateAccess access(parts);
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
    access.read(
        flat, {}, {0, layout.padded_elems}, false, [&](Range range, std::span<const float> values) {
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

}  // namespace zero
