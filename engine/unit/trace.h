#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace zero {

/// A pass over the model; traces of different kinds are kept apart.
enum class Pass : std::uint8_t { kForward, kBackward, kEvaluation };

/// Remembers in which order passes use units and predicts what a running pass will use next.
///
/// Every control path (another batch shape, a skipped layer, evaluation) has a trace of its own. A
/// pass starts on the trace that followed the previous one last time (training and evaluation by
/// themselves); where it departs, it goes on
/// with a known trace that began alike, else nothing is predicted. Thread: the engine's.
class TraceBook {
 public:
  void begin(Pass pass);
  /// The pass uses `unit` now. False if that was not the prediction.
  bool visit(int unit);
  /// Units that the pass is expected to use next, in order.
  [[nodiscard]] std::span<const int> ahead() const;
  /// Sum of size(unit) over the units to be used before `unit` is, in this pass or in the one
  /// expected after it; nullopt if no use is expected.
  [[nodiscard]] std::optional<std::int64_t> distance(
      int unit, const std::function<std::int64_t(int)>& size) const;
  void end();
  /// Control paths known so far.
  [[nodiscard]] std::size_t size() const noexcept { return traces_.size(); }

 private:
  struct Trace {
    Pass pass{};
    std::vector<int> units{};
    std::map<Pass, const Trace*> successors{};  ///< by kind of the pass that followed
    const Trace* next = nullptr;                ///< the pass that followed
    std::int64_t last_used = 0;
  };

  [[nodiscard]] Trace*& previous() { return previous_[pass_ == Pass::kEvaluation ? 1 : 0]; }
  [[nodiscard]] Trace* find_visited(bool whole);
  Trace& record();
  void forget_oldest(Pass pass);

  std::vector<std::unique_ptr<Trace>> traces_;
  const Trace* current_ = nullptr;    // nullptr: nothing is predicted
  std::array<Trace*, 2> previous_{};  // of training, of evaluation
  Pass pass_ = Pass::kForward;
  std::vector<int> visited_;  // the pass so far
  std::int64_t clock_ = 0;
};

}  // namespace zero
