#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// The MPI calls, without any logic; mpi.h stays in wire.cpp. Everything here is called by the
/// service thread only. A failing call is a PeerError with MPI's own text.
namespace zero::comm::wire {

/// A communicator; freed with MPI itself (freeing is collective, and groups end at any time).
struct Communicator;
using CommunicatorRef = std::shared_ptr<Communicator>;

struct World {
  int rank = 0;
  int size = 1;
  int local_size = 1;  ///< ranks on this node
};
/// Starts MPI on the calling thread. Throws ResourceError.
[[nodiscard]] World init();
void finalize();
/// Ends all processes of the job; does not return unless MPI fails to do so.
void abort(int exit_code);

/// Outstanding sends and receives. Memory must live until done(). Neither copied nor moved.
class Transfers {
 public:
  Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;
  Transfers(Transfers&&) = delete;
  Transfers& operator=(Transfers&&) = delete;
  /// Forgets what is outstanding: MPI may still write to its memory.
  ~Transfers();

  void send(const CommunicatorRef& comm, int to, int tag, std::span<const std::byte> bytes);
  void receive(const CommunicatorRef& comm, int from, int tag, std::span<std::byte> bytes);
  /// A new communicator with the ranks of the world; usable once done().
  [[nodiscard]] CommunicatorRef duplicate_world();

  /// Looks what has completed; whether anything has.
  bool poll();
  [[nodiscard]] bool done() const noexcept { return outstanding_ == 0; }
  [[nodiscard]] std::size_t outstanding() const noexcept { return outstanding_; }

 private:
  struct Requests;
  std::unique_ptr<Requests> requests_;
  std::size_t outstanding_ = 0;
};

/// A communicator of the ranks with the same colour. Blocks until all ranks of `parent` call it.
[[nodiscard]] CommunicatorRef split(const CommunicatorRef& parent, int color, int key);
/// World rank of every rank of `comm`; its own rank in it.
[[nodiscard]] std::vector<int> world_ranks(const CommunicatorRef& comm);
[[nodiscard]] int rank_in(const CommunicatorRef& comm);

}  // namespace zero::comm::wire
