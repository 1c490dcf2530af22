#pragma once

#include "engine/unit/shard_groups.h"
#include "engine/unit/slot_pool.h"
#include <zero/engine/engine.h>
#include <zero/engine/launch.h>

#include <memory>
#include <vector>

namespace zero {

/// The streams of one rank. Work on them is ordered by events only.
struct Streams {
  accel::Stream& compute;  ///< kernels of the model and of the update
  accel::Stream& comm;     ///< collectives, and the kernels that belong to them
};

/// The states of one flat buffer, each at the place and of the size that the plan says.
struct FlatState {
  accel::Buffer parameters;  ///< model dtype, whole or this rank's slice
  accel::Buffer gradients;   ///< accumulation dtype, whole or slice; empty if frozen
  accel::Buffer master;      ///< fp32, whole or slice; empty if the parameters are their own master
  std::vector<accel::Buffer> moments;  ///< fp32, as master
  accel::Buffer secondary;             ///< this rank's part of the node's copy (hpZ), model dtype
  bool secondary_true = false;         ///< it holds what a gather would bring
  Slot* slot = nullptr;  ///< holds the gathered copy; nullptr: not gathered, or never partitioned
  accel::Event ready;    ///< the whole copy may be read after this
  accel::Event updated;  ///< this rank's part was last written by this
};

/// Elements [begin, begin + count) of a flat buffer.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
/// The common part of two ranges; its count is 0 if there is none.
[[nodiscard]] Range intersect(Range a, Range b) noexcept;

/// Owns parameters, gradients, master and moments of one rank, and makes units whole for as long as
/// somebody uses them.
///
/// Life of a unit: Partitioned → gather → get (users ≥ 1) → release → idle → Partitioned. Thread:
/// the engine's.
class UnitStore {
 public:
  UnitStore(const StatePlan& plan,
            std::vector<std::shared_ptr<Parameter>> parameters,
            World& world,
            const ShardGroups& groups,
            Streams streams);

  /// Fills this rank's parameters (and master), range by range, from a bounded host buffer. Blocks.
  void initialize_values(const InitialValues& values);

  /// Starts to make the unit whole ahead of its use. Nothing to do if it is.
  void gather_ahead(int unit) { statistics_.ahead += gather(unit); }
  /// Waits (on the compute stream) until the unit is whole, binds its parameters' values and counts
  /// a user.
  void get(int unit);
  /// One user less; the last one frees the gathered copy, or with `keep` leaves it idle until its
  /// slot is needed.
  void release(int unit, bool keep);
  /// Whether gather() would take nothing away from a user, within max_live_elems.
  [[nodiscard]] bool can_gather(int unit) const;
  /// Elements that gathering the unit makes live: of its flats that are partitioned.
  [[nodiscard]] std::int64_t partitioned_elems(int unit) const;
  [[nodiscard]] const GatherStatistics& statistics() const noexcept { return statistics_; }
  /// Copies gathered ahead that nobody uses yet may be evicted again.
  void forget_prefetched();
  /// After a pass: nothing may be in use; copies that nobody asked for, or that may not be
  /// retained, are dropped.
  void end_pass();
  /// Before this rank's part is written on the compute stream: waits for collectives that may still
  /// read it.
  void before_update(int flat) { streams_.compute.wait(state(flat).ready); }
  /// After the update of this rank's part on the compute stream: the whole copies become true
  /// (all-gather) or stale.
  void publish(int flat);

  /// Parameters of a flat were written on the compute stream by hand, the same on all ranks.
  void wrote(int flat);

  /// The part of a flat that this rank updates: its slice, or everything where state is not
  /// partitioned.
  [[nodiscard]] Range owned(int flat) const;
  /// This rank's slice.
  [[nodiscard]] Range own_slice(int flat) const;
  /// Whether sums over the whole model count this rank's slices: those of the first copy count.
  [[nodiscard]] bool counts() const noexcept { return world_.group.rank() < plan_.shards; }
  /// Views of `range` (which this rank must hold) in the flat's states.
  [[nodiscard]] TensorView parameters(int flat, Range range) const;
  [[nodiscard]] TensorView gradients(int flat, Range range) const;
  [[nodiscard]] TensorView master(int flat, Range range) const;
  [[nodiscard]] TensorView moment(int flat, int index, Range range) const;
  [[nodiscard]] const StatePlan& plan() const noexcept { return plan_; }
  /// Of the unit that a flat belongs to.
  [[nodiscard]] const std::string& unit_name(int flat) const {
    return plan_.units[static_cast<std::size_t>(flat_plan(flat).unit)].name;
  }
  [[nodiscard]] Parameter& parameter(std::size_t index) const { return *parameters_.at(index); }

 private:
  /// Starts to make the unit whole, on the communication stream. Whether there was anything to do.
  bool gather(int unit);
  [[nodiscard]] const Flat& flat_plan(int flat) const {
    return plan_.flats.at(static_cast<std::size_t>(flat));
  }
  [[nodiscard]] FlatState& state(int flat) { return states_.at(static_cast<std::size_t>(flat)); }
  [[nodiscard]] const FlatState& state(int flat) const {
    return states_.at(static_cast<std::size_t>(flat));
  }
  [[nodiscard]] TensorView whole(int flat) const;
  /// Starts to fill the whole copies of `flats`: from the slices of all ranks, or where the node
  /// has a true copy from that.
  void gather_from_world(const std::vector<int>& flats);
  void gather_from_node(const std::vector<int>& flats);
  /// One all-gather; `flat` names it in the timeline.
  accel::Event gather_views(comm::Group& group,
                            const std::vector<comm::SlicedView>& views,
                            int flat);
  /// This rank's part of a flat in its node's copy.
  [[nodiscard]] Range node_slice(int flat) const;
  void allocate(int flat);
  void fill(int flat, const InitialValues& values);
  void bind(int flat, bool values);
  /// Elements in use or ahead of use, with the unit's own.
  [[nodiscard]] std::int64_t held_elems_with(int unit) const;
  /// Takes a slot for the flat, and idle copies away from others until the limit allows it.
  void take_slot(int flat);
  /// The flat's copy is gone.
  void lose_slot(int flat);
  void drop(int flat, accel::Event free);
  void evict_idle_until_fits(std::int64_t elems);

  const StatePlan& plan_;
  std::vector<std::shared_ptr<Parameter>> parameters_;
  World& world_;
  const ShardGroups& groups_;
  Streams streams_;
  std::vector<FlatState> states_;  // by flat
  std::vector<int> users_;         // by unit
  SlotPool slots_;
  GatherStatistics statistics_;
};

}  // namespace zero
