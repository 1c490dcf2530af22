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
  Clock::time_point deliver(Clock::time_point start, double bytes) {
    const auto seconds = [](double s) {
      return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
    };
    const std::lock_guard lock(mutex_);
    free_ = std::max(free_, start) + seconds(bytes / shape_.bytes_per_s);
    return free_ + seconds(shape_.latency_s);
  }

 private:
  LinkShape shape_;
  std::mutex mutex_;          // guards free_
  Clock::time_point free_{};  // what was sent so far is through
};

/// The links of one rank: to its node, and to the other nodes.
struct Links {
  explicit Links(const NetworkShape& shape)
      : ranks_per_node(shape.ranks_per_node), node(shape.link), inter(shape.inter_link) {}

  [[nodiscard]] bool same_node(int a, int b) const noexcept {
    return ranks_per_node == 0 || a / ranks_per_node == b / ranks_per_node;
  }

  int ranks_per_node;
  Link node;
  Link inter;
};

/// Passes every call on and holds its end back until the links would have delivered it. The wait is
/// a sleep of the stream's thread.
class ShapedGroup final : public Group {
 public:
  ShapedGroup(std::shared_ptr<Group> inner,
              std::shared_ptr<Links> links,
              RankContext& context,
              accel::Device& device)
      : Group(context, device, inner->rank(), inner->size()),
        inner_(std::move(inner)),
        links_(std::move(links)) {}

  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override {
    return inner_->world_ranks();
  }

  [[nodiscard]] std::unique_ptr<Group> split(int color, int key) override {
    return std::make_unique<ShapedGroup>(inner_->split(color, key), links_, context_, device_);
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
    const double share = share_between_nodes(call);
    enqueue_on(*inner_, std::move(call), stream);
    stream.host_task([transfer, share, inner = inner_, links = links_] {
      const Traffic after = inner->traffic();
      // Full duplex: the busier direction counts.
      const auto bytes =
          static_cast<double>(std::max(after.bytes_in - transfer->before.bytes_in,
                                       after.bytes_out - transfer->before.bytes_out));
      Clock::time_point delivered = transfer->start;
      if (share < 1.0) {
        delivered = links->node.deliver(transfer->start, (1.0 - share) * bytes);
      }
      if (share > 0.0) {
        delivered = std::max(delivered, links->inter.deliver(transfer->start, share * bytes));
      }
      std::this_thread::sleep_until(delivered);
    });
  }

 private:
  /// The part of a call's bytes that this rank exchanges with other nodes: every peer moves as
  /// much.
  [[nodiscard]] double share_between_nodes(const Call& call) const {
    const std::vector<int>& ranks = world_ranks();
    const int self = ranks[static_cast<std::size_t>(rank())];
    const auto away = [&](int peer) { return !links_->same_node(self, peer); };
    if (call.pairwise() || (call.verb == Verb::kBroadcast && call.root != rank())) {
      return away(ranks[static_cast<std::size_t>(call.root)]) ? 1.0 : 0.0;
    }
    return static_cast<double>(std::count_if(ranks.begin(), ranks.end(), away)) /
           std::max(1, size() - 1);
  }

  std::shared_ptr<Group> inner_;
  std::shared_ptr<Links> links_;
};

}  // namespace

std::unique_ptr<Group> shape_network(std::unique_ptr<Group> group,
                                     const NetworkShape& shape,
                                     RankContext& context,
                                     accel::Device& device) {
  for (const LinkShape& link : {shape.link, shape.inter_link}) {
    if (!(link.bytes_per_s > 0.0 && link.latency_s >= 0.0)) {
      throw InputError("a link needs a positive bandwidth and a latency of at least 0",
                       "shape_network",
                       "give both in bytes a second and seconds");
    }
  }
  if (shape.ranks_per_node < 0) {
    throw InputError("a node needs at least one rank", "shape_network", "give their number");
  }
  return std::make_unique<ShapedGroup>(
      std::move(group), std::make_shared<Links>(shape), context, device);
}

}  // namespace zero::comm
