#include "cli/bench.h"
#include <zero/core/env.h>
#include <zero/core/error.h>
#include <zero/offload/aio_engine.h>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>

namespace zero::cli {
namespace {

using Json = nlohmann::ordered_json;
using offload::AioEngine;
using offload::AioFile;
using offload::AioOptions;

/// Transfers in flight, and bytes of each: what the engine keeps busy while it swaps.
constexpr std::size_t kTransfers = 4;
constexpr std::size_t kTransferBytes = std::size_t{32} << 20;
constexpr int kRepetitions = 5;
constexpr std::array<std::int64_t, 3> kBlocks = {256 << 10, 1 << 20, 8 << 20};
constexpr std::array<int, 2> kDepths = {8, 32};
constexpr std::array<int, 3> kThreads = {1, 2, 4};

struct Options {
  std::string dir;
  std::int64_t size_bytes = std::int64_t{1} << 30;
  std::int64_t block_bytes = 0;  ///< 0: sweep
  int queue_depth = 32;
  int threads = 1;
};

/// What one setting reaches, in GB/s (10^9 bytes).
struct Rates {
  double read = 0.0;
  double write = 0.0;
  double mixed = 0.0;  ///< one half read while the other is written
  double raw_read = 0.0;
  double raw_write = 0.0;  ///< by a loop around the kernel's calls and nothing else
};

/// A file of its own in a folder, gone at the end; page-aligned memory beside it.
class Bench {
 public:
  Bench(const std::string& dir, std::size_t bytes)
      : path_(fmt::format("{}/zero-bench-io-{}", dir, ::getpid())),
        bytes_(bytes),
        file_(File::create(path_)),
        memory_(static_cast<std::byte*>(
                    std::aligned_alloc(offload::kIoAlignBytes, kTransfers * kTransferBytes)),
                &std::free) {
    ::unlink(path_.c_str());
    file_.file.reserve(bytes);
    if (memory_ == nullptr) {
      throw ResourceError("no memory for the buffers of the measurement", "zero bench io");
    }
    std::fill_n(memory_.get(), kTransfers * kTransferBytes, std::byte{1});
  }

  [[nodiscard]] bool direct() const noexcept { return file_.direct; }

  /// GB/s through the engine; `write(n)`: whether transfer n is a write.
  template <class Write>
  double engine(AioEngine& engine, Write write) {
    std::deque<offload::IoTicket> tickets;
    const double start = now_s();
    std::size_t number = 0;
    for (std::size_t at = 0; at < bytes_; at += kTransferBytes, ++number) {
      if (tickets.size() == kTransfers) {
        tickets.front().wait();
        tickets.pop_front();
      }
      const std::span<std::byte> part(memory_.get() + number % kTransfers * kTransferBytes,
                                      std::min(kTransferBytes, bytes_ - at));
      tickets.push_back(write(number) ? engine.write(file_, at, part)
                                      : engine.read(file_, at, part));
    }
    for (offload::IoTicket& ticket : tickets) {
      ticket.wait();
    }
    return rate(start);
  }

  /// GB/s of a bare loop with the same requests, or 0 where the kernel has no queue.
  double raw(const AioOptions& options, bool write) {
    std::vector<std::thread> threads;
    std::vector<char> done(static_cast<std::size_t>(options.intra_op_parallelism));
    const double start = now_s();
    for (std::size_t thread = 0; thread < done.size(); ++thread) {
      threads.emplace_back(
          [&, thread] { done[thread] = raw_part(options, write, thread, done.size()) ? 1 : 0; });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    const bool complete = std::all_of(done.begin(), done.end(), [](char ok) { return ok != 0; });
    return complete ? rate(start) : 0.0;
  }

 private:
  [[nodiscard]] double rate(double start) const {
    return static_cast<double>(bytes_) / (now_s() - start) / 1e9;
  }

  bool raw_part(const AioOptions& options, bool write, std::size_t thread, std::size_t threads) {
    std::string why;
    const auto queue = offload::make_kernel_queue(options.queue_depth, why);
    if (queue == nullptr) {
      return false;
    }
    const auto block = static_cast<std::size_t>(options.block_size);
    const std::size_t blocks = kTransfers * kTransferBytes / block;  // of memory
    std::size_t at = bytes_ / threads / block * block * thread;
    const std::size_t end = thread + 1 == threads ? bytes_ / block * block
                                                  : bytes_ / threads / block * block * (thread + 1);
    std::vector<offload::AioCompletion> done(static_cast<std::size_t>(options.queue_depth));
    std::vector<std::uint32_t> free;
    for (std::uint32_t tag = 0; tag < done.size(); ++tag) {
      free.push_back(tag);
    }
    std::vector<offload::AioRequest> requests;
    while (at < end || free.size() < done.size()) {
      requests.clear();
      for (; at < end && !free.empty(); at += block) {
        std::byte* data = memory_.get() + (free.back() + thread * done.size()) % blocks * block;
        requests.push_back({free.back(), write, file_.file.descriptor(), data, block, at});
        free.pop_back();
      }
      if (!requests.empty() && queue->submit(requests) != static_cast<int>(requests.size())) {
        return false;
      }
      const int count = queue->reap(done);
      for (int i = 0; i < count; ++i) {
        free.push_back(done[static_cast<std::size_t>(i)].tag);
      }
    }
    return true;
  }

  std::string path_;
  std::size_t bytes_;
  AioFile file_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
};

AioOptions setting(std::int64_t block, int depth, int threads) {
  AioOptions options;
  options.block_size = block;
  options.queue_depth = depth;
  options.intra_op_parallelism = threads;
  return options;
}

/// Medians; the five kinds take turns, so that a slow moment of the disk meets all of them.
Rates measure(Bench& bench, const AioOptions& options, int repetitions, Log& log) {
  AioEngine engine(options, log);
  std::array<std::vector<double>, 5> all;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    all[0].push_back(bench.engine(engine, [](std::size_t) { return true; }));
    all[1].push_back(bench.raw(options, true));
    all[2].push_back(bench.engine(engine, [](std::size_t) { return false; }));
    all[3].push_back(bench.raw(options, false));
    all[4].push_back(bench.engine(engine, [](std::size_t number) { return number % 2 == 0; }));
  }
  return {median(all[2]), median(all[0]), median(all[4]), median(all[3]), median(all[1])};
}

Json aio_block(const AioOptions& options) {
  return {{"aio",
           {{"block_size", options.block_size},
            {"queue_depth", options.queue_depth},
            {"intra_op_parallelism", options.intra_op_parallelism},
            {"single_submit", options.single_submit},
            {"overlap_events", options.overlap_events}}}};
}

/// The setting with the largest rate of reading and writing at once, each measured once.
AioOptions sweep(Bench& bench, Log& log) {
  AioOptions best;
  double best_rate = 0.0;
  for (const std::int64_t block : kBlocks) {
    for (const int depth : kDepths) {
      for (const int threads : kThreads) {
        const AioOptions options = setting(block, depth, threads);
        const Rates rates = measure(bench, options, 1, log);
        std::cerr << fmt::format(
            "block {:>8}  depth {:>2}  threads {}  read {:6.2f}  write {:6.2f}  mixed {:6.2f} "
            "GB/s\n",
            block,
            depth,
            threads,
            rates.read,
            rates.write,
            rates.mixed);
        if (rates.mixed > best_rate) {
          best_rate = rates.mixed;
          best = options;
        }
      }
    }
  }
  return best;
}

void run(const Options& options) {
  Log log(0, Env::from_process().log_level);
  Bench bench(options.dir, static_cast<std::size_t>(options.size_bytes));
  AioOptions chosen = setting(options.block_bytes, options.queue_depth, options.threads);
  (void)measure(bench, setting(std::int64_t{1} << 20, 8, 1), 1, log);  // lays the file out
  if (options.block_bytes == 0) {
    chosen = sweep(bench, log);
  }
  const Rates rates = measure(bench, chosen, kRepetitions, log);
  std::cout << aio_block(chosen).dump(2) << '\n';
  Json result = {{"bench", "io"},
                 {"size_bytes", options.size_bytes},
                 {"direct", bench.direct()},
                 {"read_gb_s", rates.read},
                 {"write_gb_s", rates.write},
                 {"mixed_gb_s", rates.mixed},
                 {"raw_read_gb_s", rates.raw_read},
                 {"raw_write_gb_s", rates.raw_write}};
  result.update(aio_block(chosen));
  std::cout << result.dump() << '\n';
}

}  // namespace

void add_bench_io(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "io", "File IO of offload to nvme, beside a bare loop of the same requests");
  command->add_option("--dir", options->dir, "folder on the disk to measure")->required();
  command->add_option("--size", options->size_bytes, "bytes of the file")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::int64_t{1} << 20, std::int64_t{1} << 50))
      ->default_str("1GiB");
  command
      ->add_option(
          "--block-size", options->block_bytes, "bytes of a request; without it all are tried")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::int64_t{4096}, static_cast<std::int64_t>(kTransferBytes)));
  command->add_option("--queue-depth", options->queue_depth, "requests in flight a thread")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "threads")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace zero::cli
