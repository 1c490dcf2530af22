// AioEngine: what is written comes back, whatever the sizes, options and faults.
#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/offload/aio_engine.h>

#include <fmt/format.h>

#include <cerrno>
#include <memory>
#include <numeric>
#include <vector>

namespace zero::offload {
namespace {

using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t bytes, unsigned seed) {
  Bytes values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525U + 1013904223U;
    values[i] = static_cast<std::byte>(seed >> 24U);
  }
  return values;
}

/// What goes wrong at one call of a queue.
struct Fault {
  enum class Kind { kNone, kResult, kSubmit, kPartialSubmit, kShort };
  Kind kind = Kind::kNone;
  int error = 0;  ///< of kResult and kSubmit
  int at = 0;     ///< number of the request, or of the submission, from 0
  int how_often = 1;
};

/// The calls of one queue, with a fault in them.
class FaultyQueue final : public AioQueue {
 public:
  FaultyQueue(std::unique_ptr<AioQueue> queue, const Fault& fault, int& requests)
      : queue_(std::move(queue)), fault_(fault), requests_(requests) {}

  [[nodiscard]] int submit(std::span<const AioRequest> requests) override {
    const int number = submissions_++;
    if (fault_.kind == Fault::Kind::kSubmit && hits(number)) {
      return -fault_.error;
    }
    std::vector<AioRequest> passed(requests.begin(), requests.end());
    if (fault_.kind == Fault::Kind::kPartialSubmit) {
      passed.resize(1);
    }
    if (fault_.kind == Fault::Kind::kShort && hits(requests_) && passed[0].bytes > kIoAlignBytes) {
      passed.resize(1);
      passed[0].bytes = passed[0].bytes / 2 / kIoAlignBytes * kIoAlignBytes;
    }
    if (fault_.kind == Fault::Kind::kResult && hits(requests_)) {
      refused_.push_back({requests[0].tag, -fault_.error});
      ++requests_;
      return 1;
    }
    const int taken = queue_->submit(passed);
    requests_ += taken;
    return taken;
  }

  [[nodiscard]] int reap(std::span<AioCompletion> done) override {
    if (!refused_.empty()) {
      done[0] = refused_.back();
      refused_.pop_back();
      return 1;
    }
    return queue_->reap(done);
  }

 private:
  [[nodiscard]] bool hits(int number) const {
    return number >= fault_.at && number < fault_.at + fault_.how_often;
  }

  std::unique_ptr<AioQueue> queue_;
  Fault fault_;
  int& requests_;
  int submissions_ = 0;
  std::vector<AioCompletion> refused_;
};

AioOptions small_blocks(bool single_submit = false) {
  AioOptions options;
  options.single_submit = single_submit;
  options.block_size = 8192;
  options.queue_depth = 4;
  return options;
}

/// A file of whole blocks in a folder of its own, and an engine on it.
struct Bench {
  explicit Bench(const AioOptions& options = small_blocks(),
                 const AioQueueFactory& make_queue = make_kernel_queue)
      : file(File::create(folder / "file")), engine(options, log, make_queue) {
    file.file.reserve(kFileBytes);
  }
  explicit Bench(const Fault& fault)
      : Bench(small_blocks(fault.kind != Fault::Kind::kPartialSubmit),
              [this, fault](int depth, std::string& why) {
                auto queue = make_kernel_queue(depth, why);
                queue = queue != nullptr ? std::move(queue) : make_blocking_queue();
                return std::make_unique<FaultyQueue>(std::move(queue), fault, requests);
              }) {}

  /// Writes, reads back and compares `bytes` at `offset`.
  bool round_trip(std::uint64_t offset, std::size_t bytes, unsigned seed) {
    const Bytes out = pattern(bytes, seed);
    Bytes in(bytes);
    engine.write(file, offset, out).wait();
    engine.read(file, offset, in).wait();
    return in == out;
  }

  static constexpr std::size_t kFileBytes = 256 * kIoAlignBytes;
  int requests = 0;
  support::TemporaryFolder folder;
  Log log{0, LogLevel::kError};
  AioFile file;
  AioEngine engine;
};

std::string failure(Bench& bench) {
  try {
    (void)bench.round_trip(0, 10 * 8192, 1);
  } catch (const IoError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("aio: any position, length and memory, with every option", "[offload][aio]") {
  for (const bool single : {false, true}) {
    for (const bool overlap : {false, true}) {
      for (const int threads : {1, 3}) {
        for (const AioQueueFactory& queue :
             {AioQueueFactory(make_kernel_queue),
              AioQueueFactory([](int, std::string& why) -> std::unique_ptr<AioQueue> {
                why = "the test has none";
                return nullptr;
              })}) {
          AioOptions options = small_blocks();
          options.single_submit = single;
          options.overlap_events = overlap;
          options.intra_op_parallelism = threads;
          Bench bench(options, queue);
          unsigned seed = 0;
          for (const std::uint64_t offset : {0, 511, 20'481}) {
            for (const std::size_t bytes : {0, 1, 4096, 8191, 131'072}) {
              INFO(offset << " + " << bytes << ", threads " << threads);
              CHECK(bench.round_trip(offset, bytes, ++seed));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("aio: what lies beside a transfer stays", "[offload][aio]") {
  Bench bench;
  const Bytes before = pattern(Bench::kFileBytes, 7);
  bench.engine.write(bench.file, 0, before).wait();
  Bytes expected = before;
  const Bytes part = pattern(10'000, 8);
  std::copy(part.begin(), part.end(), expected.begin() + 5'001);
  bench.engine.write(bench.file, 5'001, part).wait();
  Bytes after(Bench::kFileBytes);
  bench.engine.read(bench.file, 0, after).wait();
  CHECK(after == expected);
}

TEST_CASE("aio: many transfers in flight", "[offload][aio]") {
  AioOptions options = small_blocks();
  options.intra_op_parallelism = 2;
  Bench bench(options);
  constexpr std::size_t kParts = 16;
  constexpr std::size_t kPart = Bench::kFileBytes / kParts;
  const Bytes out = pattern(Bench::kFileBytes, 3);
  Bytes in(Bench::kFileBytes);
  {
    std::vector<IoTicket> tickets;
    for (std::size_t i = 0; i < kParts; ++i) {
      tickets.push_back(
          bench.engine.write(bench.file, i * kPart, std::span(out).subspan(i * kPart, kPart)));
    }
  }  // tickets wait for their transfers
  std::vector<IoTicket> tickets;
  for (std::size_t i = kParts; i > 0; --i) {
    const std::size_t at = (i - 1) * kPart;
    tickets.push_back(bench.engine.read(bench.file, at, std::span(in).subspan(at, kPart)));
  }
  for (IoTicket& ticket : tickets) {
    ticket.wait();
  }
  CHECK(in == out);
  IoTicket nothing;
  nothing.wait();
}

TEST_CASE("aio: what the kernel takes or moves in part goes on", "[offload][aio][faults]") {
  for (int at = 0; at < 20; at += 3) {
    INFO("call " << at);
    CHECK(failure(*std::make_unique<Bench>(Fault{Fault::Kind::kPartialSubmit, 0, at})) == "");
    Bench cut(Fault{Fault::Kind::kShort, 0, at});
    CHECK(cut.round_trip(0, 10 * 8192, 5));
    for (const int error : {EINTR, EAGAIN}) {
      Bench late(Fault{Fault::Kind::kResult, error, at, 3});
      CHECK(late.round_trip(0, 10 * 8192, 5));
      Bench full(Fault{Fault::Kind::kSubmit, error, at, 3});
      CHECK(full.round_trip(0, 10 * 8192, 5));
    }
  }
}

TEST_CASE("aio: an error at any request is one line with path and place",
          "[offload][aio][faults]") {
  int calls = 0;
  {
    Bench counting(Fault{});
    CHECK(failure(counting) == "");
    calls = counting.requests;
  }
  REQUIRE(calls == 20);  // ten blocks written, ten read
  for (int at = 0; at < calls; ++at) {
    INFO("request " << at);
    Bench broken(Fault{Fault::Kind::kResult, EIO, at});
    CHECK_THAT(failure(broken),
               Catch::Matches("cannot (write|read) 8192 bytes at [0-9]+: "
                              "Input/output error, .*/file"));
    CHECK(broken.round_trip(0, 10 * 8192, 6));  // the engine lives on
    Bench full(Fault{Fault::Kind::kResult, ENOSPC, at});
    CHECK_THAT(failure(full), Catch::EndsWith("make room or choose another folder"));
  }
}

TEST_CASE("aio: a kernel that never has room, a file that ends", "[offload][aio][faults]") {
  Bench never(Fault{Fault::Kind::kResult, EINTR, 0, 1'000'000});
  CHECK_THAT(failure(never), Catch::Contains("Interrupted"));
  Bench bench;
  Bytes in(2 * kIoAlignBytes);
  CHECK_THROWS_AS(bench.engine.read(bench.file, Bench::kFileBytes - kIoAlignBytes, in).wait(),
                  IoError);
}

TEST_CASE("aio: a kernel without queues is replaced by threads", "[offload][aio][faults]") {
  Bench bench(small_blocks(), [](int /*depth*/, std::string& why) -> std::unique_ptr<AioQueue> {
    why = "fs.aio-max-nr";
    return nullptr;
  });
  CHECK_FALSE(bench.engine.uses_kernel_queue());
  CHECK(bench.round_trip(100, 200'000, 9));
  std::string why;
  CHECK(make_kernel_queue(1 << 30, why) == nullptr);
  CHECK_FALSE(why.empty());
}

}  // namespace zero::offload
