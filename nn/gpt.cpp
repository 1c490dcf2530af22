#include <zero/accel/device.h>
#include <zero/accel/host_stash.h>
#include <zero/nn/events.h>
#include <zero/nn/gpt.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace zero::nn {
namespace {

constexpr double kInitStd = 0.02;  // initializer_range of GPT-2

std::int64_t counted_rows(const HostTensor& targets) {
  const auto values = targets.view().as<std::int32_t>();
  return std::max<std::int64_t>(
      1, std::count_if(values.begin(), values.end(), [](std::int32_t t) { return t >= 0; }));
}

}  // namespace

Gpt::Gpt(const GptConfig& config) : Gpt(config, Options{}) {}

Gpt::Gpt(const GptConfig& config, const Options& options)
    : Trainable(""),
      config_(config),
      embedding_("embedding",
                 {.vocabulary = config.vocabulary,
                  .width = config.hidden,
                  .positions = config.positions,
                  .init_std = kInitStd}),
      embedded_("embedding.drop", config.embedding_dropout),
      ln_f_("ln_f", config.hidden, config.layer_norm_eps),
      head_("lm_head", embedding_.table(), options.logit_chunk_elems) {
  add_child(embedding_);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.push_back(std::make_unique<Block>(
        fmt::format("h.{}", layer),
        Block::Options{
            .width = config.hidden,
            .heads = config.heads,
            .inner = config.inner,
            .layer_norm_eps = config.layer_norm_eps,
            .init_std = kInitStd,
            .output_init_std = kInitStd / std::sqrt(2.0 * static_cast<double>(config.layers)),
            .attention_dropout = config.attention_dropout,
            .residual_dropout = config.residual_dropout}));
    add_child(*blocks_.back());
  }
  add_child(ln_f_);
  add_child(head_);
}

TensorView Gpt::upload(const HostTensor& values, Execution& execution) const {
  const TensorView view = execution.arena.take(values.dtype, values.shape);
  execution.device.upload(values.storage, view, execution.stream);
  return view;
}

bool Gpt::recompute_activations(std::optional<std::int64_t> segments) {
  recomputed_segments_ = segments;
  return true;
}

std::vector<Gpt::Segment> Gpt::make_segments() const {
  const std::size_t wanted =
      recomputed_segments_.has_value() ? static_cast<std::size_t>(*recomputed_segments_) : 1;
  const std::size_t count =
      wanted == 0 ? blocks_.size() : std::clamp<std::size_t>(wanted, 1, blocks_.size());
  std::vector<Segment> segments;
  for (std::size_t index = 0; index < count; ++index) {
    segments.push_back(
        {.first = index * blocks_.size() / count, .last = (index + 1) * blocks_.size() / count});
  }
  return segments;
}

void Gpt::run_and_forget(const Segment& segment,
                         TensorView output,
                         const TokenGrid& grid,
                         Execution& execution) {
  accel::Arena& arena = execution.arena;
  const accel::Arena::Scope workspace(arena);
  const TensorView between = arena.take(output.dtype, output.shape);
  TensorView x = segment.input;
  for (std::size_t layer = segment.first; layer < segment.last; ++layer) {
    // Alternates so that the last block writes the output.
    const TensorView y = (segment.last - layer) % 2 == 1 ? output : between;
    const accel::Arena::Scope saved(arena);
    during_forward(
        *blocks_[layer], execution, [&] { (void)blocks_[layer]->forward(x, y, grid, execution); });
    x = y;
  }
}

TensorView Gpt::run_recomputed(Pending& pending, TensorView x, Execution& execution) {
  accel::HostStash* stash = execution.stash;
  TensorView spare = stash != nullptr ? execution.arena.take(x.dtype, x.shape) : TensorView{};
  accel::Event spare_is_free;
  for (Segment& segment : pending.segments) {
    segment.input = x;
    if (stash == nullptr) {
      spare = execution.arena.take(x.dtype, x.shape);
    }
    accel::Event copied;
    if (stash != nullptr && &segment != &pending.segments.back()) {
      copied = stash->push(x, execution.stream);
    }
    execution.stream.wait(spare_is_free);  // write-after-read: its copy to the host
    run_and_forget(segment, spare, pending.grid, execution);
    std::swap(x, spare);
    spare_is_free = copied;
  }
  return x;
}

TensorView Gpt::run_blocks(Pending& pending, Execution& execution) {
  const TokenGrid& grid = pending.grid;
  TensorView x;
  during_forward(embedding_, execution, [&] {
    x = execution.arena.take(embedding_.table()->value.dtype,
                             Shape{grid.batch, grid.tokens, config_.hidden});
    embedding_.forward(pending.tokens, x, execution);
  });
  embedded_.apply(x, execution);
  if (execution.phase == Phase::kEval) {
    const TensorView output = execution.arena.take(x.dtype, x.shape);
    run_and_forget({.first = 0, .last = blocks_.size(), .input = x}, output, grid, execution);
    return output;
  }
  pending.segments = make_segments();
  if (recomputed_segments_.has_value()) {
    return run_recomputed(pending, x, execution);
  }
  for (Segment& segment : pending.segments) {
    segment.input = x;
    for (std::size_t layer = segment.first; layer < segment.last; ++layer) {
      x = run_and_save(layer, x, segment, grid, execution);
    }
  }
  return x;
}

TensorView Gpt::run_and_save(std::size_t layer,
                             TensorView x,
                             Segment& segment,
                             const TokenGrid& grid,
                             Execution& execution) {
  const TensorView y = execution.arena.take(x.dtype, x.shape);
  during_forward(*blocks_[layer], execution, [&] {
    segment.saved.push_back(blocks_[layer]->forward(x, y, grid, execution));
  });
  return y;
}

void Gpt::forward(const Batch& batch, TensorView loss, Execution& execution) {
  accel::Arena& arena = execution.arena;
  check_tokens(batch.inputs, "inputs");
  ZERO_CHECK(batch.targets.shape == batch.inputs.shape, "targets of another shape than inputs");
  Pending pending{.mark = arena.mark(),
                  .grid = {batch.inputs.shape[0], batch.inputs.shape[1]},
                  .random = execution.random};
  const std::int64_t rows = pending.grid.rows();
  pending.tokens = upload(batch.inputs, execution);
  pending.head.targets = upload(batch.targets, execution).reshape(Shape{rows});
  pending.head.counted = counted_rows(batch.targets);
  pending.x = run_blocks(pending, execution);

  pending.ln_f = RowStatistics::take(rows, arena);
  pending.hidden = arena.take(pending.x.dtype, pending.x.shape);
  pending.hidden_mark = arena.mark();
  during_forward(
      ln_f_, execution, [&] { ln_f_.forward(pending.x, pending.hidden, pending.ln_f, execution); });
  pending.head.x = pending.hidden.reshape(Shape{rows, config_.hidden});
  if (execution.phase != Phase::kEval) {
    head_.take_saved(pending.head, arena);
  }
  during_forward(head_, execution, [&] { head_.forward(pending.head, loss, execution); });
  if (execution.phase == Phase::kEval) {
    arena.release(pending.mark);
  } else {
    pending_.push_back(std::move(pending));
  }
}

void Gpt::back_through(Segment& segment,
                       TensorView gradient,
                       const TokenGrid& grid,
                       Execution& execution) {
  const accel::Arena::Scope recomputed(execution.arena);
  Execution again = execution;
  again.phase = Phase::kRecompute;
  TensorView x = segment.input;
  if (segment.saved.empty()) {
    for (std::size_t layer = segment.first; layer + 1 < segment.last; ++layer) {
      x = run_and_save(layer, x, segment, grid, again);
    }
  }
  for (std::size_t layer = segment.last; layer-- > segment.first;) {
    Block& block = *blocks_[layer];
    during_backward(block, execution, [&] {
      // The last block is recomputed where it goes back: it is gathered once for both.
      if (segment.saved.size() < segment.last - segment.first && layer + 1 == segment.last) {
        during_forward(
            block, again, [&] { segment.saved.push_back(block.recompute(x, grid, again)); });
      }
      block.backward(segment.saved[layer - segment.first], gradient, grid, execution);
    });
  }
}

void Gpt::backward(float seed, Execution& caller) {
  if (pending_.empty()) {
    throw InputError("backward without a forward in training mode", "Gpt::backward");
  }
  Pending pending = std::move(pending_.back());
  pending_.pop_back();
  Execution execution = caller;
  execution.random = pending.random;  // drops what the forward dropped
  accel::Arena& arena = execution.arena;
  // Once the head has gone back, nobody reads `hidden` any more: its memory becomes the residual
  // gradient.
  const TensorView gradient = pending.hidden;
  {
    const accel::Arena::Scope workspace(arena);
    const TensorView dhidden = arena.take(gradient.dtype, gradient.shape);
    during_backward(head_, execution, [&] {
      head_.backward(pending.head, seed, dhidden.reshape(pending.head.x.shape), execution);
    });
    during_backward(ln_f_, execution, [&] {
      ln_f_.backward(
          dhidden, pending.x, pending.ln_f, gradient, /*accumulate_dx=*/false, execution);
    });
  }
  arena.release(pending.hidden_mark);
  const bool stashed = recomputed_segments_.has_value() && execution.stash != nullptr;
  TensorView spare = pending.x;  // read by nobody from here on
  for (std::size_t index = pending.segments.size(); index-- > 0;) {
    accel::Event below_is_back;
    if (stashed && index > 0) {
      pending.segments[index - 1].input = spare;
      below_is_back = execution.stash->pop(spare, execution.stream);
      spare = pending.segments[index].input;
    }
    back_through(pending.segments[index], gradient, pending.grid, execution);
    execution.stream.wait(below_is_back);  // read-after-write: the input of the segment below
  }
  embedded_.apply(gradient, execution);
  during_backward(
      embedding_, execution, [&] { embedding_.backward(pending.tokens, gradient, execution); });
  arena.release(pending.mark);
}

TensorView Gpt::logits(const HostTensor& tokens, Execution& execution) {
  accel::Arena& arena = execution.arena;
  check_tokens(tokens, "tokens");
  ZERO_CHECK(execution.phase == Phase::kEval, "logits need phase kEval");
  Pending pending{.grid = {tokens.shape[0], tokens.shape[1]}};
  const TokenGrid& grid = pending.grid;
  // The result comes first on the arena; its dtype is known once the head's table is bound, so
  // room for the widest dtype is taken.
  const TensorView room = arena.take(DType::kF32, Shape{grid.batch, config_.vocabulary});
  const accel::Arena::Scope workspace(arena);
  pending.tokens = upload(tokens, execution);
  const TensorView x = run_blocks(pending, execution);

  const std::int64_t width = config_.hidden;
  const TensorView last = arena.take(x.dtype, Shape{grid.batch, width});
  for (std::int64_t row = 0; row < grid.batch; ++row) {
    execution.device.copy(x.slice(((row + 1) * grid.tokens - 1) * width, width),
                          last.slice(row * width, width),
                          execution.stream);
  }
  const TensorView hidden = arena.take(x.dtype, last.shape);
  const RowStatistics statistics = RowStatistics::take(grid.batch, arena);
  during_forward(ln_f_, execution, [&] { ln_f_.forward(last, hidden, statistics, execution); });
  const TensorView out{room.data, x.dtype, room.shape};
  during_forward(head_, execution, [&] { head_.logits(hidden, out, execution); });
  return out;
}

Batch Gpt::example_batch(std::int64_t micro_batch) const {
  const Shape shape{micro_batch, config_.positions};
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(shape.elems()), 0);
  const HostTensor tokens = HostTensor::copy_of(std::span<const std::int32_t>(zeros), shape);
  return {tokens, tokens};
}

void Gpt::check_tokens(const HostTensor& tokens, const char* what) const {
  if (tokens.dtype != DType::kI32 || tokens.shape.rank() != 2 || tokens.shape.elems() == 0) {
    throw InputError(
        fmt::format("{} are {} {}", what, dtype_name(tokens.dtype), tokens.shape.to_string()),
        "batch of a Gpt",
        "give int32 [B, T], neither of them 0");
  }
  if (tokens.shape[1] > config_.positions) {
    throw InputError(fmt::format("{} have {} tokens a row", what, tokens.shape[1]),
                     "batch of a Gpt",
                     fmt::format("the model has {} positions", config_.positions));
  }
}

void Gpt::check_batch(const Batch& batch) const {
  check_tokens(batch.inputs, "inputs");
  check_tokens(batch.targets, "targets");
  if (batch.inputs.shape != batch.targets.shape) {
    throw InputError(fmt::format("inputs are {}, targets {}",
                                 batch.inputs.shape.to_string(),
                                 batch.targets.shape.to_string()),
                     "batch of a Gpt",
                     "give both the same shape");
  }
  const auto check_range = [&](const HostTensor& tokens, const char* what, std::int32_t lowest) {
    const auto values = tokens.view().as<std::int32_t>();
    const auto bad = std::find_if(values.begin(), values.end(), [&](std::int32_t token) {
      return token < lowest || token >= config_.vocabulary;
    });
    if (bad != values.end()) {
      throw InputError(
          fmt::format("{} hold token {} at element {}", what, *bad, bad - values.begin()),
          "batch of a Gpt",
          fmt::format("the vocabulary has {} tokens", config_.vocabulary));
    }
  };
  check_range(batch.inputs, "inputs", 0);
  check_range(batch.targets, "targets", -1);
}

}  // namespace zero::nn
