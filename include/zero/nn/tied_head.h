#pragma once

#include <zero/accel/arena.h>
#include <zero/core/module.h>

#include <cstdint>
#include <memory>
#include <string>

namespace zero::nn {

/// The language-model head: logits = x · tableᵀ with the token embedding's table, and their mean
/// cross entropy.
///
/// Logits are made for `chunk_elems ÷ V` rows at a time. Where one chunk holds all rows it is kept
/// for backward, else backward makes each chunk again. Sends no events (see events.h).
class TiedHead : public Module {
 public:
  /// `table` is [V, C]; `chunk_elems`: elements of logits in memory at once (at least one row is).
  TiedHead(const std::string& name, std::shared_ptr<Parameter> table, std::int64_t chunk_elems);

  /// One pass over a micro-batch.
  struct Pass {
    ConstTensorView x;         ///< [M, C]
    ConstTensorView targets;   ///< int32 [M], −1: not counted
    std::int64_t counted = 1;  ///< rows that the mean is over
    TensorView logits{};       ///< [M, V] of a kept chunk, or empty
    bool logits_kept = false;
  };
  /// Takes memory for logits that backward will want, if they are to be kept.
  void take_saved(Pass& pass, accel::Arena& arena) const;
  /// loss[0] = mean over the counted rows, fp32.
  void forward(const Pass& pass, TensorView loss, Execution& execution) const;
  /// dx [M, C] and the table's gradient, times seed. The pass's logits are spent.
  void backward(const Pass& pass, float seed, TensorView dx, Execution& execution) const;

  /// out [M, V] = logits of x [M, C].
  void logits(ConstTensorView x, TensorView out, Execution& execution) const;

 private:
  /// Calls body(first row, rows) for each chunk of `rows` rows.
  template <class Body>
  void for_each_chunk(std::int64_t rows, Body&& body) const;
  [[nodiscard]] std::int64_t chunk_rows() const noexcept;

  std::shared_ptr<Parameter> table_;
  std::int64_t vocabulary_;
  std::int64_t width_;
  std::int64_t chunk_elems_;
};

}  // namespace zero::nn
