#include <zero/core/module.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace zero {

std::string Module::full_name(const std::string& suffix) const {
  return name_.empty() ? suffix : name_ + "." + suffix;
}

std::shared_ptr<ModuleBuffer> Module::add_buffer(const std::string& suffix,
                                                 Shape shape,
                                                 Init init) {
  buffers_.push_back(
      std::make_shared<ModuleBuffer>(ModuleBuffer{full_name(suffix), shape, std::move(init), {}}));
  return buffers_.back();
}

std::shared_ptr<Parameter> Module::add_parameter(const std::string& suffix,
                                                 Shape shape,
                                                 Init init) {
  auto parameter = std::make_shared<Parameter>();
  parameter->info.name = full_name(suffix);
  parameter->info.shape = shape;
  parameter->info.init = std::move(init);
  parameters_.push_back(parameter);
  return parameter;
}

HostTensor HostTensor::copy_of_bytes(ConstTensorView host_view) {
  auto storage =
      std::shared_ptr<std::byte[]>(new std::byte[std::max<std::size_t>(1, host_view.bytes())]);
  std::memcpy(storage.get(), host_view.data, host_view.bytes());
  return {host_view.dtype, host_view.shape, storage};
}

std::vector<Module*> modules_of(Module& root) {
  std::vector<Module*> all = {&root};
  for (Module* child : root.children()) {
    const std::vector<Module*> below = modules_of(*child);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

std::vector<std::shared_ptr<Parameter>> parameters_of(Module& root) {
  std::vector<std::shared_ptr<Parameter>> all;
  std::unordered_set<const Parameter*> seen;
  for (const Module* module : modules_of(root)) {
    for (const auto& parameter : module->parameters()) {
      if (seen.insert(parameter.get()).second) {
        all.push_back(parameter);
      }
    }
  }
  return all;
}

std::vector<std::shared_ptr<ModuleBuffer>> buffers_of(Module& root) {
  std::vector<std::shared_ptr<ModuleBuffer>> all;
  for (const Module* module : modules_of(root)) {
    all.insert(all.end(), module->buffers().begin(), module->buffers().end());
  }
  return all;
}

}  // namespace zero
