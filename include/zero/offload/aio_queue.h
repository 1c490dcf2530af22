#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace zero::offload {

/// One transfer between memory and a file, at most a block long.
struct AioRequest {
  std::uint32_t tag = 0;  ///< below the queue's depth; free again when its completion was reaped
  bool write = false;
  int descriptor = -1;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t offset = 0;  ///< in the file
};

struct AioCompletion {
  std::uint32_t tag = 0;
  std::int64_t result = 0;  ///< bytes moved, or −errno
};

/// Asynchronous file IO as AioEngine sees it: what the kernel offers, faults included. Tests put
/// their own in its place. Thread: one.
class AioQueue {
 public:
  AioQueue() = default;
  AioQueue(const AioQueue&) = delete;
  AioQueue& operator=(const AioQueue&) = delete;
  AioQueue(AioQueue&&) = delete;
  AioQueue& operator=(AioQueue&&) = delete;
  virtual ~AioQueue() = default;

  /// Starts requests, from the first on: how many (it may be less than all), or −errno of the
  /// first.
  [[nodiscard]] virtual int submit(std::span<const AioRequest> requests) = 0;
  /// Waits until at least one request is done and writes down those that are: how many, or −errno.
  [[nodiscard]] virtual int reap(std::span<AioCompletion> done) = 0;
};

/// Makes a queue for `depth` requests in flight; nullptr and the reason in `why` where it cannot.
using AioQueueFactory = std::function<std::unique_ptr<AioQueue>(int depth, std::string& why)>;

/// The kernel's own queue, by libaio.
[[nodiscard]] std::unique_ptr<AioQueue> make_kernel_queue(int depth, std::string& why);
/// Does each request while it is submitted, by pread and pwrite.
[[nodiscard]] std::unique_ptr<AioQueue> make_blocking_queue();

}  // namespace zero::offload
