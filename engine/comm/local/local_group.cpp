#include "engine/comm/call.h"
#include "engine/comm/counters.h"
#include "engine/comm/local/hub.h"
#include "engine/comm/reduce.h"
#include <zero/comm/group.h>
#include <zero/core/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace zero::comm {
namespace {

/// What a rank's enqueued tasks need; they may outlive the group.
struct Seat {
  std::shared_ptr<LocalHub> hub;
  int rank = 0;
  double timeout_s = 0;
  Counters counters;
};

/// The calls of all ranks that have met, seen from one of them.
class Transport {
 public:
  Transport(Seat& seat, const Meeting& meeting, const Call& call)
      : seat_(seat), meeting_(meeting), call_(call), size_(seat.hub->size()) {}

  /// Copies each peer's slice for this rank; the peer's slice is its own one or, in all_to_all, the
  /// one with this rank's number.
  void gather(bool from_targets) {
    for (std::size_t s = 0; s < call_.segments.size(); ++s) {
      const Segment& mine = call_.segments[s];
      for (int k = 0; k < size_; ++k) {
        const Segment& theirs = peer(k, s);
        const int slice = call_.verb == Verb::kAllToAll ? seat_.rank : k;
        const auto source =
            from_targets ? std::span<const std::byte>(theirs.target(slice)) : theirs.source(slice);
        copy(source, mine.target(k), k);
        if (k != seat_.rank) {
          const int own = call_.verb == Verb::kAllToAll ? k : seat_.rank;
          seat_.counters.add_out(call_.payload, mine.bytes(own));
        }
      }
    }
  }

  /// Sums slice `rank` of all ranks into this rank's target.
  void reduce() {
    std::vector<const std::byte*> sources(static_cast<std::size_t>(size_));
    for (std::size_t s = 0; s < call_.segments.size(); ++s) {
      const Segment& mine = call_.segments[s];
      for (int k = 0; k < size_; ++k) {
        sources[static_cast<std::size_t>(k)] = peer(k, s).source(seat_.rank).data();
        if (k != seat_.rank) {
          seat_.counters.add_in(call_.payload, mine.bytes(seat_.rank));
          seat_.counters.add_out(call_.payload, mine.bytes(k));
        }
      }
      reduce_in_order(sources, mine.target(seat_.rank), mine.dtype, call_.op);
    }
  }

  /// Copies the whole from rank `root`.
  void take_from(int root) {
    for (std::size_t s = 0; s < call_.segments.size(); ++s) {
      copy(peer(root, s).source(0), call_.segments[s].target(0), root);
    }
  }

  /// Accounts for `readers` peers that copy the whole from this rank.
  void given_to(int readers) {
    for (const Segment& mine : call_.segments) {
      seat_.counters.add_out(call_.payload, mine.bytes(0) * static_cast<std::size_t>(readers));
    }
  }

 private:
  [[nodiscard]] const Segment& peer(int rank, std::size_t segment) const {
    return meeting_.calls[static_cast<std::size_t>(rank)]->segments[segment];
  }
  void copy(std::span<const std::byte> source, std::span<std::byte> target, int from) {
    if (source.data() != target.data() && !target.empty()) {
      std::memcpy(target.data(), source.data(), target.size());
    }
    if (from != seat_.rank) {
      seat_.counters.add_in(call_.payload, target.size());
    }
  }

  Seat& seat_;
  const Meeting& meeting_;
  const Call& call_;
  int size_;
};

void run_phases(Seat& seat, Meeting& meeting, const Call& call) {
  Transport transport(seat, meeting, call);
  switch (call.verb) {
    case Verb::kAllGather:
    case Verb::kAllToAll:
      return transport.gather(false);
    case Verb::kReduceScatter:
      return transport.reduce();
    case Verb::kAllReduce:
      transport.reduce();
      // read-after-write: the slices that the peers have just summed
      seat.hub->pass(meeting, seat.rank, seat.timeout_s);
      return transport.gather(true);
    case Verb::kBroadcast:
      return seat.rank == call.root ? transport.given_to(seat.hub->size() - 1)
                                    : transport.take_from(call.root);
    case Verb::kSend:
      return transport.given_to(1);
    case Verb::kRecv:
      return transport.take_from(call.root);
    case Verb::kBarrier:
    case Verb::kSplit:
      return;
  }
}

void run(Seat& seat, const Call& call) {
  const std::shared_ptr<Meeting> meeting = seat.hub->meet(seat.rank, call, seat.timeout_s);
  run_phases(seat, *meeting, call);
  // write-after-read: nobody changes memory that a peer still reads
  seat.hub->leave(*meeting, seat.rank, seat.timeout_s);
  if (call.counts()) {
    seat.counters.add_collective();
  }
}

/// Rank 0's part of a split: hubs of all colours, each with its members in order of key and rank.
void make_children(Meeting& meeting, const LocalHub& parent) {
  std::map<int, std::vector<std::pair<int, int>>> members;  // colour -> (key, rank)
  for (const int rank : meeting.members) {
    const Call& call = *meeting.calls[static_cast<std::size_t>(rank)];
    members[call.color].emplace_back(call.key, rank);
  }
  meeting.children.resize(meeting.members.size());
  for (auto& [color, ordered] : members) {
    std::sort(ordered.begin(), ordered.end());
    std::vector<int> world_ranks;
    for (const auto& [key, rank] : ordered) {
      world_ranks.push_back(parent.world_ranks()[static_cast<std::size_t>(rank)]);
    }
    const auto hub = std::make_shared<LocalHub>(
        parent.family(), fmt::format("{}/{}", parent.name(), color), std::move(world_ranks));
    parent.family()->enter(hub);
    for (const auto& [key, rank] : ordered) {
      meeting.children[static_cast<std::size_t>(rank)] = hub;
    }
  }
}

class LocalGroup final : public Group {
 public:
  LocalGroup(std::shared_ptr<LocalHub> hub,
             int group_rank,
             RankContext& context,
             accel::Device& device)
      : Group(context, device, group_rank, hub->size()), seat_(std::make_shared<Seat>()) {
    seat_->hub = std::move(hub);
    seat_->rank = group_rank;
    seat_->timeout_s = context.env.timeout_s;
  }

  [[nodiscard]] std::string name() const override { return seat_->hub->name(); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override {
    return seat_->hub->world_ranks();
  }

  [[nodiscard]] std::unique_ptr<Group> split(int color, int key) override {
    if (color < 0) {
      throw InputError(fmt::format("colour {} is negative", color),
                       "in split of group " + name(),
                       "use colours from 0 on");
    }
    const Call call{.verb = Verb::kSplit, .sequence = next_sequence(), .color = color, .key = key};
    LocalHub& hub = *seat_->hub;
    const std::shared_ptr<Meeting> meeting = hub.meet(rank(), call, seat_->timeout_s);
    if (rank() == 0) {
      make_children(*meeting, hub);
    }
    hub.pass(*meeting, rank(), seat_->timeout_s);  // read-after-write: children, made by rank 0
    const auto child = meeting->children[static_cast<std::size_t>(rank())];
    hub.leave(*meeting, rank(), seat_->timeout_s);
    const auto& ranks = child->world_ranks();
    const int me = hub.world_ranks()[static_cast<std::size_t>(rank())];
    const auto place = std::find(ranks.begin(), ranks.end(), me) - ranks.begin();
    return std::make_unique<LocalGroup>(child, static_cast<int>(place), context_, device_);
  }

  void abort(const std::string& reason, int /*exit_code*/) noexcept override {
    const int me = seat_->hub->world_ranks()[static_cast<std::size_t>(rank())];
    seat_->hub->family()->fail(fmt::format("rank {} ended the run: {}", me, reason));
  }

  [[nodiscard]] Traffic traffic() const override { return seat_->counters.read(); }

 protected:
  void enqueue(Call call, accel::Stream& stream) override {
    stream.host_task([seat = seat_, call = std::make_shared<const Call>(std::move(call))] {
      run(*seat, *call);
    });
  }

 private:
  std::shared_ptr<Seat> seat_;
};

}  // namespace

std::unique_ptr<Group> make_local_group(std::shared_ptr<LocalHub> hub,
                                        RankContext& context,
                                        accel::Device& device) {
  if (context.rank < 0 || context.rank >= hub->size()) {
    throw InputError(
        fmt::format("rank {} does not fit a hub of {} ranks", context.rank, hub->size()),
        "in make_local_group",
        "make the hub for the number of ranks that run");
  }
  const int rank = context.rank;
  return std::make_unique<LocalGroup>(std::move(hub), rank, context, device);
}

}  // namespace zero::comm
