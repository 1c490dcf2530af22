#pragma once

#include <zero/core/param_info.h>
#include <zero/core/tensor_view.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zero::accel {
class Arena;
class Device;
class HostStash;
class Stream;
}  // namespace zero::accel

namespace zero {

class ModuleEvents;

/// A parameter as a module sees it. The engine binds `value` and `grad`; a module never keeps them
/// across events.
struct Parameter {
  ParamInfo info;
  /// The whole parameter on the device, in the model's dtype. Valid between before_* and after_* of
  /// a module using it.
  TensorView value;
  /// Where backward leaves the gradient; empty = frozen, skip it. Valid from before_backward until
  /// gradient_ready.
  TensorView grad;
  /// Add to `grad` (an earlier contribution is in it) instead of overwriting it.
  bool grad_accumulate = false;
};

/// fp32 values of a model that are no parameter: running statistics, counters. Each rank has a copy
/// of its own, which starts with rank 0's values; nothing reduces it.
struct ModuleBuffer {
  std::string name;
  Shape shape;
  Init init;
  /// On the device, bound by the engine for its whole life.
  TensorView value{};
};

/// Why a module runs.
enum class Phase : std::uint8_t {
  kTrain,      ///< forward that a backward will follow
  kEval,       ///< forward only
  kRecompute,  ///< forward again, inside backward: its uses do not count for gradients
};

/// What random numbers of a pass depend on besides their place in the model, so that they are the
/// same for any number of ranks, stage, accumulation and recomputation.
struct PassRandom {
  std::uint64_t seed = 0;
  std::int64_t first_sample = 0;  ///< global number of the micro-batch's row 0
};

/// What a module needs to run: where, on which stream, with which memory, and whom to tell.
struct Execution {
  accel::Device& device;
  accel::Stream& stream;  ///< compute stream; every kernel of the pass goes here
  accel::Arena& arena;    ///< saved activations and workspace, last-in first-out
  ModuleEvents& events;
  Phase phase = Phase::kTrain;
  PassRandom random{};
  accel::HostStash* stash = nullptr;  ///< where recomputed inputs wait; nullptr: on the device
};

/// A node of the model: owns parameters, knows its children. Neither copied nor moved (the engine
/// keeps addresses).
class Module {
 public:
  explicit Module(std::string name) : name_(std::move(name)) {}
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  Module(Module&&) = delete;
  Module& operator=(Module&&) = delete;
  virtual ~Module() = default;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Direct parameters in declaration order. A parameter used by several modules appears in each of
  /// them.
  [[nodiscard]] const std::vector<std::shared_ptr<Parameter>>& parameters() const noexcept {
    return parameters_;
  }
  /// Direct buffers in declaration order.
  [[nodiscard]] const std::vector<std::shared_ptr<ModuleBuffer>>& buffers() const noexcept {
    return buffers_;
  }
  /// Children in declaration order.
  [[nodiscard]] const std::vector<Module*>& children() const noexcept { return children_; }
  /// A block: this module with all below it is gathered and reduced as one unit. Its events stand
  /// for all below it, each of which it uses once a forward; events of modules inside it are not
  /// needed.
  [[nodiscard]] bool is_block() const noexcept { return is_block_; }
  /// Makes this module a block: before initialize(), and it must send events of its own. Modules
  /// that ds_config's leaf_module names are made so by initialize().
  void set_block() noexcept { is_block_ = true; }

 protected:
  /// Declares a parameter `name()` + "." + suffix (or just the suffix for an unnamed root).
  std::shared_ptr<Parameter> add_parameter(const std::string& suffix, Shape shape, Init init);
  /// Declares a buffer, named as a parameter would be.
  std::shared_ptr<ModuleBuffer> add_buffer(const std::string& suffix, Shape shape, Init init);
  /// Declares that this module also uses a parameter that another module declared (tied weights).
  void share_parameter(std::shared_ptr<Parameter> parameter) {
    parameters_.push_back(std::move(parameter));
  }
  void add_child(Module& child) { children_.push_back(&child); }

 private:
  [[nodiscard]] std::string full_name(const std::string& suffix) const;

  std::string name_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  std::vector<std::shared_ptr<ModuleBuffer>> buffers_;
  std::vector<Module*> children_;
  bool is_block_ = false;
};

/// Host values that several holders may keep: one input or target tensor of a batch.
struct HostTensor {
  DType dtype = DType::kI32;
  Shape shape{0};
  std::shared_ptr<const std::byte[]> storage;

  [[nodiscard]] ConstTensorView view() const noexcept { return {storage.get(), dtype, shape}; }
  template <class T>
  [[nodiscard]] static HostTensor copy_of(std::span<const T> values, Shape shape) {
    const ConstTensorView source = view_of(values);
    return copy_of_bytes(source.reshape(shape));
  }
  [[nodiscard]] static HostTensor copy_of_bytes(ConstTensorView host_view);
};

/// One micro-batch of this rank.
struct Batch {
  HostTensor inputs;   ///< int32 [B, T] tokens, or fp32 [B, features]
  HostTensor targets;  ///< int32 [B, T] or [B]; −1 = not counted in the loss
};

/// A model the engine can train: a module tree with an explicit forward and backward.
class Trainable : public Module {
 public:
  using Module::Module;
  /// Runs the model on a micro-batch and writes its mean loss (fp32, one element) to `loss` on the
  /// device.
  ///
  /// Sends before_forward / after_forward around each module that has parameters. In phase kTrain
  /// it leaves what backward needs in the arena. Returns before the work is done.
  virtual void forward(const Batch& batch, TensorView loss, Execution& execution) = 0;
  /// Backward of the latest forward not yet gone back. `seed` multiplies the loss: loss scale ÷
  /// accumulation steps.
  virtual void backward(float seed, Execution& execution) = 0;
  /// From the next forward on: keeps the inputs of `segments` runs of blocks (0: of every block)
  /// and computes the rest again in backward, sending events in phase kRecompute; nullopt: keeps
  /// everything. False: this model cannot, and keeps everything.
  [[nodiscard]] virtual bool recompute_activations(std::optional<std::int64_t> segments) {
    return !segments.has_value();
  }
  /// Logical shape of a batch that this model takes, for plans made before any data is there.
  [[nodiscard]] virtual Batch example_batch(std::int64_t micro_batch) const = 0;
  /// Shape constraints the user's data must meet; throws InputError.
  virtual void check_batch(const Batch& batch) const = 0;
};

/// All modules of a tree, parents before children, declaration order.
[[nodiscard]] std::vector<Module*> modules_of(Module& root);
/// Each distinct parameter once, in declaration order.
[[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters_of(Module& root);
/// All buffers in declaration order.
[[nodiscard]] std::vector<std::shared_ptr<ModuleBuffer>> buffers_of(Module& root);

}  // namespace zero
