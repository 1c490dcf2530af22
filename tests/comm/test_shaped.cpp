// A shaped link: when calls end, what they cost, and that nothing else changes.
#include <support/catch.h>
#include <support/run_ranks.h>
#include <zero/accel/device.h>
#include <zero/comm/group.h>
#include <zero/core/error.h>

#include <chrono>
#include <ctime>
#include <limits>

namespace {

using namespace zero;  // NOLINT(google-build-using-namespace): test file

constexpr std::int64_t kElems = 1 << 18;  // 1 MiB of fp32

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Outcome {
  double seconds = 0.0;
  comm::Traffic traffic;
  std::vector<float> values;
};

/// `calls` all-reduces of 1 MiB by two ranks, on one stream or by turns on two.
std::vector<Outcome> all_reduce(const std::optional<comm::NetworkShape>& shape,
                                int calls,
                                bool two) {
  return support::run_ranks(2, [&](support::RankEnv& rank) {
    std::unique_ptr<comm::Group> group = rank.group.split(0, rank.group.rank());
    if (shape) {
      group = comm::shape_network(std::move(group), *shape, rank.context, rank.device);
    }
    const auto other = group->split(0, group->rank());
    accel::Stream& first = rank.make_stream("first");
    accel::Stream& second = rank.make_stream("second");
    const accel::Buffer a = rank.device.allocate(kElems * 4, Category::kOther);
    const accel::Buffer b = rank.device.allocate(kElems * 4, Category::kOther);
    std::vector<float> values(static_cast<std::size_t>(kElems),
                              1.0F + static_cast<float>(group->rank()));
    for (const accel::Buffer* buffer : {&a, &b}) {
      rank.device.copy(
          view_of(std::span<const float>(values)), buffer->view(DType::kF32, Shape{kElems}), first);
    }
    first.synchronize();
    (void)group->barrier(first);
    first.synchronize();
    const double start = now();
    for (int call = 0; call < calls; ++call) {
      const bool odd = two && call % 2 == 1;
      const TensorView view = (odd ? b : a).view(DType::kF32, Shape{kElems});
      (void)(odd ? *other : *group)
          .all_reduce_in_place({&view, 1}, comm::ReduceOp::kMean, odd ? second : first);
    }
    first.synchronize();
    second.synchronize();
    Outcome outcome{.seconds = now() - start, .traffic = group->traffic(), .values = values};
    outcome.traffic += other->traffic();
    rank.device.copy(a.view(DType::kF32, Shape{kElems}), view_of(std::span(outcome.values)), first);
    first.synchronize();
    return outcome;
  });
}

}  // namespace

TEST_CASE("shaped link: calls end when such a link would have delivered them", "[comm][link]") {
  // Two ranks move 1 MiB each way in an all-reduce.
  const double megabyte = 1 << 20;
  const comm::NetworkShape shape{.link = {.bytes_per_s = 20.0 * megabyte, .latency_s = 0.005}};
  for (const bool two : {false, true}) {
    const double processor = processor_seconds();
    const auto shaped = all_reduce(shape, 4, two);
    CHECK(processor_seconds() - processor < 0.15);  // of 0.2 s and more that two ranks wait
    for (const Outcome& outcome : shaped) {
      // Four transfers behind each other; latencies of one stream add up too.
      const double least = 4.0 / 20.0 + (two ? 1 : 4) * 0.005;
      CHECK(outcome.seconds >= least);
      CHECK(outcome.seconds < least + 0.15);
    }
    const auto plain = all_reduce(std::nullopt, 4, two);
    CHECK(plain[0].values == shaped[0].values);
    CHECK(plain[1].traffic.bytes_out == shaped[1].traffic.bytes_out);
    CHECK(plain[1].traffic.collectives == shaped[1].traffic.collectives);
  }
}

TEST_CASE("shaped link: an infinite link waits for nothing, one without sense is refused",
          "[comm][link]") {
  CHECK(all_reduce(comm::NetworkShape{}, 4, false)[0].seconds < 0.1);
  CHECK_THROWS_AS(all_reduce(comm::NetworkShape{.link = {.bytes_per_s = 0.0}}, 1, false),
                  InputError);
  CHECK_THROWS_AS(all_reduce(comm::NetworkShape{.inter_link = {.latency_s = -1.0}}, 1, false),
                  InputError);
}

TEST_CASE("shaped link: what leaves the node takes its own link", "[comm][link]") {
  // Two nodes of two ranks: of the three peers that a rank exchanges 256 KiB with in each half of
  // an all-reduce, two are on the other node.
  const double megabyte = 1 << 20;
  const comm::NetworkShape network{.link = {.bytes_per_s = 40.0 * megabyte},
                                   .ranks_per_node = 2,
                                   .inter_link = {.bytes_per_s = 10.0 * megabyte}};
  const auto seconds = [&](bool across) {
    const auto all = support::run_ranks(4, [&](support::RankEnv& rank) {
      const auto world = comm::shape_network(
          rank.group.split(0, rank.group.rank()), network, rank.context, rank.device);
      // Pairs within a node, or pairs of which each has one rank on either node.
      const int color = across ? rank.group.rank() % 2 : rank.group.rank() / 2;
      const auto pair = world->split(color, rank.group.rank());
      accel::Stream& stream = rank.make_stream("stream");
      const accel::Buffer buffer = rank.device.allocate(kElems * 4, Category::kOther);
      const TensorView view = buffer.view(DType::kF32, Shape{kElems});
      rank.device.zero(view, stream);
      const double start = now();
      (void)pair->all_reduce_in_place({&view, 1}, comm::ReduceOp::kSum, stream);
      stream.synchronize();
      const double in_pair = now() - start;
      (void)world->all_reduce_in_place({&view, 1}, comm::ReduceOp::kSum, stream);
      stream.synchronize();
      return std::pair{in_pair, now() - start - in_pair};
    });
    return all[3];
  };
  const auto near = seconds(false);
  const auto far = seconds(true);
  CHECK(near.first >= 1.0 / 40.0);  // 1 MiB each way
  CHECK(near.first < 1.0 / 10.0);
  CHECK(far.first >= 1.0 / 10.0);
  CHECK(far.second >= 1.0 / 10.0);  // 2 · 2 · 256 KiB between the nodes
  CHECK(far.second < 1.0 / 10.0 + 0.1);
}
