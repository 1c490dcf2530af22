#include "engine/schedule/parameters.h"
#include <zero/engine/lr_schedule.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace zero {
namespace {

using schedule::of_group;
using schedule::Parameters;

constexpr double kPi = 3.14159265358979323846;

/// The rising part that three schedules share: γ goes from 0 to 1 within `steps` updates.
struct Warmup {
  explicit Warmup(Parameters& params)
      : steps(std::max(2.0, params.count("warmup_num_steps", 1000, 1))),
        linear(params.word("warmup_type", "log") == "linear") {
    // Read so that it is known; the position in the schedule is the engine's.
    (void)params.number("last_batch_iteration", -1);
  }
  [[nodiscard]] bool over(std::int64_t index) const { return static_cast<double>(index) >= steps; }
  [[nodiscard]] double gamma(std::int64_t index) const {
    const auto i = static_cast<double>(index);
    return linear ? i / steps : std::log(i + 1.0) * (1.0 / std::log(steps));
  }

  double steps;
  bool linear;
};

class WarmupLr : public LrSchedule {
 public:
  explicit WarmupLr(Parameters& params, std::vector<double> default_max = {})
      : warmup_(params),
        min_(params.list("warmup_min_lr", {0.0})),
        max_(params.list("warmup_max_lr", std::move(default_max))) {}

  [[nodiscard]] double lr(std::int64_t index, std::size_t group, double base_lr) const override {
    const double low = of_group(min_, group);
    const double high = max_.empty() ? base_lr : of_group(max_, group);
    if (index < 0) {
      return low;
    }
    return low + (high - low) * (warmup_.over(index) ? decay(index) : warmup_.gamma(index));
  }

 protected:
  [[nodiscard]] virtual double decay(std::int64_t /*index*/) const { return 1.0; }
  [[nodiscard]] const Warmup& warmup() const { return warmup_; }

 private:
  Warmup warmup_;
  std::vector<double> min_;
  std::vector<double> max_;  // empty: the group's own rate
};

class WarmupDecayLr final : public WarmupLr {
 public:
  explicit WarmupDecayLr(Parameters& params)
      : WarmupLr(params, {0.001}), total_(params.required("total_num_steps")) {}

 protected:
  [[nodiscard]] double decay(std::int64_t index) const override {
    return std::max(0.0,
                    (total_ - static_cast<double>(index)) / std::max(1.0, total_ - warmup().steps));
  }

 private:
  double total_;
};

class WarmupCosineLr final : public LrSchedule {
 public:
  explicit WarmupCosineLr(Parameters& params)
      : warmup_(params),
        total_(params.required("total_num_steps")),
        min_ratio_(params.number("warmup_min_ratio", 0.0)),
        cos_min_ratio_(params.number("cos_min_ratio", 0.0001)) {}

  [[nodiscard]] double lr(std::int64_t index,
                          std::size_t /*group*/,
                          double base_lr) const override {
    return index < 0 ? 0.0 : base_lr * ratio(index);
  }

 private:
  [[nodiscard]] double ratio(std::int64_t index) const {
    if (!warmup_.over(index)) {
      return min_ratio_ + (1.0 - min_ratio_) * warmup_.gamma(index);
    }
    const double done = static_cast<double>(index) - warmup_.steps + 1.0;
    const double part = std::min(1.0, done / std::max(1.0, total_ - warmup_.steps));
    return std::max(0.0,
                    cos_min_ratio_ + (1.0 - cos_min_ratio_) * (1.0 + std::cos(kPi * part)) / 2.0);
  }

  Warmup warmup_;
  double total_;
  double min_ratio_;
  double cos_min_ratio_;
};

class LrRangeTest final : public LrSchedule {
 public:
  explicit LrRangeTest(Parameters& params)
      : min_(params.list("lr_range_test_min_lr", {1e-3})),
        size_(params.count("lr_range_test_step_size", 2000, 1)),
        rate_(params.number("lr_range_test_step_rate", 1.0)),
        staircase_(params.number("lr_range_test_staircase", 0.0) != 0.0) {
    (void)params.number("last_batch_iteration", -1);
  }

  [[nodiscard]] double lr(std::int64_t index,
                          std::size_t group,
                          double /*base_lr*/) const override {
    if (index < 0) {
      return of_group(min_, group);
    }
    const double position = (static_cast<double>(index) + 1.0) / size_;
    return of_group(min_, group) * (1.0 + rate_ * (staircase_ ? std::floor(position) : position));
  }

 private:
  std::vector<double> min_;
  double size_;
  double rate_;
  bool staircase_;
};

/// Smith and Topin 2018: up, down, then a long decay; momentum moves against the rate.
class OneCycle final : public LrSchedule {
 public:
  explicit OneCycle(Parameters& params)
      : min_(params.required_list("cycle_min_lr")),
        max_(params.required_list("cycle_max_lr")),
        lr_decay_(params.number("decay_lr_rate", 0.0)),
        first_(params.count("cycle_first_step_size", 2000, 1)),
        second_(params.count("cycle_second_step_size", first_, 0)),
        first_stairs_(params.number("cycle_first_stair_count", 0)),
        second_stairs_(params.number("cycle_second_stair_count", first_stairs_)),
        decay_size_(params.number("decay_step_size", 0)),
        moves_momentum_(params.number("cycle_momentum", 1) != 0.0),
        min_momentum_(params.number("cycle_min_mom", 0.8)),
        max_momentum_(params.number("cycle_max_mom", 0.9)),
        momentum_decay_(params.number("decay_mom_rate", 0.0)) {
    (void)params.number("last_batch_iteration", -1);
  }

  [[nodiscard]] double lr(std::int64_t index,
                          std::size_t group,
                          double /*base_lr*/) const override {
    const double low = of_group(min_, group);
    if (index < 0) {
      return low;
    }
    if (in_cycle(index)) {
      return low + (of_group(max_, group) - low) * height(index);
    }
    return decays(lr_decay_) ? low / (1.0 + lr_decay_ * decay_position(index)) : low;
  }

  [[nodiscard]] std::optional<Betas> betas(std::int64_t index) const override {
    if (!moves_momentum_) {
      return std::nullopt;
    }
    constexpr double kBeta2 = 0.99;
    if (index < 0) {
      return Betas{min_momentum_, kBeta2};
    }
    if (in_cycle(index)) {
      return Betas{max_momentum_ - (max_momentum_ - min_momentum_) * height(index), kBeta2};
    }
    const double growth =
        decays(momentum_decay_) ? 1.0 + momentum_decay_ * decay_position(index) : 1.0;
    return Betas{max_momentum_ * growth, kBeta2};
  }

 private:
  [[nodiscard]] double length() const { return first_ + second_; }
  [[nodiscard]] bool in_cycle(std::int64_t index) const {
    return static_cast<double>(index) < length();
  }
  [[nodiscard]] bool decays(double rate) const { return decay_size_ != 0.0 && rate != 0.0; }
  [[nodiscard]] double decay_position(std::int64_t index) const {
    return (static_cast<double>(index) - length() + 1.0) / decay_size_;
  }
  /// 0 at the ends of the cycle, 1 at its top.
  [[nodiscard]] double height(std::int64_t index) const {
    const double at = std::fmod(static_cast<double>(index) + 1.0, length());
    const bool rising = at <= first_;
    // The same roundings as a position in [0, 1] scaled by the share of the rising half.
    const double position = at / length();
    const double share = first_ / length();
    const double slope = rising ? position / share : (position - 1.0) / (share - 1.0);
    const double stairs = rising ? first_stairs_ : second_stairs_;
    return stairs > 0.0 ? std::floor(slope * stairs) / stairs : slope;
  }

  std::vector<double> min_;
  std::vector<double> max_;
  double lr_decay_;
  double first_;
  double second_;
  double first_stairs_;
  double second_stairs_;
  double decay_size_;
  bool moves_momentum_;
  double min_momentum_;
  double max_momentum_;
  double momentum_decay_;
};

template <class Schedule>
std::unique_ptr<LrSchedule> make(Parameters& params) {
  return std::make_unique<Schedule>(params);
}

struct Row {
  std::string_view type;
  std::unique_ptr<LrSchedule> (*make)(Parameters&);
};
constexpr std::array<Row, 5> kSchedules = {{{"WarmupLR", make<WarmupLr>},
                                            {"WarmupDecayLR", make<WarmupDecayLr>},
                                            {"WarmupCosineLR", make<WarmupCosineLr>},
                                            {"LRRangeTest", make<LrRangeTest>},
                                            {"OneCycle", make<OneCycle>}}};

}  // namespace

std::unique_ptr<LrSchedule> make_lr_schedule(const std::optional<config::SchedulerConfig>& config) {
  if (!config.has_value()) {
    return nullptr;
  }
  std::string known;
  for (const Row& row : kSchedules) {
    if (row.type == config->type) {
      Parameters params(*config);
      std::unique_ptr<LrSchedule> made = row.make(params);
      params.finish();
      return made;
    }
    known += (known.empty() ? "" : ", ") + std::string(row.type);
  }
  throw ConfigError(
      fmt::format("scheduler.type is \"{}\"", config->type), "ds_config", "use one of " + known);
}

}  // namespace zero
