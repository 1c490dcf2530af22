#pragma once

#include <zero/accel/device.h>
#include <zero/accel/stream.h>
#include <zero/core/rank_context.h>
#include <zero/core/tensor_view.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::comm {

/// kMean is the sum × 1/N in fp32, rounded once to the dtype; integers know kSum and kMax only.
enum class ReduceOp : std::uint8_t { kSum, kMean, kMax };

/// What the collectives of a unit move: elements [begin, begin + count) of each of the N equal
/// slices of a flat buffer.
///
/// buffer  N · slice elements; slice r belongs to rank r. A whole flat is {buffer, 0, slice}.
struct SlicedView {
  TensorView buffer;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// Bytes that this rank's transport has sent and received since the group was made. Data and
/// control apart.
struct Traffic {
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t control_bytes_in = 0;
  std::uint64_t control_bytes_out = 0;
  std::uint64_t collectives = 0;  ///< data collectives; a grouped call counts once

  Traffic& operator+=(const Traffic& other) noexcept {
    bytes_in += other.bytes_in;
    bytes_out += other.bytes_out;
    control_bytes_in += other.control_bytes_in;
    control_bytes_out += other.control_bytes_out;
    collectives += other.collectives;
    return *this;
  }
};

/// Whether a collective moves model data or a few bytes that steer the run; Traffic counts them
/// apart.
enum class Payload : std::uint8_t { kData, kControl };

/// What is called, and a checked call as the back ends see it (engine/comm/call.h).
enum class Verb : std::uint8_t;
struct Call;

/// A set of ranks that communicate.
///
/// Every verb is collective (send and recv: pairwise) and asynchronous: it is enqueued on `stream`,
/// returns at once, and the returned event fires when this rank's memory holds the result and may
/// be changed again. All ranks call the same verbs in the same order on a group; several groups, or
/// one group on one stream, never wait for each other's order. Before any data moves, the ranks
/// compare kind, dtype and sizes of the call; a disagreement is a PeerError on all, naming both
/// calls. Wrong arguments of this rank alone throw InputError at once. A rank that does not arrive
/// within `timeout_s` is a PeerError from Event::wait, naming the rank. Sum: rank order 0..N−1 with
/// an fp32 accumulator and one rounding (local, mpi). fp32, fp16, bf16, int32, int64 (moves: any
/// dtype). Counts may be 0. Thread: one thread per group at a time. Memory given must live until
/// the event. World size 1: no transport at all.
/// On a null stream arguments are checked and nothing else happens.
class Group {
 public:
  Group(RankContext& context, accel::Device& device, int rank, int size);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  Group(Group&&) = delete;
  Group& operator=(Group&&) = delete;
  virtual ~Group() = default;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] virtual std::string name() const = 0;
  /// The ranks of the world that form the group, in the order of their ranks here.
  [[nodiscard]] virtual const std::vector<int>& world_ranks() const = 0;
  /// What the calls from here on are for, such as a unit's name: the ranks compare it, and messages
  /// about ranks that disagree or are late say it, with the step (RankContext::step). The first 27
  /// bytes count.
  void about(std::string_view what) { about_ = what; }

  /// Each rank's slice r = rank() of every view goes to all ranks, in place. One collective for all
  /// views.
  [[nodiscard]] accel::Event all_gather_in_place(std::span<const SlicedView> views,
                                                 accel::Stream& stream);
  /// Slice rank() of every view becomes the reduction over the ranks' slices; the other slices stay
  /// as they are.
  [[nodiscard]] accel::Event reduce_scatter_in_place(std::span<const SlicedView> views,
                                                     ReduceOp op,
                                                     accel::Stream& stream);
  /// Every element becomes the reduction over the ranks. Reduce-scatter and all-gather over the
  /// flat order of the view.
  [[nodiscard]] accel::Event all_reduce_in_place(std::span<const TensorView> views,
                                                 ReduceOp op,
                                                 accel::Stream& stream,
                                                 Payload payload = Payload::kData);
  /// dst holds N · src.elems() elements, rank order.
  [[nodiscard]] accel::Event all_gather(ConstTensorView src,
                                        TensorView dst,
                                        accel::Stream& stream,
                                        Payload payload = Payload::kData);
  /// dst = slice rank() of the reduction of src (N · dst.elems() elements). May not overlap.
  [[nodiscard]] accel::Event reduce_scatter(ConstTensorView src,
                                            TensorView dst,
                                            ReduceOp op,
                                            accel::Stream& stream);
  [[nodiscard]] accel::Event broadcast(TensorView view,
                                       int root,
                                       accel::Stream& stream,
                                       Payload payload = Payload::kData);
  /// Slice k of src goes to slice rank() of rank k's dst; N equal slices. May not overlap.
  [[nodiscard]] accel::Event all_to_all(ConstTensorView src, TensorView dst, accel::Stream& stream);
  [[nodiscard]] accel::Event send(ConstTensorView src, int to, accel::Stream& stream);
  [[nodiscard]] accel::Event recv(TensorView dst, int from, accel::Stream& stream);
  [[nodiscard]] accel::Event barrier(accel::Stream& stream);
  /// Ranks with the same colour (>= 0) form a group, ordered by key, then by rank. Collective;
  /// blocks the calling host thread, at most `timeout_s`.
  [[nodiscard]] virtual std::unique_ptr<Group> split(int color, int key) = 0;

  /// Ends the group for all its ranks: everything in flight and everything later fails with a
  /// PeerError on the others, and so do the groups split from it or from the same ancestor. Called
  /// by a rank that failed; never blocks. mpi: the job ends with `exit_code`.
  virtual void abort(const std::string& reason, int exit_code) noexcept = 0;

  [[nodiscard]] virtual Traffic traffic() const = 0;

 protected:
  /// Enqueues the transport of a checked call on `stream`; implemented by the back ends.
  virtual void enqueue(Call call, accel::Stream& stream) = 0;
  /// For groups that wrap another: enqueue() of `inner`.
  static void enqueue_on(Group& inner, Call call, accel::Stream& stream);
  /// Number of the next collective of this group, the same on all ranks. Taken in the order of the
  /// calls.
  [[nodiscard]] std::uint64_t next_sequence() noexcept { return sequence_++; }

  RankContext& context_;
  accel::Device& device_;

 private:
  accel::Event start(Call call, accel::Stream& stream);
  accel::Event start_pairwise(Call call, std::vector<std::uint64_t>& counters, accel::Stream& s);
  accel::Event copy_alone(ConstTensorView src, TensorView dst, accel::Stream& stream);
  [[nodiscard]] Call sliced_call(Verb verb,
                                 std::span<const SlicedView> views,
                                 accel::Stream& stream) const;
  [[nodiscard]] std::byte* host_address(const std::byte* data, std::int64_t elems) const;
  [[noreturn]] void refuse(Verb verb, const std::string& what, const std::string& todo) const;
  void check_memory(Verb verb, ConstTensorView view, accel::Stream& stream) const;
  void check_disjoint(Verb verb, ConstTensorView src, ConstTensorView dst) const;
  void check_reducible(Verb verb, DType dtype, ReduceOp op) const;
  void check_peer(Verb verb, int peer) const;

  int rank_;
  int size_;
  std::string about_;
  std::uint64_t sequence_ = 0;
  std::vector<std::uint64_t> sent_;      ///< sends so far, by receiver
  std::vector<std::uint64_t> received_;  ///< receives so far, by sender
};

/// The meeting place of ranks that are threads of one process. Made once, shared by all of them.
class LocalHub;
[[nodiscard]] std::shared_ptr<LocalHub> make_local_hub(int ranks);
/// The group of all ranks of a hub, as rank `context.rank` sees it.
[[nodiscard]] std::unique_ptr<Group> make_local_group(std::shared_ptr<LocalHub> hub,
                                                      RankContext& context,
                                                      accel::Device& device);

/// What a link can do: full duplex, each rank has one of its own.
struct LinkShape {
  double bytes_per_s = std::numeric_limits<double>::infinity();  ///< each way
  double latency_s = 0.0;                                        ///< of each call
};
/// A network of nodes: ranks [k · ranks_per_node, (k + 1) · ranks_per_node) share node k.
struct NetworkShape {
  LinkShape link{};        ///< to the ranks of the same node
  int ranks_per_node = 0;  ///< 0: all ranks are on one node
  LinkShape inter_link{};  ///< to the ranks of other nodes, each rank one of its own
};
/// Group::about() for as long as it lives; then the calls of the group are for nothing in
/// particular.
class About {
 public:
  About(Group& group, std::string_view what) : group_(group) { group_.about(what); }
  About(const About&) = delete;
  About& operator=(const About&) = delete;
  About(About&&) = delete;
  About& operator=(About&&) = delete;
  ~About() { group_.about({}); }

 private:
  Group& group_;
};

/// Wraps a group so that every call ends no earlier than such a network would have delivered it:
/// a rank's bytes (the larger of in and out, as Traffic counts them) from and to its node go over
/// its link, those from and to other nodes over its inter-node link, both at the same time; each
/// takes bytes ÷ bandwidth after the transfers before it, plus the latency. Calls on several
/// streams and on groups split from it share the links in the order in which they reach them. Takes
/// no processor time. To try a slow network on one machine. InputError for a shape that makes no
/// sense.
[[nodiscard]] std::unique_ptr<Group> shape_network(std::unique_ptr<Group> group,
                                                   const NetworkShape& shape,
                                                   RankContext& context,
                                                   accel::Device& device);

/// MPI as long as the process runs: initialised by the constructor, finalised by the destructor,
/// which waits for the service thread, the only one that calls MPI. Make one in main, before any
/// group. Throws ResourceError if the build has no MPI or it cannot start.
class MpiSession {
 public:
  MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  MpiSession(MpiSession&&) = delete;
  MpiSession& operator=(MpiSession&&) = delete;
  ~MpiSession();

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// Ranks on this node.
  [[nodiscard]] int local_size() const noexcept;
  class Service;
  [[nodiscard]] Service& service() noexcept { return *service_; }

 private:
  std::unique_ptr<Service> service_;
};
/// Host bytes (category kStaging) that a group of the mpi back end takes at its first reduction and
/// keeps: two chunks of each peer.
[[nodiscard]] std::int64_t mpi_staging_bytes(int ranks) noexcept;
/// Whether this build has the MPI back end, and whether the process was started by mpirun
/// (OMPI_COMM_WORLD_SIZE, PMI_SIZE or PMIX_RANK in the environment).
[[nodiscard]] bool have_mpi() noexcept;
[[nodiscard]] bool under_mpirun();
[[nodiscard]] std::unique_ptr<Group> make_mpi_group(MpiSession& session,
                                                    RankContext& context,
                                                    accel::Device& device);

}  // namespace zero::comm
