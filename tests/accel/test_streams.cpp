#include "accel/bench_device.h"
#include <support/catch.h>
#include <zero/accel/arena.h>
#include <zero/core/error.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <thread>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

}  // namespace

TEST_CASE("streams: tasks run in order, on another thread", "[accel][stream]") {
  BenchDevice bench;
  std::vector<int> order;
  std::thread::id worker;
  for (int i = 0; i < 100; ++i) {
    bench.stream->host_task([&, i] {
      order.push_back(i);
      worker = std::this_thread::get_id();
    });
  }
  bench.stream->synchronize();
  CHECK(order.size() == 100);
  CHECK(std::is_sorted(order.begin(), order.end()));
  CHECK(worker != std::this_thread::get_id());
}

TEST_CASE("streams: a held stream does not stop another one, and an event orders them",
          "[accel][stream]") {
  BenchDevice bench;
  const auto other = bench.device->make_stream("other");
  std::latch gate(1);
  std::atomic<int> value{0};
  bench.stream->host_task([&] {
    gate.wait();
    value = 1;
  });
  const accel::Event held = bench.stream->record();
  other->host_task([&] { value = 7; });
  other->synchronize();  // would never return if streams ran in line
  CHECK(value == 7);
  CHECK(!held.ready());
  int seen = 0;
  other->wait(held);
  other->host_task([&] { seen = value; });
  gate.count_down();
  other->synchronize();
  CHECK(held.ready());
  CHECK(seen == 1);
}

TEST_CASE("streams: an error poisons its stream and whoever waits for it", "[accel][stream]") {
  BenchDevice bench;
  const auto other = bench.device->make_stream("other");
  bool ran = false;
  bench.stream->host_task([] { throw IoError("disk on fire"); });
  bench.stream->host_task([&] { ran = true; });
  other->wait(bench.stream->record());
  other->host_task([&] { ran = true; });
  CHECK_THROWS_WITH(bench.stream->synchronize(), "disk on fire");
  CHECK_THROWS_WITH(bench.stream->record().wait(), "disk on fire");
  CHECK_THROWS_WITH(other->synchronize(), "disk on fire");
  CHECK(!ran);
}

TEST_CASE("streams: a destroyed stream lets nobody wait for ever", "[accel][stream]") {
  BenchDevice bench;
  auto doomed = bench.device->make_stream("doomed");
  std::latch started(1);
  std::latch gate(1);
  bool ran = false;
  doomed->host_task([&] {
    started.count_down();
    gate.wait();
  });
  doomed->host_task([&] { ran = true; });
  const accel::Event event = doomed->record();
  bench.stream->wait(event);
  started.wait();
  std::thread opener([&] { gate.count_down(); });
  doomed.reset();
  opener.join();
  REQUIRE(event.ready());
  // The second task ran before the stream ended, or was dropped: then its event says so, here and
  // to whoever waits for it.
  if (ran) {
    CHECK_NOTHROW(event.wait());
    CHECK_NOTHROW(bench.stream->synchronize());
  } else {
    CHECK_THROWS_WITH(event.wait(), Catch::Contains("doomed"));
    CHECK_THROWS_WITH(bench.stream->synchronize(), Catch::Contains("doomed"));
  }
}

TEST_CASE("streams: events carry memory from stream to stream", "[accel][stream]") {
  BenchDevice bench;
  std::vector<std::unique_ptr<accel::Stream>> ring;
  for (const char* name : {"a", "b", "c", "d"}) {
    ring.push_back(bench.device->make_stream(name));
  }
  int turns = 0;  // no atomic: only one stream's task at a time may touch it
  for (std::size_t i = 0; i < 400; ++i) {
    accel::Stream& mine = *ring[i % ring.size()];
    mine.host_task([&turns, i] { turns = turns == static_cast<int>(i) ? turns + 1 : -1000; });
    ring[(i + 1) % ring.size()]->wait(mine.record());
  }
  for (const auto& stream : ring) {
    stream->synchronize();
  }
  CHECK(turns == 400);
}

TEST_CASE("streams: upload keeps its values alive by itself", "[accel][stream]") {
  BenchDevice bench;
  const TensorView to = bench.raw(DType::kU8, Shape{4});
  std::latch gate(1);
  bench.stream->host_task([&] { gate.wait(); });
  std::shared_ptr<std::byte[]> values(new std::byte[4]{});
  values[2] = std::byte{42};
  std::weak_ptr<std::byte[]> watched = values;
  bench.device->upload(std::move(values), to, *bench.stream);
  CHECK(!watched.expired());
  gate.count_down();
  CHECK(bench.read_as<std::uint8_t>(to) == std::vector<std::uint8_t>{0, 0, 42, 0});
  CHECK(watched.expired());
}

TEST_CASE("streams: nothing happens on a null stream", "[accel][stream]") {
  BenchDevice bench;
  const auto nothing = bench.device->make_null_stream();
  bool ran = false;
  nothing->host_task([&] { ran = true; });
  nothing->synchronize();
  CHECK(nothing->record().ready());
  CHECK(!ran);
}

TEST_CASE("memory: every allocation is in the ledger as long as it lives, moves included",
          "[accel][memory]") {
  BenchDevice bench;
  const auto bytes_now = [&] { return bench.context.ledger.use(MemorySpace::kDevice).total_bytes; };
  {
    accel::Buffer first = bench.device->allocate(1000, Category::kMaster);
    accel::Buffer second = bench.device->allocate(5 << 20, Category::kMaster);
    CHECK(bytes_now() == 1000 + (5 << 20));
    first = std::move(second);
    CHECK(bytes_now() == 5 << 20);
    CHECK_THROWS_AS(first.view(DType::kF32, Shape{(5 << 18) + 1}), InternalError);
  }
  CHECK(bytes_now() == 0);
  CHECK_THROWS_AS(bench.device->allocate(std::size_t{1} << 62U, Category::kMaster), ResourceError);
  CHECK(bytes_now() == 0);
}

TEST_CASE("memory: alignment of every size and space is as stated", "[accel][memory]") {
  BenchDevice bench;
  for (const std::size_t bytes : {0U, 1U, 5000U, 1U << 20U, (1U << 20U) + 1U}) {
    const auto remainder = [&](MemorySpace space, std::uintptr_t alignment) {
      const accel::Buffer buffer = bench.device->allocate(bytes, Category::kOther, space);
      return reinterpret_cast<std::uintptr_t>(bench.device->host_pointer(buffer.data())) %
             alignment;
    };
    CHECK(remainder(MemorySpace::kDevice, bytes < (1U << 20U) ? 64 : 4096) == 0);
    CHECK(remainder(MemorySpace::kHost, 4096) == 0);
  }
}

TEST_CASE("memory: what is freed goes back to the system", "[accel][memory]") {
  const auto resident_pages = [] {
    std::ifstream statm("/proc/self/statm");
    std::int64_t size = 0;
    std::int64_t resident = 0;
    statm >> size >> resident;
    return resident;
  };
  BenchDevice bench;
  const std::int64_t before = resident_pages();
  {
    const accel::Buffer buffer = bench.device->allocate(64U << 20U, Category::kOther);
    bench.device->zero(buffer.view(DType::kU8, Shape{64 << 20}), *bench.stream);
    bench.stream->synchronize();
    CHECK(resident_pages() - before > 12000);  // of 16384
  }
  CHECK(resident_pages() - before < 4000);
}

TEST_CASE("memory: kernels' scratch is booked as other and ends with its stream",
          "[accel][memory]") {
  BenchDevice bench;
  const TensorView a = bench.tensor(DType::kBF16, Shape{64, 64}, numbers(64 * 64, 1));
  const TensorView c = bench.raw(DType::kBF16, Shape{64, 64});
  bench.kernels().gemm({a, a, c}, *bench.stream);
  bench.stream->synchronize();
  const MemoryUse use = bench.context.ledger.use(MemorySpace::kHost);
  CHECK(use.current_bytes.at(static_cast<std::size_t>(Category::kOther)) >= 3 * 64 * 64 * 4);
  bench.stream.reset();
  CHECK(bench.context.ledger.use(MemorySpace::kHost).total_bytes == 0);
}

TEST_CASE("arena: last-in first-out, aligned, counted without memory", "[accel][memory]") {
  BenchDevice bench;
  const accel::Buffer buffer = bench.device->allocate(1024, Category::kActivations);
  accel::Arena arena(buffer);
  accel::Arena counter;
  for (accel::Arena* each : {&arena, &counter}) {
    const TensorView first = each->take(DType::kF32, Shape{3});
    const std::size_t mark = each->mark();
    CHECK(mark == 64);
    {
      const accel::Arena::Scope scope(*each);
      const TensorView second = each->take(DType::kBF16, Shape{100});
      CHECK(reinterpret_cast<std::uintptr_t>(second.data) % 64 == 0);
      CHECK(first);
    }
    CHECK(each->mark() == mark);
    CHECK(each->peak_bytes() == 64 + 256);
  }
  CHECK_THROWS_AS(arena.take(DType::kF32, Shape{1000}), ResourceError);
  CHECK(counter.take(DType::kF32, Shape{1000}));
}
