#include <zero/accel/device.h>
#include <zero/nn/events.h>
#include <zero/nn/tied_head.h>

#include <algorithm>

namespace zero::nn {
namespace {

/// Rows [begin, begin + rows) of x [M, width].
template <class View>
View rows_of(View x, std::int64_t begin, std::int64_t rows, std::int64_t width) {
  return x.slice(begin * width, rows * width).reshape(Shape{rows, width});
}

}  // namespace

TiedHead::TiedHead(const std::string& name,
                   std::shared_ptr<Parameter> table,
                   std::int64_t chunk_elems)
    : Module(name),
      table_(table),
      vocabulary_(table->info.shape[0]),
      width_(table->info.shape[1]),
      chunk_elems_(chunk_elems) {
  share_parameter(std::move(table));
}

std::int64_t TiedHead::chunk_rows() const noexcept {
  return std::max<std::int64_t>(1, chunk_elems_ / vocabulary_);
}

template <class Body>
void TiedHead::for_each_chunk(std::int64_t rows, Body&& body) const {
  for (std::int64_t begin = 0; begin < rows; begin += chunk_rows()) {
    body(begin, std::min(chunk_rows(), rows - begin));
  }
}

void TiedHead::take_saved(Pass& pass, accel::Arena& arena) const {
  const std::int64_t rows = pass.x.shape[0];
  pass.logits_kept = rows <= chunk_rows();
  if (pass.logits_kept) {
    pass.logits = arena.take(pass.x.dtype, Shape{rows, vocabulary_});
  }
}

void TiedHead::logits(ConstTensorView x, TensorView out, Execution& execution) const {
  execution.device.kernels().gemm({.a = x, .b = table_->value, .c = out, .transpose_b = true},
                                  execution.stream);
}

void TiedHead::forward(const Pass& pass, TensorView loss, Execution& execution) const {
  accel::Arena& arena = execution.arena;
  const accel::Kernels& kernels = execution.device.kernels();
  const accel::Arena::Scope workspace(arena);
  const std::int64_t rows = pass.x.shape[0];
  const TensorView losses = arena.take(DType::kF32, Shape{rows});
  for_each_chunk(rows, [&](std::int64_t begin, std::int64_t count) {
    const accel::Arena::Scope chunk(arena);
    const TensorView scores =
        pass.logits_kept ? pass.logits : arena.take(pass.x.dtype, Shape{count, vocabulary_});
    logits(rows_of(pass.x, begin, count, width_), scores, execution);
    kernels.cross_entropy_forward(
        scores, pass.targets.slice(begin, count), losses.slice(begin, count), execution.stream);
  });
  kernels.mean(losses, static_cast<double>(pass.counted), loss, execution.stream);
}

void TiedHead::backward(const Pass& pass, float seed, TensorView dx, Execution& execution) const {
  accel::Arena& arena = execution.arena;
  const accel::Kernels& kernels = execution.device.kernels();
  for_each_chunk(pass.x.shape[0], [&](std::int64_t begin, std::int64_t count) {
    const accel::Arena::Scope chunk(arena);
    const ConstTensorView x = rows_of(pass.x, begin, count, width_);
    TensorView scores = pass.logits;
    if (!pass.logits_kept) {
      scores = arena.take(pass.x.dtype, Shape{count, vocabulary_});
      logits(x, scores, execution);
    }
    kernels.cross_entropy_backward({.seed = seed, .counted = pass.counted},
                                   pass.targets.slice(begin, count),
                                   scores,
                                   execution.stream);
    kernels.gemm({.a = scores, .b = table_->value, .c = rows_of(dx, begin, count, width_)},
                 execution.stream);
    if (table_->grad) {
      kernels.gemm({.a = scores,
                    .b = x,
                    .c = table_->grad,
                    .transpose_a = true,
                    .accumulate = table_->grad_accumulate || begin > 0},
                   execution.stream);
    }
  });
  if (table_->grad) {
    announce_gradient(*table_, execution);
  }
}

}  // namespace zero::nn
