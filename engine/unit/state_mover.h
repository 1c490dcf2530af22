#pragma once

#include "engine/unit/unit_store.h"

#include <vector>

namespace zero {

/// Where one tile of an update runs, and on what: all at the home of master and moments.
struct UpdateSite {
  const accel::Kernels& kernels;
  accel::Stream& stream;
  ConstTensorView scalars;  ///< accel::StepScalars
  ConstTensorView gradient;
  TensorView model_copy;  ///< 16 bit; empty where parameters are fp32
};

/// Brings what an update needs to the home of master and moments, and its result back to the home
/// of the parameters.
///
/// Tiles pass through a ring of buffers: one is brought, one updated and one taken back at the same
/// time, on three streams. Where everything has one home nothing moves. Owns ring and streams; its
/// destructor waits for them. Thread: the engine's.
class StateMover {
 public:
  StateMover(const StatePlan& plan, UnitStore& store, World& world, accel::Stream& compute);

  /// The compute stream has seen the reduced gradients and the last readers of the parameters.
  /// `scalars`: accel::StepScalars on the device.
  void begin_step(ConstTensorView scalars);
  /// What of `range` is moved and updated at a time: its first elements.
  [[nodiscard]] Range first_tile(Range range) const;
  /// Starts to bring a tile; the caller enqueues its update on the site's stream, then closes it.
  [[nodiscard]] UpdateSite open(int flat, Range tile);
  void close(int flat, Range tile);
  /// Makes the compute stream wait for all tiles closed so far.
  void finish_flat();

 private:
  struct Tile {
    accel::Buffer buffer;
    accel::Event taken_back;  ///< the buffer may be filled again
  };
  [[nodiscard]] Tile& current() { return ring_[closed_ % ring_.size()]; }
  /// Between homes; in the timeline under the unit's name.
  void copy(int flat, ConstTensorView src, TensorView dst, accel::Stream& stream);
  [[nodiscard]] TensorView gradient_part(Range tile);
  [[nodiscard]] TensorView parameter_part(Range tile);

  const StatePlan& plan_;
  UnitStore& store_;
  World& world_;
  accel::Stream& compute_;
  std::vector<Tile> ring_;
  std::size_t closed_ = 0;  ///< tiles so far
  accel::Buffer host_scalars_;
  ConstTensorView scalars_;
  std::unique_ptr<accel::Stream> bring_;
  std::unique_ptr<accel::Stream> update_;  ///< of updates in host memory
  std::unique_ptr<accel::Stream> take_back_;
};

}  // namespace zero
