#pragma once

#include "engine/comm/call.h"
#include <zero/comm/group.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace zero::comm {

class LocalHub;

/// A hub and all hubs split from it: they fail together.
class LocalFamily {
 public:
  void enter(const std::shared_ptr<LocalHub>& hub);
  void fail(const std::string& reason);

 private:
  std::mutex mutex_;  // guards everything below; taken before a hub's, never inside it
  std::vector<std::weak_ptr<LocalHub>> hubs_;
  std::string reason_;  ///< empty: alive
};

/// One call in which several ranks take part. Made by the first that arrives, shared by all.
struct Meeting {
  using Key = std::tuple<std::uint64_t, int, int>;  ///< sequence, sender, receiver (−1: all ranks)
  Key key;
  std::vector<int> members;                         ///< group ranks that must come
  std::vector<const Call*> calls;                   ///< by group rank; nullptr until it has come
  std::vector<int> rounds;                          ///< by group rank: points that it has reached
  std::atomic<int> round = 0;                       ///< points that all have reached
  std::string disagreement;                         ///< set before round becomes 1
  std::vector<std::shared_ptr<LocalHub>> children;  ///< split: by group rank
};

/// The meeting place of ranks that are threads of one process.
///
/// A call goes through three points: `meet` (all are there and mean the same call), any number of
/// `pass` (all have finished a phase), and `leave`. Only `meet` waits for ranks that may never
/// come. Beyond it all members run code that ends, and nobody leaves before the others are through,
/// because they read its memory. Waiting spins for at most 20 µs, then sleeps.
class LocalHub {
 public:
  LocalHub(std::shared_ptr<LocalFamily> family, std::string name, std::vector<int> world_ranks);

  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_ranks_.size()); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::vector<int>& world_ranks() const noexcept { return world_ranks_; }
  [[nodiscard]] const std::shared_ptr<LocalFamily>& family() const noexcept { return family_; }

  /// Waits for the members of the call. `call` must live until leave() returns. Throws PeerError if
  /// they disagree, if one does not come within `timeout_s` (all hubs of the family fail then), or
  /// after a failure.
  [[nodiscard]] std::shared_ptr<Meeting> meet(int rank, const Call& call, double timeout_s);
  void pass(Meeting& meeting, int rank, double timeout_s);
  void leave(Meeting& meeting, int rank, double timeout_s);

  /// Wakes everybody that waits in meet() and refuses every later call.
  void fail(const std::string& reason);

 private:
  using Lock = std::unique_lock<std::mutex>;
  [[nodiscard]] std::shared_ptr<Meeting> find_or_make(int rank, const Call& call);
  void compare(Meeting& meeting) const;
  void arrive(Lock& lock, Meeting& meeting, int rank);
  void wait(Meeting& meeting, int rank, double timeout_s);
  [[nodiscard]] std::vector<Absent> missing(const Meeting& meeting, int round) const;
  [[noreturn]] void throw_failed() const;

  const std::shared_ptr<LocalFamily> family_;
  const std::string name_;
  const std::vector<int> world_ranks_;

  mutable std::mutex mutex_;         // guards everything below, and all of a Meeting but `round`
  std::condition_variable changed_;  // a round is complete, or the hub has failed
  std::map<Meeting::Key, std::shared_ptr<Meeting>> meetings_;
  std::string failure_;                           // empty: alive
  std::vector<std::optional<Signature>> latest_;  // by group rank: the call that it came to last
};

}  // namespace zero::comm
