#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace zero {

/// What an allocation is for. Plan, ledger, metrics and tables use the same names.
enum class Category : std::uint8_t {
  kParameters,   ///< resident parameters in the model's dtype (whole, shard or persistent)
  kGradients,    ///< accumulated gradients at their home
  kMaster,       ///< fp32 master weights, where they are not the parameters themselves
  kMoments,      ///< optimizer state
  kGathered,     ///< slots that hold gathered units in stage 3
  kBuckets,      ///< gradient slots on their way to a reduction
  kActivations,  ///< saved activations and workspace of forward and backward
  kStaging,      ///< buffers of transports and copies
  kPinned,       ///< page-locked host memory
  kOther,        ///< scalars, inputs, library scratch
};
inline constexpr std::size_t kCategories = 10;
[[nodiscard]] std::string_view category_name(Category category) noexcept;

/// Where memory lies. On the CPU back end kDevice is ordinary memory that plays the device's part.
enum class MemorySpace : std::uint8_t { kDevice, kHost };
inline constexpr std::size_t kMemorySpaces = 2;

struct MemoryUse {
  std::array<std::int64_t, kCategories> current_bytes{};
  std::array<std::int64_t, kCategories> peak_bytes{};  ///< of each category by itself
  std::int64_t total_bytes = 0;
  std::int64_t total_peak_bytes = 0;  ///< peak of the sum, at most the sum of the peaks
};

/// Book of every allocation of one rank, by category and space. Any thread may call.
class Ledger {
 public:
  /// Refuses, by ResourceError naming the category, what would take device + host beyond the
  /// budget. 0 = no budget.
  void set_budget(std::int64_t bytes);
  void add(MemorySpace space, Category category, std::int64_t bytes);
  void subtract(MemorySpace space, Category category, std::int64_t bytes) noexcept;
  [[nodiscard]] MemoryUse use(MemorySpace space) const;

 private:
  mutable std::mutex mutex_;  // guards everything below
  std::array<MemoryUse, kMemorySpaces> use_;
  std::int64_t budget_bytes_ = 0;
};

}  // namespace zero
