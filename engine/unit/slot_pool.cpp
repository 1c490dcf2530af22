#include "engine/unit/slot_pool.h"

#include <algorithm>

namespace zero {

SlotPool::SlotPool(accel::Device& device,
                   RankContext& context,
                   const std::vector<SlotClass>& classes,
                   DType dtype,
                   Category category)
    : device_(device),
      context_(context),
      dtype_(dtype),
      category_(category),
      classes_(classes),
      slots_(classes.size()) {
  for (std::size_t index = 0; index < classes.size(); ++index) {
    for (int i = 0; i < classes[index].count; ++i) {
      add_slot(static_cast<int>(index));
    }
  }
}

void SlotPool::add_slot(int slot_class) {
  const std::int64_t elems = classes_.at(static_cast<std::size_t>(slot_class)).elems;
  auto slot = std::make_unique<Slot>();
  slot->buffer = device_.allocate(static_cast<std::size_t>(elems) * dtype_size(dtype_), category_);
  slot->elems = elems;
  slots_[static_cast<std::size_t>(slot_class)].push_back(std::move(slot));
}

Slot& SlotPool::acquire(int slot_class, int flat, int& evicted) {
  auto& slots = slots_.at(static_cast<std::size_t>(slot_class));
  if (!has_free(slot_class)) {
    if (!warned_) {
      ZERO_LOG(context_.log,
               kWarn,
               "unit",
               "the model holds more units at once than planned: one more {} slot of {} elements",
               category_name(category_),
               classes_[static_cast<std::size_t>(slot_class)].elems);
      warned_ = true;
    }
    add_slot(slot_class);
  }
  Slot* best = nullptr;
  for (const auto& slot : slots) {
    const auto rank = [](const Slot& s) { return std::pair(s.flat >= 0, s.age); };
    if (!slot->in_use && (best == nullptr || rank(*slot) < rank(*best))) {
      best = slot.get();
    }
  }
  evicted = best->flat;
  best->flat = flat;
  best->in_use = true;
  return *best;
}

bool SlotPool::has_free(int slot_class) const {
  const auto& slots = slots_.at(static_cast<std::size_t>(slot_class));
  return std::any_of(slots.begin(), slots.end(), [](const auto& slot) { return !slot->in_use; });
}

void SlotPool::release(Slot& slot, accel::Event free, bool drop) {
  slot.in_use = false;
  slot.free = std::move(free);
  slot.age = ++clock_;
  if (drop) {
    slot.flat = -1;
  }
}

}  // namespace zero
