// Every layer by itself: each element of each gradient against central differences, and the forward
// of the simple ones against its formula.

#include "tests/nn/whole_model.h"
#include <support/catch.h>
#include <zero/nn/block.h>
#include <zero/nn/embedding.h>
#include <zero/nn/events.h>
#include <zero/nn/tied_head.h>

#include <cmath>

namespace zero::nn {
namespace {

using support::noise;
using support::WholeModel;

constexpr std::int64_t kWidth = 8;
constexpr TokenGrid kGrid{.batch = 2, .tokens = 5};
const Shape kActivations{kGrid.batch, kGrid.tokens, kWidth};

/// One layer with input x and output y; `run` does a forward and, given dy, a backward right after.
struct Probe {
  Module& layer;
  Shape x_shape;
  Shape y_shape;
  using Run = std::function<void(
      ConstTensorView x, TensorView y, ConstTensorView dy, TensorView dx, Execution& execution)>;
  Run run;  ///< dy is empty where only the forward is wanted
};

class GradientCheck {
 public:
  explicit GradientCheck(const Probe& probe)
      : probe_(probe),
        model_(probe.layer),
        x_memory_(model_.allocate(DType::kF32, probe.x_shape)),
        dx_memory_(model_.allocate(DType::kF32, probe.x_shape)),
        y_memory_(model_.allocate(DType::kF32, probe.y_shape)),
        dy_memory_(model_.allocate(DType::kF32, probe.y_shape)),
        weights_(noise("weights of y", probe.y_shape.elems())) {
    model_.randomize(7, 0.4);
    model_.write(noise("x", probe.x_shape.elems()), x());
    model_.write(weights_, dy());
  }

  /// Compares everything with L = Σ weights · y.
  void run() {
    Execution execution = model_.execution(Phase::kTrain);
    const std::size_t mark = model_.arena.mark();
    model_.device->zero(y(), *model_.stream);
    probe_.run(x(), y(), dy(), dx_memory_.view(DType::kF32, probe_.x_shape), execution);
    model_.arena.release(mark);
    compare("x", model_.read(dx_memory_.view(DType::kF32, probe_.x_shape)), x());
    for (const ParamInfo& info : model_.params) {
      compare(info.name, model_.grad(info.name), model_.events.value(info.name));
    }
  }

 private:
  [[nodiscard]] TensorView x() { return x_memory_.view(DType::kF32, probe_.x_shape); }
  [[nodiscard]] TensorView y() { return y_memory_.view(DType::kF32, probe_.y_shape); }
  [[nodiscard]] TensorView dy() { return dy_memory_.view(DType::kF32, probe_.y_shape); }

  double objective() {
    Execution execution = model_.execution(Phase::kEval);
    const accel::Arena::Scope scope(model_.arena);
    model_.device->zero(y(), *model_.stream);
    probe_.run(x(), y(), {}, {}, execution);
    return support::dot(model_.read(y()), weights_);
  }

  void compare(const std::string& what, const std::vector<float>& gradient, TensorView values) {
    constexpr float kStep = 1e-2F;
    std::vector<float> moved = model_.read(values);
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const float original = moved[i];
      moved[i] = original + kStep;
      model_.write(moved, values);
      const double above = objective();
      moved[i] = original - kStep;
      model_.write(moved, values);
      const double below = objective();
      moved[i] = original;
      model_.write(moved, values);
      INFO(what << " element " << i);
      // Truncation h²/6 · f''' and fp32 rounding of y over 2h, both below 3e-3 for these sizes.
      CHECK(
          static_cast<double>(gradient[i]) ==
          Approx((above - below) / (2.0 * static_cast<double>(kStep))).margin(3e-3).epsilon(3e-3));
    }
  }

  const Probe& probe_;
  WholeModel model_;
  accel::Buffer x_memory_;
  accel::Buffer dx_memory_;
  accel::Buffer y_memory_;
  accel::Buffer dy_memory_;
  std::vector<float> weights_;
};

void check_gradients(const Probe& probe) {
  GradientCheck(probe).run();
}

TEST_CASE("linear: gradients agree with differences, with and without bias", "[nn][linear]") {
  const bool bias = GENERATE(true, false);
  Linear linear("linear", {.in = kWidth, .out = 3, .bias = bias});
  check_gradients({linear,
                   kActivations,
                   Shape{kGrid.batch, kGrid.tokens, 3},
                   [&](auto x, auto y, auto dy, auto dx, Execution& execution) {
                     during_forward(linear, execution, [&] {
                       linear.forward(x, y, /*accumulate=*/false, execution);
                     });
                     if (dy) {
                       during_backward(linear, execution, [&] {
                         linear.backward_parameters(x, dy, execution);
                         linear.backward_input(dy, dx, execution);
                       });
                     }
                   }});
}

TEST_CASE("linear: accumulating adds x W + b to what y holds", "[nn][linear]") {
  Linear linear("linear", {.in = 2, .out = 3});
  WholeModel model(linear);
  model.set_value("linear.weight", {1, 2, 3, 10, 20, 30});
  model.set_value("linear.bias", {100, 200, 300});
  const accel::Buffer memory = model.allocate(DType::kF32, Shape{5});
  const TensorView x = memory.view(DType::kF32, Shape{5}).slice(0, 2).reshape(Shape{1, 2});
  const TensorView y = memory.view(DType::kF32, Shape{5}).slice(2, 3).reshape(Shape{1, 3});
  model.write({1, 2, 7, 8, 9}, memory.view(DType::kF32, Shape{5}));
  Execution execution = model.execution(Phase::kEval);
  during_forward(linear, execution, [&] { linear.forward(x, y, /*accumulate=*/true, execution); });
  CHECK(model.read(y) == std::vector<float>{128, 250, 372});
}

TEST_CASE("layernorm: gradients agree with differences", "[nn][layernorm]") {
  LayerNorm norm("ln_x", kWidth, 1e-5F);
  check_gradients({norm,
                   kActivations,
                   kActivations,
                   [&](auto x, auto y, auto dy, auto dx, Execution& execution) {
                     const RowStatistics rows = RowStatistics::take(kGrid.rows(), execution.arena);
                     during_forward(norm, execution, [&] { norm.forward(x, y, rows, execution); });
                     if (dy) {
                       during_backward(norm, execution, [&] {
                         norm.backward(dy, x, rows, dx, /*accumulate_dx=*/false, execution);
                       });
                     }
                   }});
}

TEST_CASE("embedding: gradients agree with differences, repeated tokens included",
          "[nn][embedding]") {
  const std::int64_t positions = GENERATE(7, 0);
  Embedding embedding("embedding", {.vocabulary = 6, .width = kWidth, .positions = positions});
  const HostTensor tokens =
      support::int_tensor({0, 1, 5, 1, 1, 2, 0, 5, 5, 1}, Shape{kGrid.batch, kGrid.tokens});
  check_gradients(
      {embedding, Shape{0}, kActivations, [&](auto, auto y, auto dy, auto, Execution& execution) {
         const TensorView ids = execution.arena.take(DType::kI32, tokens.shape);
         execution.device.upload(tokens.storage, ids, execution.stream);
         during_forward(embedding, execution, [&] { embedding.forward(ids, y, execution); });
         if (dy) {
           during_backward(embedding, execution, [&] { embedding.backward(ids, dy, execution); });
         }
       }});
}

/// A layer that adds to y and recomputes its input: gradients of both halves of a block.
template <class Layer, class Forward, class Backward>
void check_residual_layer(Layer& layer, Forward forward, Backward backward) {
  check_gradients(
      {layer,
       kActivations,
       kActivations,
       [&](auto x, auto y, auto dy, auto dx, Execution& execution) {
         const auto saved = layer.take_saved(kGrid, DType::kF32, execution.arena);
         // These modules are no blocks, so each child is announced by itself.
         for (Module* child : layer.children()) {
           execution.events.before_forward(*child, execution.phase, execution.stream);
         }
         forward(x, y, saved, execution);
         for (std::size_t i = layer.children().size(); i-- > 0;) {
           execution.events.after_forward(*layer.children()[i], execution.phase, execution.stream);
         }
         if (!dy) {
           return;
         }
         for (Module* child : layer.children()) {
           execution.events.before_backward(*child, execution.stream);
         }
         backward([&](TensorView out) { execution.device.copy(x, out, execution.stream); },
                  dy,
                  dx,
                  saved,
                  execution);
         for (std::size_t i = layer.children().size(); i-- > 0;) {
           execution.events.after_backward(*layer.children()[i], execution.stream);
         }
       }});
}

TEST_CASE("attention: gradients agree with differences", "[nn][attention]") {
  CausalSelfAttention attention("attn", {.width = kWidth, .heads = 2});
  check_residual_layer(
      attention,
      [&](auto x, auto y, const auto& saved, Execution& execution) {
        attention.forward_onto(x, y, kGrid, saved, execution);
      },
      [&](const Recompute& input, auto dy, auto dx, const auto& saved, Execution& execution) {
        attention.backward(input, dy, dx, kGrid, saved, execution);
      });
}

TEST_CASE("mlp: gradients agree with differences", "[nn][mlp]") {
  Mlp mlp("mlp", {.width = kWidth, .inner = 12});
  check_residual_layer(
      mlp,
      [&](auto x, auto y, const auto& saved, Execution& execution) {
        mlp.forward_onto(x, y, saved, execution);
      },
      [&](const Recompute& input, auto dy, auto dx, const auto& saved, Execution& execution) {
        mlp.backward(input, dy, dx, saved, execution);
      });
}

TEST_CASE("block: gradients agree with differences under one pair of events", "[nn][block]") {
  Block block("h.0", {.width = kWidth, .heads = 2, .inner = 12});
  REQUIRE(block.is_block());
  check_gradients(
      {block,
       kActivations,
       kActivations,
       [&](auto x, auto y, auto dy, auto dx, Execution& execution) {
         Block::Saved saved;
         during_forward(block, execution, [&] { saved = block.forward(x, y, kGrid, execution); });
         if (dy) {
           execution.device.copy(dy, dx, execution.stream);
           during_backward(block, execution, [&] { block.backward(saved, dx, kGrid, execution); });
         }
       }});
}

TEST_CASE("tied head: loss and gradients agree with differences, kept and in chunks",
          "[nn][head]") {
  constexpr std::int64_t kVocabulary = 6;
  // Chunks of all 10 rows (kept), of 3 rows with a rest of 1, and of single rows.
  const std::int64_t chunk_elems = GENERATE(60, 20, 1);
  Embedding embedding("embedding", {.vocabulary = kVocabulary, .width = kWidth});
  TiedHead head("lm_head", embedding.table(), chunk_elems);
  const HostTensor targets =
      support::int_tensor({0, 1, 5, -1, 1, 2, 0, -1, 5, 1}, Shape{kGrid.rows()});
  check_gradients(
      {head,
       Shape{kGrid.rows(), kWidth},
       Shape{1},
       [&](auto x, auto y, auto dy, auto dx, Execution& execution) {
         TiedHead::Pass pass{
             .x = x, .targets = execution.arena.take(DType::kI32, targets.shape), .counted = 8};
         execution.device.upload(
             targets.storage,
             TensorView{const_cast<std::byte*>(pass.targets.data), DType::kI32, targets.shape},
             execution.stream);
         if (dy) {
           head.take_saved(pass, execution.arena);
           CHECK(pass.logits_kept == (chunk_elems == 60));
         }
         during_forward(head, execution, [&] { head.forward(pass, y, execution); });
         if (dy) {
           const float seed = noise("weights of y", 1).front();
           during_backward(head, execution, [&] { head.backward(pass, seed, dx, execution); });
         }
       }});
}

}  // namespace
}  // namespace zero::nn
