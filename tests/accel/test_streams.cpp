#include "accel/bench_device.h"
#include <support/catch.h>
#include <zero/accel/arena.h>
#include <zero/core/error.h>

#include <atomic>
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
  doomed->host_task([&] {
    started.count_down();
    gate.wait();
  });
  doomed->host_task([] {});
  const accel::Event event = doomed->record();
  started.wait();
  std::thread opener([&] { gate.count_down(); });
  doomed.reset();
  opener.join();
  if (!event.ready()) {
    FAIL("the event of a dropped task never happens");
  }
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
