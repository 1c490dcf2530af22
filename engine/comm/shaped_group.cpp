#include "engine/comm/call.h"
#include <zero/comm/group.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace zero::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// One rank's link: transfers of all its groups share it, one after the other as they reach it.
class Link {
 public:
  explicit Link(const LinkShape& shape) : shape_(shape) {}

  /// When a transfer of `bytes` that reached the link at `start` has been delivered.
  Clock::time_point deliver(Clock::time_point start, std::uint64_t bytes) {
    const auto seconds = [](double s) {
      return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
    };
    const std::lock_guard lock(mutex_);
    free_ = std::max(free_, start) + seconds(static_cast<double>(bytes) / shape_.bytes_per_s);
    return free_ + seconds(shape_.latency_s);
  }

 private:
  LinkShape shape_;
  std::mutex mutex_;          // guards free_
  Clock::time_point free_{};  // what was sent so far is through
};

/// Passes every call on and holds its end back until the link would have delivered it. The wait is
/// a sleep of the stream's thread.
class ShapedGroup final : public Group {
 public:
  ShapedGroup(std::shared_ptr<Group> inner,
              std::shared_ptr<Link> link,
              RankContext& context,
              accel::Device& device)
      : Group(context, device, inner->rank(), inner->size()),
        inner_(std::move(inner)),
        link_(std::move(link)) {}

  [[nodiscard]] std::string name() const override { return inner_->name(); }

  [[nodiscard]] std::unique_ptr<Group> split(int color, int key) override {
    return std::make_unique<ShapedGroup>(inner_->split(color, key), link_, context_, device_);
  }

  void abort(const std::string& reason, int exit_code) noexcept override {
    inner_->abort(reason, exit_code);
  }

  [[nodiscard]] Traffic traffic() const override { return inner_->traffic(); }

 protected:
  void enqueue(Call call, accel::Stream& stream) override {
    struct Transfer {
      Clock::time_point start;
      Traffic before;
    };
    const auto transfer = std::make_shared<Transfer>();
    stream.host_task([transfer, inner = inner_] { *transfer = {Clock::now(), inner->traffic()}; });
    enqueue_on(*inner_, std::move(call), stream);
    stream.host_task([transfer, inner = inner_, link = link_] {
      const Traffic after = inner->traffic();
      // Full duplex: the busier direction counts.
      const std::uint64_t bytes = std::max(after.bytes_in - transfer->before.bytes_in,
                                           after.bytes_out - transfer->before.bytes_out);
      std::this_thread::sleep_until(link->deliver(transfer->start, bytes));
    });
  }

 private:
  std::shared_ptr<Group> inner_;
  std::shared_ptr<Link> link_;
};

}  // namespace

std::unique_ptr<Group> shape_link(std::unique_ptr<Group> group,
                                  const LinkShape& shape,
                                  RankContext& context,
                                  accel::Device& device) {
  if (!(shape.bytes_per_s > 0.0 && shape.latency_s >= 0.0)) {
    throw InputError("a link needs a positive bandwidth and a latency of at least 0",
                     "shape_link",
                     "give both in bytes a second and seconds");
  }
  return std::make_unique<ShapedGroup>(
      std::move(group), std::make_shared<Link>(shape), context, device);
}

}  // namespace zero::comm
