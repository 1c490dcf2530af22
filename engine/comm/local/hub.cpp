#include "engine/comm/local/hub.h"

#include <zero/core/error.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

namespace zero::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(20);

Clock::time_point deadline_after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Meeting::Key key_of(int rank, const Call& call) {
  switch (call.verb) {
    case Verb::kSend:
      return {call.sequence, rank, call.root};
    case Verb::kRecv:
      return {call.sequence, call.root, rank};
    default:
      return {call.sequence, -1, -1};
  }
}

std::size_t at(int rank) noexcept {
  return static_cast<std::size_t>(rank);
}

}  // namespace

void LocalFamily::enter(const std::shared_ptr<LocalHub>& hub) {
  const std::lock_guard lock(mutex_);
  std::erase_if(hubs_, [](const std::weak_ptr<LocalHub>& old) { return old.expired(); });
  hubs_.push_back(hub);
  if (!reason_.empty()) {
    hub->fail(reason_);
  }
}

void LocalFamily::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_.empty()) {
    return;
  }
  reason_ = reason;
  for (const auto& weak : hubs_) {
    if (const std::shared_ptr<LocalHub> hub = weak.lock()) {
      hub->fail(reason);
    }
  }
}

LocalHub::LocalHub(std::shared_ptr<LocalFamily> family,
                   std::string name,
                   std::vector<int> world_ranks)
    : family_(std::move(family)),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      latest_(world_ranks_.size()) {}

std::shared_ptr<Meeting> LocalHub::meet(int rank, const Call& call, double timeout_s) {
  std::shared_ptr<Meeting> meeting;
  {
    Lock lock(mutex_);
    if (!failure_.empty()) {
      throw_failed();
    }
    meeting = find_or_make(rank, call);
    meeting->calls[at(rank)] = &call;
    latest_[at(rank)] = signature_of(call, size());
    arrive(lock, *meeting, rank);
  }
  wait(*meeting, rank, timeout_s);
  if (!meeting->disagreement.empty()) {
    leave(*meeting, rank, timeout_s);
    throw disagreement(meeting->disagreement, name_);
  }
  return meeting;
}

void LocalHub::pass(Meeting& meeting, int rank, double timeout_s) {
  {
    Lock lock(mutex_);
    arrive(lock, meeting, rank);
  }
  wait(meeting, rank, timeout_s);
}

void LocalHub::leave(Meeting& meeting, int rank, double timeout_s) {
  {
    Lock lock(mutex_);
    arrive(lock, meeting, rank);
    if (missing(meeting, meeting.rounds[at(rank)]).empty()) {
      meetings_.erase(meeting.key);  // the other members hold the meeting themselves
    }
  }
  wait(meeting, rank, timeout_s);
}

void LocalHub::fail(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) {
      failure_ = reason;
    }
  }
  changed_.notify_all();
}

std::shared_ptr<Meeting> LocalHub::find_or_make(int rank, const Call& call) {
  const Meeting::Key key = key_of(rank, call);
  std::shared_ptr<Meeting>& meeting = meetings_[key];
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>();
    meeting->key = key;
    meeting->calls.resize(world_ranks_.size());
    meeting->rounds.resize(world_ranks_.size());
    if (call.pairwise()) {
      meeting->members = {std::get<1>(key), std::get<2>(key)};
    } else {
      meeting->members.resize(world_ranks_.size());
      std::iota(meeting->members.begin(), meeting->members.end(), 0);
    }
  }
  return meeting;
}

void LocalHub::compare(Meeting& meeting) const {
  std::vector<Signature> signatures;
  std::vector<int> ranks;
  for (const int member : meeting.members) {
    signatures.push_back(signature_of(*meeting.calls[at(member)], size()));
    ranks.push_back(world_ranks_[at(member)]);
  }
  meeting.disagreement = find_disagreement(signatures, ranks);
}

void LocalHub::arrive(Lock& lock, Meeting& meeting, int rank) {
  ZERO_CHECK(lock.owns_lock(), "the hub is not locked");
  const int round = ++meeting.rounds[at(rank)];
  if (!missing(meeting, round).empty()) {
    return;
  }
  if (round == 1) {
    compare(meeting);
  }
  meeting.round.store(round, std::memory_order_release);
  changed_.notify_all();
}

void LocalHub::wait(Meeting& meeting, int rank, double timeout_s) {
  const int round = meeting.rounds[at(rank)];  // only this rank writes it
  const auto complete = [&] { return meeting.round.load(std::memory_order_acquire) >= round; };
  const auto spin_until = Clock::now() + kSpin;
  while (!complete() && Clock::now() < spin_until) {
    std::this_thread::yield();
  }
  if (complete()) {
    return;
  }
  std::string text;
  {
    Lock lock(mutex_);
    // Ranks that have met finish what they do even when the hub fails: others read their memory.
    const auto awake = [&] { return complete() || (round == 1 && !failure_.empty()); };
    if (changed_.wait_until(lock, deadline_after(timeout_s), awake)) {
      if (complete()) {
        return;
      }
      throw_failed();
    }
    const Call& call = *meeting.calls[at(rank)];
    text = describe_late(missing(meeting, round), signature_of(call, size()), timeout_s);
    failure_ = text;  // from here on nobody completes it
  }
  family_->fail(text);
  throw late(text, name_);
}

std::vector<Absent> LocalHub::missing(const Meeting& meeting, int round) const {
  std::vector<Absent> late;
  for (const int member : meeting.members) {
    if (meeting.rounds[at(member)] < round) {
      late.push_back({world_ranks_[at(member)], latest_[at(member)]});
    }
  }
  return late;
}

void LocalHub::throw_failed() const {
  throw PeerError(
      failure_, "in group " + name_, "look at the message of the rank that failed first");
}

std::shared_ptr<LocalHub> make_local_hub(int ranks) {
  ZERO_CHECK(ranks > 0, "a hub needs ranks");
  std::vector<int> world_ranks(at(ranks));
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  auto family = std::make_shared<LocalFamily>();
  auto hub = std::make_shared<LocalHub>(family, "local", std::move(world_ranks));
  family->enter(hub);
  return hub;
}

}  // namespace zero::comm
