#pragma once

#include <zero/accel/device.h>
#include <zero/engine/plan.h>

#include <memory>
#include <vector>

namespace zero {

/// One buffer of a slot class. Its holder may write once the stream it uses has waited for `free`.
struct Slot {
  accel::Buffer buffer;
  std::int64_t elems = 0;
  int flat = -1;         ///< the flat whose data it holds; −1: none
  bool in_use = false;   ///< may not be taken
  accel::Event free;     ///< the last reader or writer of the data that was in it
  std::int64_t age = 0;  ///< when it became idle: the oldest is taken first
};

/// The buffers that gathered units and gradients on their way pass through: numbers and sizes come
/// from the plan, all are allocated at once. Thread: the engine's.
class SlotPool {
 public:
  SlotPool(accel::Device& device,
           RankContext& context,
           const std::vector<SlotClass>& classes,
           DType dtype,
           Category category);

  /// A slot of the class that nobody uses, for `flat`: an empty one, else the one that has been
  /// idle longest (`evicted` says whose data is lost). Beyond the plan, when a model holds more
  /// units at once than it declares, a further buffer is made and kept; it is logged once.
  Slot& acquire(int slot_class, int flat, int& evicted);
  /// A slot that could be acquired without waiting for its user, or nullptr.
  [[nodiscard]] bool has_free(int slot_class) const;
  /// Nobody uses the slot any more; its data stays for `flat` until it is taken, unless `drop`.
  void release(Slot& slot, accel::Event free, bool drop);
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }

 private:
  void add_slot(int slot_class);

  accel::Device& device_;
  RankContext& context_;
  DType dtype_;
  Category category_;
  std::vector<SlotClass> classes_;
  std::vector<std::vector<std::unique_ptr<Slot>>> slots_;  // by class
  std::int64_t clock_ = 0;
  bool warned_ = false;
};

}  // namespace zero
