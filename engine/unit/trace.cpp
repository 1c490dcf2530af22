#include "engine/unit/trace.h"

#include <algorithm>

namespace zero {
namespace {

/// Control paths remembered for each kind of pass.
constexpr std::ptrdiff_t kTraces = 16;

}  // namespace

void TraceBook::begin(Pass pass) {
  pass_ = pass;
  visited_.clear();
  current_ = find_visited(/*whole=*/false);  // the latest of its kind
  if (const Trace* before = previous(); before != nullptr) {
    const auto followed = before->successors.find(pass);
    current_ = followed == before->successors.end() ? current_ : followed->second;
  }
}

bool TraceBook::visit(int unit) {
  const std::size_t at = visited_.size();
  visited_.push_back(unit);
  if (current_ != nullptr && at < current_->units.size() && current_->units[at] == unit) {
    return true;
  }
  current_ = find_visited(/*whole=*/false);
  return false;
}

std::span<const int> TraceBook::ahead() const {
  if (current_ == nullptr || visited_.size() >= current_->units.size()) {
    return {};
  }
  return std::span(current_->units).subspan(visited_.size());
}

std::optional<std::int64_t> TraceBook::distance(
    int unit, const std::function<std::int64_t(int)>& size) const {
  std::int64_t sum = 0;
  const Trace* next = current_ == nullptr ? nullptr : current_->next;
  for (const std::span<const int> units :
       {ahead(), next == nullptr ? std::span<const int>() : std::span(next->units)}) {
    for (const int other : units) {
      if (other == unit) {
        return sum;
      }
      sum += size(other);
    }
  }
  return std::nullopt;
}

TraceBook::Trace* TraceBook::find_visited(bool whole) {
  Trace* best = nullptr;
  for (const auto& trace : traces_) {
    const bool fits =
        trace->pass == pass_ &&
        (whole ? trace->units.size() == visited_.size() : trace->units.size() >= visited_.size()) &&
        std::equal(visited_.begin(), visited_.end(), trace->units.begin());
    if (fits && (best == nullptr || best->last_used < trace->last_used)) {
      best = trace.get();
    }
  }
  return best;
}

TraceBook::Trace& TraceBook::record() {
  forget_oldest(pass_);
  traces_.push_back(std::make_unique<Trace>(Trace{.pass = pass_, .units = visited_}));
  return *traces_.back();
}

void TraceBook::forget_oldest(Pass pass) {
  const auto of_kind = [&](const auto& trace) { return trace->pass == pass; };
  if (std::count_if(traces_.begin(), traces_.end(), of_kind) < kTraces) {
    return;
  }
  const auto oldest =
      std::min_element(traces_.begin(), traces_.end(), [&](const auto& a, const auto& b) {
        return std::pair(!of_kind(a), a->last_used) < std::pair(!of_kind(b), b->last_used);
      });
  const Trace* gone = oldest->get();
  std::replace(previous_.begin(), previous_.end(), oldest->get(), static_cast<Trace*>(nullptr));
  for (const auto& trace : traces_) {
    std::erase_if(trace->successors, [&](const auto& entry) { return entry.second == gone; });
    trace->next = trace->next == gone ? nullptr : trace->next;
  }
  traces_.erase(oldest);
}

void TraceBook::end() {
  current_ = nullptr;
  Trace* mine = find_visited(/*whole=*/true);
  if (mine == nullptr) {
    mine = &record();
  }
  mine->last_used = ++clock_;
  if (previous() != nullptr) {
    previous()->successors[pass_] = mine;
    previous()->next = mine;
  }
  previous() = mine;
}

}  // namespace zero
