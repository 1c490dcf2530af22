#pragma once

#include <zero/core/file.h>
#include <zero/core/log.h>
#include <zero/offload/aio_queue.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace zero::offload {

/// Memory, positions and lengths of direct IO are multiples of this; what is not passes through
/// buffers of the engine.
inline constexpr std::size_t kIoAlignBytes = 4096;

/// The block `aio` of a ds_config, under its names.
struct AioOptions {
  std::int64_t block_size = std::int64_t{1} << 20;  ///< bytes of a request; whole kIoAlignBytes
  int queue_depth = 8;                              ///< requests in flight a thread
  int intra_op_parallelism = 1;                     ///< threads; a transfer is cut into as many
  bool single_submit = false;                       ///< one system call a request
  bool overlap_events = true;  ///< keep the queue full; false: fill it, wait for all, fill it again
};

/// A file that AioEngine reads and writes: direct where the file system can.
struct AioFile {
  explicit AioFile(File opened) : file(std::move(opened)), direct(file.bypass_page_cache()) {}
  File file;
  bool direct;
};

/// One transfer as its caller and its threads see it.
class AioTransfer {
 public:
  explicit AioTransfer(int pieces) : pieces_left_(pieces) {}
  /// One piece has ended, by an error or well. Thread: any.
  void piece_ended(const std::exception_ptr& error);
  /// Blocks until all pieces have ended; rethrows the first error.
  void wait();
  void wait_for_end() noexcept;

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable ended_;
  int pieces_left_;
  std::exception_ptr error_;
};

/// A transfer in flight. Memory and file must live until it has ended; the destructor waits for
/// that.
class IoTicket {
 public:
  IoTicket() noexcept = default;
  explicit IoTicket(std::shared_ptr<AioTransfer> transfer) : transfer_(std::move(transfer)) {}
  IoTicket(IoTicket&&) noexcept = default;
  IoTicket& operator=(IoTicket&& other) noexcept;
  IoTicket(const IoTicket&) = delete;
  IoTicket& operator=(const IoTicket&) = delete;
  ~IoTicket();
  /// Blocks until it has ended; rethrows its error. Without a transfer there is nothing to wait
  /// for.
  void wait();

 private:
  std::shared_ptr<AioTransfer> transfer_;
};

class AioWorker;

/// Reads and writes files asynchronously with many requests in flight, on threads of its own.
///
/// Every completion is looked at: what is short goes on, EINTR and EAGAIN are tried again, the rest
/// is an IoError with path, offset and what the system said. Where libaio or its kernel limit is
/// missing a pool of threads does the same, after one warning. Thread: any may call.
class AioEngine {
 public:
  /// `make_queue` gives each thread its queue. `log` must outlive the engine.
  AioEngine(const AioOptions& options,
            Log& log,
            const AioQueueFactory& make_queue = make_kernel_queue);
  AioEngine(const AioEngine&) = delete;
  AioEngine& operator=(const AioEngine&) = delete;
  AioEngine(AioEngine&&) = delete;
  AioEngine& operator=(AioEngine&&) = delete;
  /// Waits for what is in flight.
  ~AioEngine();

  /// Starts to fill `into` from `offset`. Transfers in flight may not write a block of
  /// kIoAlignBytes that another one touches. A direct file is as long as whole such blocks.
  [[nodiscard]] IoTicket read(const AioFile& file, std::uint64_t offset, std::span<std::byte> into);
  [[nodiscard]] IoTicket write(const AioFile& file,
                               std::uint64_t offset,
                               std::span<const std::byte> from);
  [[nodiscard]] const AioOptions& options() const noexcept { return options_; }
  /// Whether the kernel's asynchronous IO is in use.
  [[nodiscard]] bool uses_kernel_queue() const noexcept { return kernel_; }

 private:
  [[nodiscard]] IoTicket start(
      bool write, const AioFile& file, std::uint64_t offset, std::byte* data, std::size_t bytes);

  AioOptions options_;
  bool kernel_ = true;
  std::vector<std::unique_ptr<AioWorker>> workers_;
  std::atomic<std::size_t> next_worker_ = 0;
};

}  // namespace zero::offload
