#include "engine/runtime/state_access.h"
#include <zero/engine/safetensors.h>

namespace zero {

void Engine::export_weights(const std::string& path) {
  parts_->write_weights(path, DType::kF32);
}

void Engine::save_16bit_model(const std::string& path) {
  parts_->write_weights(path, parts_->plan.model_dtype);
}

void EngineParts::write_weights(const std::string& path, DType dtype) {
  const comm::About about(world.group, "export of weights");
  StateAccess access(*this);
  std::unique_ptr<SafetensorsWriter> writer;
  if (world.group.rank() == 0) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const ParamInfo& info : plan.params) {
      tensors.push_back({info.name, dtype, info.shape});
    }
    writer = std::make_unique<SafetensorsWriter>(path, std::move(tensors));
  }
  for (int flat = 0; flat < static_cast<int>(plan.flats.size()); ++flat) {
    const Flat& layout = plan.flats[static_cast<std::size_t>(flat)];
    access.read(
        flat, {}, {0, layout.padded_elems}, false, [&](Range range, std::span<const float> values) {
          for (const FlatParam& param : layout.params) {
            const Range part = intersect(range, {param.offset, param.elems});
            if (part.count > 0) {
              writer->write(plan.params[param.param].name,
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
