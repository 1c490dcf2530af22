#include "cases.h"
#include <support/catch.h>
#include <support/run_ranks.h>
#include <zero/core/error.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zero {
namespace {

using comm::Payload;
using comm::ReduceOp;
using comm_cases::Case;
using comm_cases::Kind;
using support::RankEnv;
using support::run_ranks;

/// Device memory of `elems` fp32, zero.
struct Floats {
  Floats(RankEnv& env, accel::Stream& stream, std::int64_t elems)
      : buffer(env.device.allocate(static_cast<std::size_t>(elems) * 4, Category::kOther)),
        view(buffer.view(DType::kF32, Shape{elems})) {
    env.device.zero(view, stream);
  }
  accel::Buffer buffer;
  TensorView view;
};

/// Device memory with the host's values; read() waits for the stream.
template <class T>
struct OnDevice {
  OnDevice(RankEnv& env, accel::Stream& on, std::vector<T> values)
      : device(env.device),
        stream(on),
        host(std::move(values)),
        buffer(device.allocate(host.size() * sizeof(T), Category::kOther)),
        view(buffer.view(kDTypeOf<T>, Shape{static_cast<std::int64_t>(host.size())})) {
    device.copy(view_of(std::span<const T>(host)), view, stream);
  }
  std::vector<T> read() {
    device.copy(view, view_of(std::span<T>(host)), stream);
    stream.synchronize();
    return host;
  }
  accel::Device& device;
  accel::Stream& stream;
  std::vector<T> host;
  accel::Buffer buffer;
  TensorView view;
};

/// Text of the error of type E that f throws; "none" otherwise.
template <class E, class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "none";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> flatten(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> all;
  for (const auto& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

TEST_CASE("local: every verb on 1 to 8 ranks equals the rank-ordered oracle", "[comm][local]") {
  const auto cases = comm_cases::all_cases({0, 1, 7, 33});
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const auto failures = run_ranks(ranks, [&](RankEnv& env) {
      return comm_cases::run_all(cases, env.group, env.device, env.make_stream("comm"));
    });
    INFO("ranks " << ranks);
    CHECK(flatten(failures) == std::vector<std::string>{});
  }
}

TEST_CASE("local: sums of more than one block keep their order", "[comm][local]") {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI64}) {
    cases.push_back({.kind = Kind::kAllReduce, .dtypes = {dtype}, .count = 20011});
    cases.push_back({.kind = Kind::kScatterInPlace, .dtypes = {dtype}, .count = 9001, .begin = 1});
  }
  const auto failures = run_ranks(3, [&](RankEnv& env) {
    return comm_cases::run_all(cases, env.group, env.device, env.make_stream("comm"));
  });
  CHECK(flatten(failures) == std::vector<std::string>{});
}

TEST_CASE("local: maximum propagates NaN, mean of one rank changes nothing", "[comm][local]") {
  const auto got = run_ranks(3, [](RankEnv& env) {
    accel::Stream& stream = env.make_stream("comm");
    OnDevice<float> data(env, stream, {env.context.rank == 1 ? std::nanf("") : 1.0F, 2.0F});
    (void)env.group.all_reduce_in_place(std::vector{data.view}, ReduceOp::kMax, stream);
    return data.read();
  });
  for (const auto& host : got) {
    CHECK(std::isnan(host[0]));
    CHECK(host[1] == 2.0F);
  }
}

TEST_CASE("local: ranks that disagree all learn both calls", "[comm][local][faults]") {
  const auto errors = run_ranks(3, [](RankEnv& env) {
    accel::Stream& stream = env.make_stream("comm");
    const Floats data(env, stream, 960);
    (void)env.group.barrier(stream);
    const bool odd = env.context.rank == 1;
    const comm::SlicedView whole{data.view, 0, 320};
    const comm::SlicedView part{data.view, 0, 160};
    const accel::Event event =
        odd ? env.group.reduce_scatter_in_place(std::vector{part}, ReduceOp::kSum, stream)
            : env.group.all_gather_in_place(std::vector{whole}, stream);
    return error_of<PeerError>([&] { event.wait(); });
  });
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(contains(error, "rank 0 calls all_gather #1 of 960 fp32"));
    CHECK(contains(error, "rank 1 calls reduce_scatter(sum) #1 of 480 fp32"));
  }
}

TEST_CASE("local: disagreement in dtype, operator, root, payload and cut",
          "[comm][local][faults]") {
  const std::vector<std::function<accel::Event(RankEnv&, TensorView, bool, accel::Stream&)>> calls =
      {
          [](RankEnv& env, TensorView view, bool odd, accel::Stream& stream) {
            view.dtype = odd ? DType::kI32 : DType::kF32;
            return env.group.broadcast(view, 0, stream);
          },
          [](RankEnv& env, TensorView view, bool odd, accel::Stream& stream) {
            return env.group.all_reduce_in_place(
                std::vector{view}, odd ? ReduceOp::kMax : ReduceOp::kSum, stream);
          },
          [](RankEnv& env, TensorView view, bool odd, accel::Stream& stream) {
            return env.group.broadcast(view, odd ? 1 : 0, stream);
          },
          [](RankEnv& env, TensorView view, bool odd, accel::Stream& stream) {
            return env.group.broadcast(view, 0, stream, odd ? Payload::kData : Payload::kControl);
          },
          [](RankEnv& env, TensorView view, bool odd, accel::Stream& stream) {
            const std::vector parts = {view.slice(0, odd ? 4 : 6),
                                       view.slice(odd ? 4 : 6, odd ? 8 : 6)};
            return env.group.all_reduce_in_place(parts, ReduceOp::kSum, stream);
          },
      };
  for (const auto& call : calls) {
    const auto errors = run_ranks(2, [&](RankEnv& env) {
      accel::Stream& stream = env.make_stream("comm");
      const Floats data(env, stream, 12);
      const accel::Event event = call(env, data.view, env.context.rank == 1, stream);
      return error_of<PeerError>([&] { event.wait(); });
    });
    for (const std::string& error : errors) {
      INFO(error);
      CHECK(contains(error, "rank 0 calls"));
      CHECK(contains(error, "rank 1 calls"));
    }
  }
}

TEST_CASE("local: a send and a receive of other sizes are refused on both",
          "[comm][local][faults]") {
  const auto errors = run_ranks(2, [](RankEnv& env) {
    accel::Stream& stream = env.make_stream("comm");
    const Floats data(env, stream, 8);
    const accel::Event event = env.context.rank == 0
                                   ? env.group.send(data.view.slice(0, 5), 1, stream)
                                   : env.group.recv(data.view, 0, stream);
    return error_of<PeerError>([&] { event.wait(); });
  });
  for (const std::string& error : errors) {
    CHECK(contains(error, "rank 0 calls send #0 of 5 fp32 to rank 1"));
    CHECK(contains(error, "rank 1 calls recv #0 of 8 fp32 from rank 0"));
  }
}

TEST_CASE("local: a rank that stays away is named within the timeout", "[comm][local][faults]") {
  const auto start = std::chrono::steady_clock::now();
  const auto errors =
      run_ranks(3,
                [](RankEnv& env) {
                  accel::Stream& stream = env.make_stream("comm");
                  if (env.context.rank == 1) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(600));
                  }
                  return error_of<PeerError>([&] { env.group.barrier(stream).wait(); });
                },
                {.timeout_s = 0.2});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(contains(errors[0], "rank 1 did not arrive"));
  CHECK(contains(errors[2], "rank 1 did not arrive"));
  CHECK(contains(errors[1], "rank 1 did not arrive"));  // late: the others have gone
}

TEST_CASE("local: abort wakes everybody, split groups too", "[comm][local][faults]") {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_ranks(4, [](RankEnv& env) {
    const auto half = env.group.split(env.context.rank / 2, 0);
    accel::Stream& stream = env.make_stream("comm");
    if (env.context.rank == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      env.group.abort("the disk is full", 3);
      return error_of<PeerError>([&] { env.group.barrier(stream).wait(); });
    }
    comm::Group& group = env.context.rank == 2 ? *half : env.group;
    return error_of<PeerError>([&] { group.barrier(stream).wait(); });
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  for (const std::string& error : errors) {
    CHECK(contains(error, "rank 3 ended the run: the disk is full"));
  }
}

TEST_CASE("run_ranks: the original failure is rethrown, not its consequences", "[support]") {
  const auto run = [] {
    run_ranks(3, [](RankEnv& env) {
      accel::Stream& stream = env.make_stream("comm");
      if (env.context.rank == 2) {
        throw InputError("bad token");
      }
      env.group.barrier(stream).wait();
    });
  };
  CHECK(error_of<InputError>(run) == "bad token");
}

TEST_CASE("local: two groups on two streams in any order do not wait for each other",
          "[comm][local]") {
  const auto sums = run_ranks(3, [](RankEnv& env) {
    const auto twin = env.group.split(0, env.context.rank);
    accel::Stream& a = env.make_stream("a");
    accel::Stream& b = env.make_stream("b");
    const Floats first(env, a, 64);
    const Floats second(env, b, 64);
    for (int round = 0; round < 20; ++round) {
      const auto on_a = [&] {
        (void)env.group.all_reduce_in_place(std::vector{first.view}, ReduceOp::kSum, a);
      };
      const auto on_b = [&] {
        (void)twin->all_reduce_in_place(std::vector{second.view}, ReduceOp::kSum, b);
      };
      if ((round + env.context.rank) % 2 == 0) {
        on_a();
        on_b();
      } else {
        on_b();
        a.wait(b.record());  // group a of this rank comes only after b has ended everywhere
        on_a();
      }
    }
    a.synchronize();
    b.synchronize();
    return env.group.traffic().collectives + twin->traffic().collectives;
  });
  CHECK(sums == std::vector<std::uint64_t>(3, 40));
}

TEST_CASE("local: a collective ends while the compute stream is busy", "[comm][local]") {
  std::latch release(1);
  std::atomic<int> ended = 0;
  const auto was_busy = run_ranks(2, [&](RankEnv& env) {
    accel::Stream& compute = env.make_stream("compute");
    accel::Stream& stream = env.make_stream("comm");
    compute.host_task([&] { release.wait(); });
    const accel::Event computed = compute.record();
    const Floats data(env, stream, 100);
    env.group.all_reduce_in_place(std::vector{data.view}, ReduceOp::kSum, stream).wait();
    const bool busy = !computed.ready();
    if (++ended == 2) {
      release.count_down();
    }
    compute.synchronize();
    return busy;
  });
  CHECK(was_busy[0]);
  CHECK(was_busy[1]);
}

TEST_CASE("local: traffic follows the formulas", "[comm][local]") {
  for (const int ranks : {1, 2, 4}) {
    const std::vector<Case> cases = {
        {.kind = Kind::kGatherInPlace,
         .dtypes = {DType::kBF16, DType::kF32},
         .count = 20,
         .rest = 4},
        {.kind = Kind::kScatterInPlace, .dtypes = {DType::kF32}, .count = 20},
        {.kind = Kind::kAllReduce, .dtypes = {DType::kF32}, .count = 80},
        {.kind = Kind::kGather, .dtypes = {DType::kI64}, .count = 3},
        {.kind = Kind::kScatter, .dtypes = {DType::kF16}, .count = 8},
        {.kind = Kind::kAllToAll, .dtypes = {DType::kU8}, .count = 5},
    };
    std::uint64_t bytes = 0;
    for (const Case& c : cases) {
      bytes += comm_cases::bytes_each_way(c, ranks);
    }
    const auto traffic = run_ranks(ranks, [&](RankEnv& env) {
      accel::Stream& stream = env.make_stream("comm");
      (void)comm_cases::run_all(cases, env.group, env.device, stream);
      const Floats data(env, stream, 8);
      (void)env.group.all_reduce_in_place(
          std::vector{data.view}, ReduceOp::kMax, stream, Payload::kControl);
      (void)env.group.broadcast(data.view, 0, stream, Payload::kControl);
      stream.synchronize();
      return env.group.traffic();
    });
    for (int rank = 0; rank < ranks; ++rank) {
      const comm::Traffic& t = traffic[static_cast<std::size_t>(rank)];
      const auto others = static_cast<std::uint64_t>(ranks - 1);
      const std::uint64_t control = 2 * 32 * others / static_cast<std::uint64_t>(ranks);
      INFO("ranks " << ranks << " rank " << rank);
      CHECK(t.bytes_in == bytes);
      CHECK(t.bytes_out == bytes);
      CHECK(t.control_bytes_in == control + (rank > 0 ? 32 : 0));
      CHECK(t.control_bytes_out == control + (rank == 0 ? 32 * others : 0));
      CHECK(t.collectives == (ranks > 1 ? cases.size() : 0));
    }
  }
}

TEST_CASE("local: split orders by key and keeps the parent usable", "[comm][local]") {
  const auto got = run_ranks(5, [](RankEnv& env) {
    const int rank = env.context.rank;
    const auto child = env.group.split(rank % 2, -rank);
    const auto grandchild = child->split(child->rank() == 0 ? 7 : 3, 0);
    accel::Stream& stream = env.make_stream("comm");
    const OnDevice<std::int32_t> mine(env, stream, {rank});
    OnDevice<std::int32_t> all(
        env, stream, std::vector<std::int32_t>(static_cast<std::size_t>(child->size())));
    (void)child->all_gather(mine.view, all.view, stream);
    (void)env.group.barrier(stream);
    return std::make_pair(all.read(),
                          std::vector{child->rank(), grandchild->rank(), grandchild->size()});
  });
  for (int rank = 0; rank < 5; ++rank) {
    const auto& [all, places] = got[static_cast<std::size_t>(rank)];
    CHECK(all == (rank % 2 == 0 ? std::vector{4, 2, 0} : std::vector{3, 1}));
    const int place = rank % 2 == 0 ? (4 - rank) / 2 : (3 - rank) / 2;
    const int others = rank % 2 == 0 ? 2 : 1;
    CHECK(places == (place == 0 ? std::vector{0, 0, 1} : std::vector{place, place - 1, others}));
  }
}

TEST_CASE("local: two groups used by their own ranks at the same time", "[comm][local]") {
  const auto cases = comm_cases::all_cases({5});
  const auto failures = run_ranks(4, [&](RankEnv& env) {
    const auto half = env.group.split(env.context.rank % 2, 0);
    return comm_cases::run_all(cases, *half, env.device, env.make_stream("comm"));
  });
  CHECK(flatten(failures) == std::vector<std::string>{});
}

TEST_CASE("group: on a null stream nothing happens", "[comm]") {
  const auto traffic = run_ranks(2, [](RankEnv& env) {
    const auto nothing = env.device.make_null_stream();
    const TensorView counted{nullptr, DType::kF32, Shape{4}};
    const comm::SlicedView sliced{counted, 0, 2};
    (void)env.group.all_gather_in_place(std::vector{sliced}, *nothing);
    (void)env.group.all_reduce_in_place(std::vector{counted}, ReduceOp::kSum, *nothing);
    env.group.broadcast(counted, 0, *nothing).wait();
    env.group.barrier(env.make_stream("comm")).wait();
    return env.group.traffic();
  });
  CHECK(traffic[0].collectives == 0);
  CHECK(traffic[1].bytes_in == 0);
}

TEST_CASE("group: wrong arguments are refused before anything is sent", "[comm][faults]") {
  const auto results = run_ranks(2, [](RankEnv& env) {
    accel::Stream& stream = env.make_stream("comm");
    const Floats data(env, stream, 12);
    const TensorView view = data.view;
    const auto part = [&](std::int64_t begin, std::int64_t count) {
      return view.slice(begin, count);
    };
    TensorView bytes = part(0, 2);
    bytes.dtype = DType::kU8;
    TensorView ints = part(0, 2);
    ints.dtype = DType::kI32;
    const TensorView absent{nullptr, DType::kF32, Shape{4}};
    const std::vector<std::function<void()>> calls = {
        [&] { (void)env.group.all_gather(part(0, 2), part(4, 5), stream); },
        [&] { (void)env.group.all_gather(part(0, 2), part(1, 4), stream); },
        [&] { (void)env.group.all_gather(ints, part(4, 4), stream); },
        [&] { (void)env.group.reduce_scatter(part(0, 5), part(6, 2), ReduceOp::kSum, stream); },
        [&] { (void)env.group.all_to_all(part(0, 3), part(4, 3), stream); },
        [&] { (void)env.group.broadcast(view, 2, stream); },
        [&] { (void)env.group.broadcast(absent, 0, stream); },
        [&] { (void)env.group.send(view, env.context.rank, stream); },
        [&] { (void)env.group.recv(view, -1, stream); },
        [&] { (void)env.group.split(-1, 0); },
        [&] {
          (void)env.group.all_gather_in_place(std::vector{comm::SlicedView{part(0, 5), 0, 2}},
                                              stream);
        },
        [&] {
          (void)env.group.all_gather_in_place(std::vector{comm::SlicedView{view, 4, 3}}, stream);
        },
        [&] {
          (void)env.group.reduce_scatter_in_place(
              std::vector{comm::SlicedView{view, -1, 3}}, ReduceOp::kSum, stream);
        },
        [&] { (void)env.group.all_reduce_in_place(std::vector{ints}, ReduceOp::kMean, stream); },
        [&] { (void)env.group.all_reduce_in_place(std::vector{bytes}, ReduceOp::kSum, stream); },
    };
    std::vector<std::string> accepted;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (error_of<InputError>(calls[i]) == "none") {
        accepted.push_back("call " + std::to_string(i));
      }
    }
    env.group.barrier(stream).wait();  // nothing was sent, so the ranks still agree
    return accepted;
  });
  CHECK(flatten(results) == std::vector<std::string>{});
}

}  // namespace
}  // namespace zero
