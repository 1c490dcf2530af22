#include "engine/engine_run.h"
#include "engine/forked_model.h"
#include <support/catch.h>
#include <zero/engine/launch.h>

#include <fmt/format.h>

#include <cmath>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

using Values = std::map<std::string, std::vector<float>>;

/// Trains a ForkedModel on two ranks under SGD with rate 1 and gives what rank 0 then holds.
struct ForkedRun {
  int stage = 0;
  int accumulation = 1;
  PlanOptions plan{};
  /// Runs once on every rank.
  std::function<void(Engine&, World&)> train{};

  [[nodiscard]] Values parameters() const {
    const std::string config = write_temporary(
        "forked.json",
        fmt::format(R"({{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": {},
                         "optimizer": {{"type": "SGD", "params": {{"lr": 1.0}}}},
                         "gradient_clipping": 0, "zero_allow_untested_optimizer": true,
                         "zero_optimization": {{"stage": {},
                             "stage3_param_persistence_threshold": 10}}}})",
                    accumulation,
                    stage));
    Values values;
    (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      ForkedModel model;
      const auto engine =
          initialize({.world = world, .model = model, .config = config, .plan = plan});
      if (train) {
        train(*engine, world);
      }
      for (const auto& parameter : parameters_of(model)) {
        std::vector<float> whole = engine->full_fp32_parameter(parameter->info.name);
        if (world.group.rank() == 0) {
          values[parameter->info.name] = std::move(whole);
        }
      }
      return 0;
    });
    return values;
  }
};

void micro_step(Engine& engine, World& world, std::int64_t sample, std::int32_t head) {
  engine.backward(engine.forward(ForkedModel::batch(sample + 100 * world.group.rank(), 4, head)));
}

}  // namespace

TEST_CASE("accumulation: micro-batches that use different layers sum to the right gradients",
          "[engine][accumulation]") {
  // With rate 1 an update is minus the gradient: that of a window is the mean of its micro-steps'.
  const auto once = [](std::int64_t sample, std::int32_t head) {
    return ForkedRun{.train =
                         [=](Engine& engine, World& world) {
                           micro_step(engine, world, sample, head);
                           engine.step();
                         }}
        .parameters();
  };
  const Values start = ForkedRun{}.parameters();
  const Values first = once(0, 0);
  const Values second = once(7, 1);
  CHECK(first.at("heads.1.weight") == start.at("heads.1.weight"));
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool local : {false, true}) {
      const Values both = ForkedRun{
          .stage = stage,
          .accumulation = 2,
          .plan = {.local_accumulation = local},
          .train = [](Engine& engine, World& world) {
            micro_step(engine, world, 0, 0);
            engine.step();
            micro_step(engine, world, 7, 1);
            engine.step();
          }}.parameters();
      for (const auto& [name, values] : both) {
        INFO("stage " << stage << ", local " << local << ", " << name);
        double worst = 0.0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double expected =
              0.5 * (static_cast<double>(first.at(name)[i]) + second.at(name)[i]);
          worst = std::max(worst, std::abs(values[i] - expected));
        }
        CHECK(worst < 1e-6);
      }
    }
  }
}

TEST_CASE("accumulation: no_sync gives the sums of a counted window with one reduction",
          "[engine][accumulation]") {
  for (const int stage : {0, 1, 2, 3}) {
    // The caller's own window of three: the loss is divided by one, the rate of SGD makes up for
    // it.
    ForkedRun forked{.stage = stage, .plan = {.local_accumulation = true}};
    forked.train = [](Engine& engine, World& world) {
      for (int window = 0; window < 2; ++window) {
        {
          const NoSync scope = engine.no_sync();
          micro_step(engine, world, 0, 0);
          micro_step(engine, world, 3, 1);
        }
        engine.synchronize();
        const auto before = engine.traffic().bytes_out;
        micro_step(engine, world, 5, 1);
        engine.synchronize();
        ZERO_CHECK(engine.traffic().bytes_out > before, "the boundary reduced nothing");
        engine.step();
        ZERO_CHECK(engine.was_step_applied(), "the window was not applied");
      }
    };
    ForkedRun by_hand = forked;
    by_hand.accumulation = 3;
    by_hand.train = [](Engine& engine, World& world) {
      engine.set_lr(3.0);
      for (int window = 0; window < 2; ++window) {
        int micro = 0;
        for (const auto& [sample, head] : {std::pair{0, 0}, {3, 1}, {5, 1}}) {
          engine.set_gradient_accumulation_boundary(++micro == 3);
          micro_step(engine, world, sample, head);
          engine.step();
        }
      }
    };
    const Values a = forked.parameters();
    const Values b = by_hand.parameters();
    for (const auto& [name, values] : a) {
      INFO("stage " << stage << ", " << name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        CHECK(values[i] == Approx(b.at(name)[i]).margin(1e-6));
      }
    }
  }
}

TEST_CASE("accumulation: local sums give the bits of stage 1 and cost what the plan says",
          "[engine][accumulation]") {
  for (const std::string& precision : {std::string(), std::string("bf16")}) {
    RunSpec spec;
    spec.precision = precision;
    spec.accumulation = 3;
    spec.stage = 1;
    const RunResult expected = run(spec);
    for (const int stage : {2, 3}) {
      spec.stage = stage;
      spec.plan.local_accumulation = false;
      const RunResult sliced = run(spec);
      spec.plan.local_accumulation = true;
      const RunResult local = run(spec);
      INFO("stage " << stage << " " << precision);
      CHECK(same_bits(local, expected));
      const auto gradients = static_cast<std::size_t>(Category::kGradients);
      CHECK(local.plan.bytes[gradients] ==
            sliced.plan.bytes[gradients] + sliced.plan.local_accumulation_bytes());
      CHECK(local.memory.front().device.peak_bytes[gradients] == local.plan.bytes[gradients]);
      CHECK(local.traffic.front().bytes_out < sliced.traffic.front().bytes_out);
    }
  }
}

TEST_CASE("accumulation: no_sync is refused with its price, nested, and around a step",
          "[engine][accumulation][errors]") {
  const auto attempt = [](int stage, const std::function<void(Engine&, World&)>& body) {
    (void)ForkedRun{.stage = stage, .train = body}.parameters();
  };
  attempt(2, [](Engine& engine, World& /*world*/) {
    try {
      (void)engine.no_sync();
      ZERO_CHECK(false, "stage 2 accepted no_sync");
    } catch (const InputError& error) {
      const std::string bytes = std::to_string(engine.plan().local_accumulation_bytes());
      ZERO_CHECK(std::string(error.what()).find(bytes) != std::string::npos, "no price");
    }
  });
  attempt(1, [](Engine& engine, World& world) {
    const auto refuses = [](const auto& call) {
      try {
        call();
      } catch (const InputError&) {
        return true;
      }
      return false;
    };
    {
      const NoSync scope = engine.no_sync();
      micro_step(engine, world, 0, 0);
      ZERO_CHECK(!engine.is_gradient_accumulation_boundary(), "a boundary inside no_sync");
      ZERO_CHECK(refuses([&] { engine.step(); }), "step inside no_sync");
      ZERO_CHECK(refuses([&] { (void)engine.no_sync(); }), "no_sync inside no_sync");
    }
    micro_step(engine, world, 0, 1);
    engine.step();
    ZERO_CHECK(engine.global_steps() == 1, "the step after no_sync was lost");
  });
}

TEST_CASE("buffers: every rank starts with the values of rank 0 and keeps its own",
          "[engine][buffers]") {
  const std::string config =
      write_temporary("buffers.json",
                      R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  const auto read = [](World& world, Module& model) {
    accel::Buffer host = world.device.allocate(sizeof(float), Category::kOther, MemorySpace::kHost);
    const auto stream = world.device.make_stream("test");
    world.device.copy(buffers_of(model).front()->value, host.view(DType::kF32, Shape{1}), *stream);
    stream->synchronize();
    return host.view(DType::kF32, Shape{1}).as<float>()[0];
  };
  (void)launch({.ranks = 3, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
    ForkedModel model(static_cast<float>(5 + world.group.rank()));
    {
      const auto engine = initialize({.world = world, .model = model, .config = config});
      ZERO_CHECK(read(world, model) == 5.0F, "not the value of rank 0");
      const Loss loss = engine->forward(ForkedModel::batch(40 * world.group.rank(), 4, 0));
      engine->synchronize();
      ZERO_CHECK(read(world, model) == loss.value(), "the buffer has not what the model wrote");
      (void)engine->evaluate(ForkedModel::batch(0, 2, 1));
      engine->synchronize();
      ZERO_CHECK(read(world, model) == loss.value(), "a dry run or evaluation wrote a buffer");
      engine->backward(loss);
      engine->step();
    }
    ZERO_CHECK(!buffers_of(model).front()->value, "a buffer is bound to memory that is gone");
    return 0;
  });
}

namespace {

/// A classifier with a hidden layer that is applied twice, or two layers that start equal.
class TwiceModel final : public Trainable {
 public:
  static constexpr std::int64_t kWidth = 6;

  explicit TwiceModel(bool shared) : Trainable("") {
    for (nn::Linear* layer : {&first_, &second_}) {
      layer->parameters()[0]->info.init = Init{[](const std::string& /*name*/,
                                                  std::uint64_t /*seed*/,
                                                  std::int64_t begin,
                                                  std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = std::sin(static_cast<float>(begin + static_cast<std::int64_t>(i)));
        }
      }};
    }
    add_child(first_);
    if (!shared) {
      add_child(second_);
    }
    layers_ = {&first_, shared ? &first_ : &second_};
  }

  void forward(const Batch& batch, TensorView loss, Execution& execution) override {
    accel::Arena& arena = execution.arena;
    const accel::Kernels& kernels = execution.device.kernels();
    mark_ = arena.mark();
    targets_ = arena.take(DType::kI32, batch.targets.shape);
    execution.device.upload(batch.targets.storage, targets_, execution.stream);
    activations_ = {arena.take(DType::kF32, batch.inputs.shape)};
    execution.device.upload(batch.inputs.storage, activations_[0], execution.stream);
    for (nn::Linear* layer : layers_) {
      nn::during_forward(*layer, execution, [&] {
        activations_.push_back(arena.take(DType::kF32, batch.inputs.shape));
        layer->forward(*(activations_.end() - 2), activations_.back(), false, execution);
      });
    }
    const TensorView losses = arena.take(DType::kF32, batch.targets.shape);
    kernels.cross_entropy_forward(activations_.back(), targets_, losses, execution.stream);
    kernels.mean(losses, static_cast<double>(losses.elems()), loss, execution.stream);
    if (execution.phase == Phase::kEval) {
      arena.release(mark_);
    }
  }

  void backward(float seed, Execution& execution) override {
    execution.device.kernels().cross_entropy_backward({.seed = seed, .counted = targets_.elems()},
                                                      targets_,
                                                      activations_.back(),
                                                      execution.stream);
    for (std::size_t layer = 2; layer-- > 0;) {
      nn::during_backward(*layers_.at(layer), execution, [&] {
        const TensorView x = activations_.at(layer);
        const TensorView dy = activations_.at(layer + 1);
        layers_.at(layer)->backward_parameters(x, dy, execution);
        layers_.at(layer)->backward_input(dy, x, execution);  // x is not needed any more
      });
    }
    execution.arena.release(mark_);
  }

  [[nodiscard]] Batch example_batch(std::int64_t micro_batch) const override {
    return ForkedModel::batch(0, micro_batch, 0);
  }
  void check_batch(const Batch& /*batch*/) const override {}

 private:
  nn::Linear first_{"first", {.in = kWidth, .out = kWidth}};
  nn::Linear second_{"second", {.in = kWidth, .out = kWidth}};
  std::array<nn::Linear*, 2> layers_{};
  std::size_t mark_ = 0;
  TensorView targets_{};
  std::vector<TensorView> activations_;
};

}  // namespace

TEST_CASE("gradients: a layer that is applied twice gets the sum of both, in every stage",
          "[engine][accumulation]") {
  static_assert(TwiceModel::kWidth == ForkedModel::kFeatures);
  const auto gradients = [](bool shared, int stage) {
    const std::string config = write_temporary(
        "twice.json",
        fmt::format(R"({{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
                         "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
                         "zero_optimization": {{"stage": {}}}}})",
                    stage));
    Values values;
    (void)launch({.ranks = 2, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      TwiceModel model(shared);
      const auto engine = initialize({.world = world, .model = model, .config = config});
      for (const std::int64_t sample : {0, 50}) {
        micro_step(*engine, world, sample, 1);
        if (sample == 0) {
          engine->step();
        }
      }
      for (const auto& parameter : parameters_of(model)) {
        std::vector<float> whole = engine->full_gradient(parameter->info.name);
        if (world.group.rank() == 0) {
          values[parameter->info.name] = std::move(whole);
        }
      }
      return 0;
    });
    return values;
  };
  const Values apart = gradients(false, 0);
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto& [name, sum] : gradients(true, stage)) {
      const std::string other = "second" + name.substr(name.find('.'));
      for (std::size_t i = 0; i < sum.size(); ++i) {
        INFO("stage " << stage << ", " << name << " " << i);
        CHECK(sum[i] == Approx(apart.at(name)[i] + apart.at(other)[i]).margin(1e-6));
      }
    }
  }
}
