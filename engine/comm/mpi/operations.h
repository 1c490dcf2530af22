#pragma once

#include "engine/comm/call.h"
#include "engine/comm/counters.h"
#include "engine/comm/mpi/chunks.h"
#include "engine/comm/mpi/service.h"
#include "engine/comm/mpi/wire.h"
#include <zero/accel/device.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zero::comm {

/// What operations need of a group. Operations may outlive the group.
struct MpiGroupState {
  wire::CommunicatorRef comm;
  std::string name;
  std::vector<int> world_ranks;
  int rank = 0;
  int size = 1;
  double timeout_s = 0;
  Counters counters;
  /// Memory for the peers' chunks: [kChunksUnderWay][size − 1][kChunkBytes]. Taken before the first
  /// reduction is submitted.
  accel::Buffer staging;
  std::byte* staging_host = nullptr;
  /// The operation that uses `staging`. Service thread only.
  const void* staging_user = nullptr;
  std::mutex latest_mutex;                         ///< guards `latest`
  std::vector<std::optional<Signature>> latest{};  ///< by rank: the call that it came to last
};

/// First step of every call: each rank sends its signature to each other rank concerned.
class Introduction {
 public:
  Introduction(MpiGroupState& group, const Call& call);
  /// Whether anything has moved.
  bool poll();
  [[nodiscard]] bool done() const noexcept { return checked_; }
  /// Empty, or the PeerError of ranks that disagree; once done().
  [[nodiscard]] const std::exception_ptr& error() const noexcept { return error_; }
  /// The ranks that have not been heard of. Any thread.
  [[nodiscard]] std::vector<Absent> missing() const;
  [[nodiscard]] const Signature& own() const noexcept { return own_; }

 private:
  void start();
  void check();

  MpiGroupState& group_;
  const Signature own_;
  const int tag_;
  std::vector<int> peers_;
  std::vector<Signature> theirs_;                            ///< by peer
  std::vector<std::unique_ptr<wire::Transfers>> transfers_;  ///< by peer; the last one: sends
  std::unique_ptr<std::atomic<bool>[]> heard_;               ///< by peer
  bool started_ = false;
  bool checked_ = false;
  std::exception_ptr error_;
};

/// Cuts the slices of one owner, segment after segment, into chunks that both sides enumerate
/// alike.
class ChunkCursor {
 public:
  struct Chunk {
    const Segment* segment = nullptr;  ///< nullptr: no more
    std::size_t offset = 0;            ///< bytes, in the owner's slice
    std::size_t bytes = 0;
  };
  ChunkCursor(const Call& call, int owner) : call_(call), owner_(owner) {}
  [[nodiscard]] Chunk next();

 private:
  const Call& call_;
  int owner_;
  std::size_t segment_ = 0;
  std::size_t offset_ = 0;
};

/// Reduce-scatter: every rank sends each owner its part in chunks; the owner sums them in rank
/// order with its own. Sending never waits for receiving, so that reductions of one group can share
/// one staging buffer in any order.
class Reduction {
 public:
  Reduction(MpiGroupState& group, const Call& call, int tag);
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;
  Reduction(Reduction&&) = delete;
  Reduction& operator=(Reduction&&) = delete;
  ~Reduction();
  bool poll();
  [[nodiscard]] bool done() const noexcept;

 private:
  struct Outgoing {
    Outgoing(const Call& call, int peer) : rank(peer), cursor(call, peer) {}
    int rank;
    ChunkCursor cursor;
    wire::Transfers transfers;
    bool exhausted = false;
  };
  struct Incoming {
    ChunkCursor::Chunk chunk;
    wire::Transfers transfers;
  };
  bool poll_sends();
  bool poll_receives();
  bool take_staging();
  void post_receives(std::size_t slot);
  void sum(std::size_t slot);
  [[nodiscard]] std::span<std::byte> staging(std::size_t slot, int peer, std::size_t bytes) const;

  MpiGroupState& group_;
  const Call& call_;
  const int tag_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  ChunkCursor cursor_;
  std::array<Incoming, kChunksUnderWay> incoming_;
  std::size_t slot_ = 0;  ///< the oldest chunk under way
  bool holds_staging_ = false;
  bool received_ = false;
};

/// A call from introduction to result.
class CallOperation final : public Operation {
 public:
  CallOperation(std::shared_ptr<MpiGroupState> group, std::shared_ptr<const Call> call);
  bool poll() override;
  [[nodiscard]] std::vector<Absent> missing() const { return introduction_.missing(); }
  [[nodiscard]] const Signature& signature() const noexcept { return introduction_.own(); }

 private:
  void start_moves();
  void gather(bool from_targets);
  void send(int to, std::span<const std::byte> bytes);
  void receive(int from, std::span<std::byte> bytes);

  const std::shared_ptr<MpiGroupState> group_;
  const std::shared_ptr<const Call> call_;
  const int tag_;
  Introduction introduction_;
  std::unique_ptr<Reduction> reduction_;
  wire::Transfers moves_;
  bool moving_ = false;
};

/// Makes a communicator on the service thread: a duplicate of the world, or a part of a group.
class WorldOperation final : public Operation {
 public:
  bool poll() override;
  [[nodiscard]] const wire::CommunicatorRef& result() const noexcept { return comm_; }

 private:
  wire::Transfers transfers_;
  wire::CommunicatorRef comm_;
};

class SplitOperation final : public Operation {
 public:
  SplitOperation(std::shared_ptr<MpiGroupState> group, Call call);
  bool poll() override;
  [[nodiscard]] std::vector<Absent> missing() const { return introduction_.missing(); }
  [[nodiscard]] const Signature& signature() const noexcept { return introduction_.own(); }
  [[nodiscard]] const wire::CommunicatorRef& result() const noexcept { return comm_; }
  [[nodiscard]] const std::vector<int>& world_ranks() const noexcept { return world_ranks_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  const std::shared_ptr<MpiGroupState> group_;
  const Call call_;
  Introduction introduction_;
  wire::CommunicatorRef comm_;
  std::vector<int> world_ranks_;
  int rank_ = 0;
};

}  // namespace zero::comm
