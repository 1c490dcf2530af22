#pragma once

#include "engine/runtime/parts.h"

#include <functional>
#include <span>

namespace zero {

/// A kind of state: the fp32 values of parameters, their gradients, or one state of the optimizer.
struct StateRef {
  enum class Kind : std::uint8_t { kMaster, kGradient, kOptimizer };
  Kind kind = Kind::kMaster;
  int index = 0;  ///< of UpdateRule::states()

  /// Among the states that a checkpoint keeps: the fp32 parameters, then those of the optimizer.
  [[nodiscard]] std::size_t number() const noexcept {
    return kind == Kind::kMaster ? 0 : static_cast<std::size_t>(index) + 1;
  }
};

/// The states that a checkpoint keeps of a flat.
[[nodiscard]] std::vector<StateRef> states_of(const Flat& flat, int optimizer_states);

/// A part of a parameter that lies in some range of its flat.
struct FlatPart {
  const FlatParam* place = nullptr;
  Range range;  ///< in the flat
};
[[nodiscard]] std::vector<FlatPart> parts_in(const Flat& flat, Range range);

/// Moves state between where it lies and the host as fp32, through one bounded buffer on each side.
/// Made when nothing is in flight: waits for all streams. Throws nothing of its own. What a
/// background save has not read yet may be read, and is waited for before it is written.
class StateAccess {
 public:
  explicit StateAccess(EngineParts& parts) : StateAccess(parts, *parts.comm) {}
  /// Reads on a stream of its own.
  StateAccess(EngineParts& parts, accel::Stream& reads);

  using Take = std::function<void(Range range, std::span<const float> values)>;
  /// Calls `take` on rank 0 (or on all, with `everywhere`) for every part of `wanted`, in order of
  /// the flat. Collective: every rank takes part in moving it.
  void read(int flat, StateRef state, Range wanted, bool everywhere, const Take& take);
  /// The same for a range within this rank's own slice, without any other rank.
  void read_own(int flat, StateRef state, Range wanted, const Take& take);
  /// What this rank keeps of a state: of masters also what its 16-bit copies are made from.
  [[nodiscard]] Range kept(int flat, StateRef state) const;
  /// Writes the values of `range` where this rank holds them: of masters the 16-bit copy too, and
  /// gathered copies are dropped. Every rank calls it with the same values. Blocks.
  void write(int flat, StateRef state, Range range, std::span<const float> values);
  /// Gives all ranks the values of one.
  void broadcast(std::span<float> values, int root);

 private:
  /// The part of a flat that this rank keeps of a state, and whether other ranks keep others.
  [[nodiscard]] Range held(int flat, StateRef state) const;
  [[nodiscard]] bool is_cut(int flat, StateRef state) const;
  [[nodiscard]] TensorView view(int flat, StateRef state, Range range) const;
  /// Where that view lies.
  [[nodiscard]] MemorySpace space(int flat, StateRef state) const;
  [[nodiscard]] TensorView device(std::int64_t count) const;
  [[nodiscard]] TensorView host(std::int64_t count) const;
  /// Widens this rank's `range` into its device or host buffer, where the state's home is: which.
  MemorySpace read_home(int flat, StateRef state, Range range, accel::Stream& stream);
  /// Brings `range` from its owner to this rank's host buffer, if it is wanted here: whether it is.
  bool fetch(int flat, StateRef state, Range range, int owner, bool everywhere);
  /// Rounds values of `range` into a view of it, as far as `place` reaches.
  void store(Range range,
             std::span<const float> values,
             Range place,
             MemorySpace space,
             const std::function<TensorView(Range)>& view_of_range);

  EngineParts& parts_;
  accel::Stream& reads_;
  accel::Buffer device_;
  accel::Buffer host_;
};

}  // namespace zero
