#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "cases.h"
#include "mpi_world.h"
#include <support/catch.h>
#include <support/run_ranks.h>
#include <zero/core/error.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <vector>

// Runs under mpirun: every rank makes the same calls and checks its own results; a check that fails
// on any rank makes its process, and so mpirun, fail.
namespace zero {
namespace {

using comm::Payload;
using comm::ReduceOp;
using comm_cases::Case;
using comm_cases::Kind;
using comm_cases::MpiWorld;

std::unique_ptr<MpiWorld> world_of_process;
MpiWorld& world() {
  return *world_of_process;
}

/// MPI lives from before the first case to after the last, not in a static object's destructor.
struct MpiLifetime : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override {
    world_of_process = std::make_unique<MpiWorld>(30.0);
  }
  void testRunEnded(const Catch::TestRunStats&) override { world_of_process.reset(); }
};
CATCH_REGISTER_LISTENER(MpiLifetime)

std::string peer_error(const accel::Event& event) {
  try {
    event.wait();
  } catch (const PeerError& error) {
    return error.what();
  }
  return "none";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("mpi: every verb equals the rank-ordered oracle", "[comm][mpi]") {
  const auto stream = world().device->make_stream("comm");
  const auto failures = comm_cases::run_all(
      comm_cases::all_cases({0, 1, 7, 33}), *world().group, *world().device, *stream);
  CHECK(failures == std::vector<std::string>{});
}

TEST_CASE("mpi: messages of several chunks equal the oracle", "[comm][mpi]") {
  const auto stream = world().device->make_stream("comm");
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    cases.push_back({.kind = Kind::kScatterInPlace,
                     .dtypes = {dtype, DType::kF32},
                     .count = 200003,
                     .begin = 1,
                     .rest = 2});
    cases.push_back({.kind = Kind::kAllReduce, .dtypes = {dtype}, .count = 300007});
    cases.push_back({.kind = Kind::kGatherInPlace, .dtypes = {dtype}, .count = 100001});
  }
  CHECK(comm_cases::run_all(cases, *world().group, *world().device, *stream) ==
        std::vector<std::string>{});
}

TEST_CASE("mpi: results have the same bits as those of the local back end", "[comm][mpi]") {
  const auto stream = world().device->make_stream("comm");
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      cases.push_back({.kind = Kind::kAllReduce, .dtypes = {dtype}, .op = op, .count = 70001});
      cases.push_back({.kind = Kind::kScatterInPlace, .dtypes = {dtype}, .op = op, .count = 5003});
    }
  }
  for (const Case& c : cases) {
    const auto local = support::run_ranks(world().session.size(), [&](support::RankEnv& env) {
      return comm_cases::execute(c, env.group, env.device, env.make_stream("comm"));
    });
    const auto got = comm_cases::execute(c, *world().group, *world().device, *stream);
    const auto rank = static_cast<std::size_t>(world().session.rank());
    CHECK(comm_cases::difference(c, got, local[rank]).empty());
  }
}

TEST_CASE("mpi: ranks that disagree all learn both calls, and can go on", "[comm][mpi][faults]") {
  comm::Group& group = *world().group;
  {
    const auto stream = world().device->make_stream("comm");
    const accel::Buffer buffer = world().device->allocate(48 * 4, Category::kOther);
    const TensorView view = buffer.view(DType::kF32, Shape{48});
    const std::string error = peer_error(
        group.rank() == 1 ? group.broadcast(view, 0, *stream)
                          : group.all_reduce_in_place(std::vector{view}, ReduceOp::kSum, *stream));
    INFO(error);
    CHECK(contains(error, "rank 0 calls all_reduce(sum) #"));
    CHECK(contains(error, "rank 1 calls broadcast #"));
    CHECK(contains(error, "of 48 fp32"));
  }
  const auto stream = world().device->make_stream("comm");
  CHECK(peer_error(group.barrier(*stream)) == "none");
}

TEST_CASE("mpi: a send and a receive of other sizes are refused on both", "[comm][mpi][faults]") {
  comm::Group& group = *world().group;
  const auto stream = world().device->make_stream("comm");
  const accel::Buffer buffer = world().device->allocate(48 * 4, Category::kOther);
  const TensorView view = buffer.view(DType::kF32, Shape{48});
  if (group.rank() < 2) {
    const std::string error =
        peer_error(group.rank() == 0 ? group.send(view.slice(0, 5), 1, *stream)
                                     : group.recv(view.slice(0, 8), 0, *stream));
    INFO(error);
    CHECK(contains(error, "of 5 fp32 to rank 1"));
    CHECK(contains(error, "of 8 fp32 from rank 0"));
  }
}

TEST_CASE("mpi: groups and streams do not wait for each other's order", "[comm][mpi]") {
  comm::Group& group = *world().group;
  const auto twin = group.split(0, group.rank());
  const auto a = world().device->make_stream("a");
  const auto b = world().device->make_stream("b");
  const accel::Buffer first = world().device->allocate(1 << 20, Category::kOther);
  const accel::Buffer second = world().device->allocate(1 << 20, Category::kOther);
  const std::vector on_a = {first.view(DType::kF32, Shape{1 << 18})};
  const std::vector on_b = {second.view(DType::kF32, Shape{1 << 18})};
  world().device->zero(on_a[0], *a);
  world().device->zero(on_b[0], *b);
  for (int round = 0; round < 10; ++round) {
    if ((round + group.rank()) % 2 == 0) {
      (void)group.all_reduce_in_place(on_a, ReduceOp::kSum, *a);
      (void)twin->all_reduce_in_place(on_b, ReduceOp::kSum, *b);
    } else {
      (void)twin->all_reduce_in_place(on_b, ReduceOp::kSum, *b);
      a->wait(b->record());  // group a of this rank comes only after b has ended everywhere
      (void)group.all_reduce_in_place(on_a, ReduceOp::kSum, *a);
    }
  }
  a->synchronize();
  b->synchronize();
  CHECK(twin->traffic().collectives == 10);
}

TEST_CASE("mpi: one group's reductions on two streams in another order", "[comm][mpi]") {
  comm::Group& group = *world().group;
  const auto a = world().device->make_stream("a");
  const auto b = world().device->make_stream("b");
  const accel::Buffer first = world().device->allocate(1 << 20, Category::kOther);
  const accel::Buffer second = world().device->allocate(1 << 20, Category::kOther);
  const std::vector on_a = {first.view(DType::kF32, Shape{1 << 18})};
  const std::vector on_b = {second.view(DType::kF32, Shape{1 << 18})};
  world().device->zero(on_a[0], *a);
  world().device->zero(on_b[0], *b);
  std::latch gate(1);
  if (group.rank() % 2 == 0) {
    a->host_task([&] { gate.wait(); });  // these ranks end the second call before the first
  }
  (void)group.all_reduce_in_place(on_a, ReduceOp::kSum, *a);
  const accel::Event last = group.all_reduce_in_place(on_b, ReduceOp::kSum, *b);
  CHECK(peer_error(last) == "none");
  gate.count_down();
  a->synchronize();
}

TEST_CASE("mpi: a collective ends while the compute stream is busy", "[comm][mpi]") {
  std::latch release(1);
  const auto compute = world().device->make_stream("compute");
  const auto stream = world().device->make_stream("comm");
  compute->host_task([&] { release.wait(); });
  const accel::Event computed = compute->record();
  const Case c{.kind = Kind::kAllReduce, .dtypes = {DType::kF32}, .count = 100};
  (void)comm_cases::execute(c, *world().group, *world().device, *stream);
  CHECK_FALSE(computed.ready());
  release.count_down();
  compute->synchronize();
}

TEST_CASE("mpi: traffic follows the formulas, control apart", "[comm][mpi]") {
  const int ranks = world().session.size();
  const auto others = static_cast<std::uint64_t>(ranks - 1);
  const auto group = world().group->split(0, world().session.rank());
  const auto stream = world().device->make_stream("comm");
  const std::vector<Case> cases = {
      {.kind = Kind::kGatherInPlace, .dtypes = {DType::kBF16, DType::kF32}, .count = 20, .rest = 4},
      {.kind = Kind::kScatterInPlace, .dtypes = {DType::kF32}, .count = 70000},
      {.kind = Kind::kAllReduce, .dtypes = {DType::kF32}, .count = 1200},
      {.kind = Kind::kGather, .dtypes = {DType::kI64}, .count = 3},
      {.kind = Kind::kScatter, .dtypes = {DType::kF16}, .count = 8},
      {.kind = Kind::kAllToAll, .dtypes = {DType::kU8}, .count = 5},
  };
  std::uint64_t bytes = 0;
  for (const Case& c : cases) {
    bytes += comm_cases::bytes_each_way(c, ranks);
  }
  CHECK(comm_cases::run_all(cases, *group, *world().device, *stream).empty());
  const comm::Traffic data = group->traffic();
  CHECK(data.bytes_in == bytes);
  CHECK(data.bytes_out == bytes);
  CHECK(data.control_bytes_in == 64 * others * cases.size());
  CHECK(data.collectives == cases.size());

  const accel::Buffer buffer = world().device->allocate(12 * 8, Category::kOther);
  const std::vector views = {buffer.view(DType::kI64, Shape{12})};
  world().device->zero(views[0], *stream);
  (void)group->all_reduce_in_place(views, ReduceOp::kMax, *stream, Payload::kControl);
  stream->synchronize();
  const comm::Traffic after = group->traffic();
  CHECK(after.bytes_in == bytes);
  CHECK(after.control_bytes_in - data.control_bytes_in ==
        64 * others + 2 * 96 * others / static_cast<std::uint64_t>(ranks));
  CHECK(after.collectives == cases.size());
}

TEST_CASE("mpi: staging is taken once a group, as planned, and given back", "[comm][mpi]") {
  const auto staging = [] {
    return world()
        .context.ledger.use(MemorySpace::kHost)
        .current_bytes[static_cast<std::size_t>(Category::kStaging)];
  };
  const std::int64_t before = staging();
  {
    const auto group = world().group->split(0, 0);
    const auto stream = world().device->make_stream("comm");
    const Case gather{.kind = Kind::kGather, .dtypes = {DType::kF32}, .count = 10};
    (void)comm_cases::execute(gather, *group, *world().device, *stream);
    CHECK(staging() == before);
    const Case reduce{.kind = Kind::kAllReduce, .dtypes = {DType::kF32}, .count = 10};
    (void)comm_cases::execute(reduce, *group, *world().device, *stream);
    (void)comm_cases::execute(reduce, *group, *world().device, *stream);
    CHECK(staging() == before + comm::mpi_staging_bytes(group->size()));
  }
  CHECK(staging() == before);
}

TEST_CASE("mpi: split makes groups that work at the same time", "[comm][mpi]") {
  const int rank = world().session.rank();
  const auto part = world().group->split(rank % 2, -rank);
  const int members = (world().session.size() + (rank % 2 == 0 ? 1 : 0)) / 2;
  CHECK(part->size() == members);
  CHECK(part->rank() == members - 1 - rank / 2);
  const auto stream = world().device->make_stream("comm");
  CHECK(comm_cases::run_all(comm_cases::all_cases({5}), *part, *world().device, *stream) ==
        std::vector<std::string>{});
}

}  // namespace
}  // namespace zero
