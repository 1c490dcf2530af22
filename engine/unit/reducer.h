#pragma once

#include "engine/unit/unit_store.h"
#include <zero/core/module_events.h>

#include <vector>

namespace zero {

/// Collects gradients, sends them off in buckets as backward completes them, and keeps the sums
/// where the plan says.
///
/// A window is one accumulation window (A micro-steps up to a boundary). Buckets launch strictly in
/// plan order on every rank; a complete one waits for its predecessors, and what got no gradient
/// counts as zero. Thread: the engine's.
class Reducer {
 public:
  /// `groups`: used by nothing else, so that gathers may overtake reductions.
  Reducer(const StatePlan& plan,
          UnitStore& store,
          World& world,
          const ShardGroups& groups,
          Streams streams);
  /// Where the squares of the sums are added, slice by slice as they land: a row of limbs on the
  /// device for Kernels::sum_of_squares, zero at the start of a window.
  void sum_squares_into(TensorView row) { squares_ = row; }
  /// Adds the squares of a range that this rank holds, after all work that `stream` has done. They
  /// are in the row once publish_squares() has brought them there.
  void sum_squares(int flat, Range range, accel::Stream& stream);
  /// `stream` sees the row complete.
  void publish_squares(accel::Stream& stream);
  /// Whether the row holds the squares of the whole window; else nothing is in it.
  [[nodiscard]] bool squares_summed() const noexcept { return squares_summed_; }
  /// Whether the window's gradients are reduced, or on their way: from the backward that ends it
  /// until begin_window().
  [[nodiscard]] bool gradients_ready() const noexcept { return boundary_ && micro_steps_ > 0; }
  /// A gradient was changed by hand: what is in the row does not count.
  void forget_squares();

  /// Starts a micro-step. `uses[p]`: how often parameter p was used in the forward that goes back
  /// now. `boundary`: the window ends with this micro-step, so local sums are reduced as they
  /// complete.
  void begin_micro_step(const std::vector<int>& uses, bool boundary);
  /// Binds parameter.grad and grad_accumulate, so that its module can write there on the compute
  /// stream.
  void bind(std::size_t param);
  /// One contribution to the gradient of `param` has been enqueued. After the last one its unit may
  /// go.
  void gradient_ready(std::size_t param, TensorView gradient, GradientWrite write);
  /// Completes what is missing with zeros and launches the rest. Leaves nothing waiting for a
  /// predecessor.
  void finish_micro_step();
  /// Makes sure that everything in the window is reduced and that `stream` sees it.
  void finish_window(accel::Stream& stream);
  /// The sums have been consumed on the compute stream: the next contribution overwrites them.
  void begin_window();
  /// Whether the window's local sums have been reduced already: no further micro-step may be added
  /// to them.
  [[nodiscard]] bool reduced() const noexcept {
    return plan_.reduce_at_boundary && next_bucket_ > 0 && next_bucket_ == plan_.buckets.size();
  }

 private:
  struct FlatProgress {
    int incomplete = 0;         ///< parameters still to come in this micro-step
    bool complete = false;      ///< everything that will come has been enqueued
    int pieces_left = 0;        ///< buckets to launch until the slot is free
    Slot* slot = nullptr;       ///< what backward writes; nullptr where it accumulates in place
    Slot* transport = nullptr;  ///< what is reduced, where its dtype is another
    accel::Event reduced;       ///< the sum is at its home
  };
  struct ParamProgress {
    int flat = -1;
    const FlatParam* place = nullptr;
    int uses = 0;           ///< of this micro-step
    int contributions = 0;  ///< of this micro-step
    int window = 0;         ///< of the whole window
  };

  [[nodiscard]] const Flat& flat_plan(int flat) const {
    return plan_.flats[static_cast<std::size_t>(flat)];
  }
  [[nodiscard]] TensorView host_row() const;
  [[nodiscard]] FlatProgress& progress(int flat) { return flats_[static_cast<std::size_t>(flat)]; }
  /// Where this micro-step's contributions go: the slot, or the local sum itself.
  [[nodiscard]] TensorView target(int flat);
  void acquire_slot(int flat);
  void complete(int flat);
  void zero_missing(int flat);
  void fold_locally(int flat);
  void launch_ready();
  void launch(const Bucket& bucket);
  /// The gradient of a flat as the ranks exchange it: where it lies, or a copy in the communication
  /// dtype.
  [[nodiscard]] TensorView outgoing(int flat);
  /// The ranges of a flat that one bucket piece covers: of one slice, or of all.
  [[nodiscard]] std::vector<Range> ranges(const BucketPiece& piece, bool all_slices) const;
  void scale(const Bucket& bucket, double factor, bool all_slices);
  /// Brings the reduced pieces of a bucket to their home and frees the slots that are done.
  void land(const Bucket& bucket);
  /// Adds what was reduced to a sum that lives in host memory, tile by tile beside the next bucket.
  void land_on_host(ConstTensorView reduced, int flat, Range range, bool overwrite);

  const StatePlan& plan_;
  UnitStore& store_;
  World& world_;
  const ShardGroups& groups_;
  Streams streams_;
  SlotPool slots_;      // gradients as backward writes them
  SlotPool transport_;  // gradients as the ranks exchange them
  std::vector<FlatProgress> flats_;
  std::vector<ParamProgress> params_;
  struct Tile {
    accel::Buffer buffer;
    accel::Event added;  ///< the buffer may be filled again
  };
  std::vector<Tile> tiles_;  // through which gradients reach sums on the host
  std::size_t next_tile_ = 0;
  accel::Buffer host_squares_;                // the row, where the sums are on the host
  std::unique_ptr<accel::Stream> to_host_;    // nullptr: all sums are on the device
  std::unique_ptr<accel::Stream> host_sums_;  // additions on the host
  std::size_t next_bucket_ = 0;
  int micro_steps_ = 0;  ///< of this window
  bool reduce_now_ = false;
  bool boundary_ = false;  ///< this micro-step ends the window
  TensorView squares_;
  bool squares_summed_ = false;
};

}  // namespace zero
