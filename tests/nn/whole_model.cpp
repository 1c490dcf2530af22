#include "tests/nn/whole_model.h"

#include <zero/core/rng.h>

#include <algorithm>
#include <cmath>

namespace zero::support {
namespace {

std::size_t bytes_of(DType dtype, const Shape& shape) {
  return static_cast<std::size_t>(std::max<std::int64_t>(1, shape.elems())) * dtype_size(dtype);
}

}  // namespace

WholeEvents::WholeEvents(Module& root, accel::Device& device, DType dtype) : dtype_(dtype) {
  for (const auto& parameter : parameters_of(root)) {
    const std::size_t bytes = bytes_of(dtype, parameter->info.shape);
    states_.emplace(parameter->info.name,
                    State{parameter->info,
                          device.allocate(bytes, Category::kParameters),
                          device.allocate(bytes, Category::kGradients)});
  }
}

std::vector<std::shared_ptr<Parameter>> WholeEvents::touched(Module& module) {
  return module.is_block() ? parameters_of(module) : module.parameters();
}

bool WholeEvents::is_recomputed(const Module& module, Phase phase) const {
  // A block may run forward again inside its own backward, which has bound everything.
  return phase == Phase::kRecompute && backward_.contains(&module);
}

void WholeEvents::bind(Module& module, bool with_grad) {
  open_.push_back(&module);
  for (const auto& parameter : touched(module)) {
    const std::string& name = parameter->info.name;
    ZERO_CHECK(!parameter->value, "bound twice: " + name);
    parameter->value = value(name);
    parameter->grad = with_grad && frozen_.count(name) == 0 ? grad(name) : TensorView{};
    parameter->grad_accumulate = written_.count(name) != 0;
  }
}

void WholeEvents::unbind(Module& module) {
  ZERO_CHECK(!open_.empty() && open_.back() == &module, "events do not nest");
  open_.pop_back();
  for (const auto& parameter : touched(module)) {
    ZERO_CHECK(!parameter->grad, "no gradient came for " + parameter->info.name);
    parameter->value = {};
  }
}

void WholeEvents::before_forward(Module& module, Phase phase, accel::Stream& /*stream*/) {
  if (!is_recomputed(module, phase)) {
    bind(module, /*with_grad=*/false);
  }
}
void WholeEvents::after_forward(Module& module, Phase phase, accel::Stream& /*stream*/) {
  if (!is_recomputed(module, phase)) {
    unbind(module);
  }
}
void WholeEvents::before_backward(Module& module, accel::Stream& /*stream*/) {
  bind(module, /*with_grad=*/true);
  backward_.insert(&module);
}
void WholeEvents::after_backward(Module& module, accel::Stream& /*stream*/) {
  backward_.erase(&module);
  unbind(module);
}

void WholeEvents::gradient_ready(Parameter& parameter,
                                 TensorView gradient,
                                 GradientWrite write,
                                 accel::Stream& /*stream*/) {
  const std::string& name = parameter.info.name;
  ZERO_CHECK(gradient.data == grad(name).data, "gradient elsewhere: " + name);
  ZERO_CHECK((write == GradientWrite::kAccumulated) == (written_.count(name) != 0),
             "written or accumulated, but not as asked: " + name);
  written_.insert(name);
  if (on_gradient) {
    on_gradient(name, gradient);
  }
  parameter.grad = {};
}

WholeModel::WholeModel(Module& module, DType dtype, std::size_t arena_bytes)
    : root(module),
      context(0, 1, Env{}),
      device(accel::make_cpu_device(context, 2)),
      stream(device->make_stream("compute")),
      arena_memory(device->allocate(arena_bytes, Category::kActivations)),
      arena(arena_memory),
      events(module, *device, dtype) {
  for (const auto& parameter : parameters_of(module)) {
    params.push_back(parameter->info);
  }
}

void WholeModel::initialize(std::uint64_t seed) {
  for (const ParamInfo& info : params) {
    std::vector<float> values(static_cast<std::size_t>(info.shape.elems()));
    info.init.fill(info.name, seed, 0, values);
    set_value(info.name, values);
  }
}

void WholeModel::randomize(std::uint64_t seed, double std) {
  for (const ParamInfo& info : params) {
    std::vector<float> values = noise(info.name + std::to_string(seed), info.shape.elems(), std);
    if (info.name.find("ln_") != std::string::npos &&
        info.name.find("weight") != std::string::npos) {
      std::for_each(values.begin(), values.end(), [](float& v) { v += 1.0F; });
    }
    set_value(info.name, values);
  }
}

accel::Buffer WholeModel::allocate(DType dtype, const Shape& shape) {
  return device->allocate(bytes_of(dtype, shape), Category::kOther);
}

std::vector<float> WholeModel::read(ConstTensorView device_view) {
  const Shape flat{device_view.elems()};
  accel::Buffer raw =
      device->allocate(bytes_of(device_view.dtype, flat), Category::kOther, MemorySpace::kHost);
  const TensorView host = raw.view(device_view.dtype, flat);
  device->copy(device_view.reshape(flat), host, *stream);
  stream->synchronize();
  std::vector<float> values(static_cast<std::size_t>(flat.elems()));
  const auto widen = [&](auto span) {
    std::transform(span.begin(), span.end(), values.begin(), [](auto x) { return to_float(x); });
  };
  if (device_view.dtype == DType::kF32) {
    widen(host.as<float>());
  } else if (device_view.dtype == DType::kBF16) {
    widen(host.as<BFloat16>());
  } else {
    widen(host.as<Float16>());
  }
  return values;
}

void WholeModel::write(const std::vector<float>& values, TensorView device_view) {
  const Shape flat{device_view.elems()};
  accel::Buffer raw =
      device->allocate(bytes_of(device_view.dtype, flat), Category::kOther, MemorySpace::kHost);
  const TensorView host = raw.view(device_view.dtype, flat);
  const auto round = [&]<class T>(std::span<T> span) {
    std::transform(
        values.begin(), values.end(), span.begin(), [](float x) { return from_float<T>(x); });
  };
  if (device_view.dtype == DType::kF32) {
    round(host.as<float>());
  } else if (device_view.dtype == DType::kBF16) {
    round(host.as<BFloat16>());
  } else {
    round(host.as<Float16>());
  }
  device->copy(host, device_view.reshape(flat), *stream);
  stream->synchronize();
}

float WholeModel::loss_of(Trainable& model, const Batch& batch, Phase phase) {
  const accel::Buffer memory = allocate(DType::kF32, Shape{1});
  const TensorView loss = memory.view(DType::kF32, Shape{1});
  Execution run = execution(phase);
  model.forward(batch, loss, run);
  return read(loss).front();
}

float WholeModel::train_forward(Trainable& model, const Batch& batch) {
  return loss_of(model, batch, Phase::kTrain);
}

float WholeModel::evaluate(Trainable& model, const Batch& batch) {
  return loss_of(model, batch, Phase::kEval);
}

void WholeModel::backward(Trainable& model, float seed) {
  Execution run = execution(Phase::kTrain);
  model.backward(seed, run);
  stream->synchronize();
}

double WholeModel::gradient_norm() {
  double sum = 0.0;
  for (const ParamInfo& info : params) {
    const std::vector<float> g = grad(info.name);
    sum += dot(g, g);
  }
  return std::sqrt(sum);
}

std::vector<float> noise(const std::string& name, std::int64_t count, double std) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = normal_at(fnv1a64(name), i, std);
  }
  return values;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

HostTensor int_tensor(const std::vector<std::int32_t>& values, const Shape& shape) {
  return HostTensor::copy_of(std::span<const std::int32_t>(values), shape);
}

}  // namespace zero::support
