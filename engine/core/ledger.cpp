#include <zero/core/error.h>
#include <zero/core/ledger.h>

#include <algorithm>
#include <string>

namespace zero {

std::string_view category_name(Category category) noexcept {
  static constexpr std::array<std::string_view, kCategories> kNames = {"parameters",
                                                                       "gradients",
                                                                       "master",
                                                                       "moments",
                                                                       "gathered",
                                                                       "buckets",
                                                                       "activations",
                                                                       "staging",
                                                                       "pinned",
                                                                       "other"};
  return kNames.at(static_cast<std::size_t>(category));
}

void Ledger::set_budget(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  budget_bytes_ = bytes;
}

void Ledger::add(MemorySpace space, Category category, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::int64_t total = use_[0].total_bytes + use_[1].total_bytes + bytes;
  if (budget_bytes_ > 0 && total > budget_bytes_) {
    throw ResourceError("memory budget of " + std::to_string(budget_bytes_) +
                            " bytes exceeded by " + std::to_string(total - budget_bytes_) +
                            " bytes",
                        "while allocating " + std::string(category_name(category)),
                        "raise --memory-budget, use a higher ZeRO stage or a smaller micro-batch");
  }
  MemoryUse& use = use_.at(static_cast<std::size_t>(space));
  const auto index = static_cast<std::size_t>(category);
  use.current_bytes.at(index) += bytes;
  use.total_bytes += bytes;
  use.peak_bytes.at(index) = std::max(use.peak_bytes.at(index), use.current_bytes.at(index));
  use.total_peak_bytes = std::max(use.total_peak_bytes, use.total_bytes);
}

void Ledger::subtract(MemorySpace space, Category category, std::int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  MemoryUse& use = use_[static_cast<std::size_t>(space)];
  use.current_bytes[static_cast<std::size_t>(category)] -= bytes;
  use.total_bytes -= bytes;
}

MemoryUse Ledger::use(MemorySpace space) const {
  const std::lock_guard lock(mutex_);
  return use_.at(static_cast<std::size_t>(space));
}

}  // namespace zero
