#pragma once

#include <zero/accel/device.h>

#include <cstddef>

namespace zero::accel {

/// Last-in first-out memory for activations and workspace on one compute stream.
///
/// Work on the stream is ordered, so memory may be taken again as soon as the host gave it back:
/// the next kernel that writes it runs after the last one that reads it. Thread: the thread that
/// runs the model.
class Arena {
 public:
  /// Counts only: `take` returns views that must not be used, for planning with a null stream.
  Arena() = default;
  /// Takes from `buffer`, which must outlive it.
  explicit Arena(const Buffer& buffer) : base_(buffer.data()), capacity_(buffer.bytes()) {}

  /// `shape` elements of uninitialised memory, 64-byte aligned. Throws ResourceError if the arena
  /// is full.
  [[nodiscard]] TensorView take(DType dtype, const Shape& shape);
  /// Bytes in use; give it to release() to drop everything taken since.
  [[nodiscard]] std::size_t mark() const noexcept { return used_; }
  void release(std::size_t mark);
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }

  /// Gives back at the end of a block what was taken in it.
  class Scope {
   public:
    explicit Scope(Arena& arena) noexcept : arena_(arena), mark_(arena.mark()) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    Scope(Scope&&) = delete;
    Scope& operator=(Scope&&) = delete;
    ~Scope() { arena_.used_ = mark_; }

   private:
    Arena& arena_;
    std::size_t mark_;
  };

 private:
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace zero::accel
