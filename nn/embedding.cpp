#include <zero/accel/device.h>
#include <zero/nn/embedding.h>
#include <zero/nn/events.h>

namespace zero::nn {

Embedding::Embedding(const std::string& name, const Options& options) : Module(name) {
  const auto declare = [&](const std::string& full_name, std::int64_t rows) {
    auto parameter =
        add_parameter(full_name, Shape{rows, options.width}, Init::normal(options.init_std));
    parameter->info.name = full_name;  // without this module's own name in front
    return parameter;
  };
  table_ = declare(options.table_name, options.vocabulary);
  if (options.positions > 0) {
    positions_ = declare(options.position_name, options.positions);
  }
}

void Embedding::forward(ConstTensorView tokens, TensorView out, Execution& execution) const {
  execution.device.kernels().embedding_forward(
      tokens, table_->value, positions_ ? positions_->value : TensorView{}, out, execution.stream);
}

void Embedding::backward(ConstTensorView tokens, ConstTensorView dout, Execution& execution) const {
  const TensorView dpositions = positions_ ? positions_->grad : TensorView{};
  if (!table_->grad && !dpositions) {
    return;
  }
  execution.device.kernels().embedding_backward(tokens,
                                                dout,
                                                table_->grad,
                                                table_->grad_accumulate,
                                                dpositions,
                                                positions_ && positions_->grad_accumulate,
                                                execution.stream);
  if (table_->grad) {
    announce_gradient(*table_, execution);
  }
  if (dpositions) {
    announce_gradient(*positions_, execution);
  }
}

}  // namespace zero::nn
