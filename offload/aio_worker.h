#pragma once

#include <zero/offload/aio_engine.h>

#include <deque>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): aligned_alloc, free
#include <thread>

namespace zero::offload {

/// A contiguous part of a transfer, moved by one worker; position and memory advance as its
/// requests are made.
struct AioPiece {
  std::shared_ptr<AioTransfer> transfer;
  bool write = false;
  const AioFile* file = nullptr;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  ///< still to be requested
  int in_flight = 0;
  std::exception_ptr error{};
};

/// One thread of an AioEngine with its queue: cuts pieces into requests, keeps as many of them in
/// flight as it may, and looks at every completion.
class AioWorker {
 public:
  AioWorker(const AioOptions& options, std::unique_ptr<AioQueue> queue);
  AioWorker(const AioWorker&) = delete;
  AioWorker& operator=(const AioWorker&) = delete;
  AioWorker(AioWorker&&) = delete;
  AioWorker& operator=(AioWorker&&) = delete;
  /// Ends after what it was given.
  ~AioWorker();
  void give(AioPiece piece);

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { ::free(memory); }
  };
  /// A request with the caller's memory that it is for.
  struct Flight {
    std::shared_ptr<AioPiece> piece;
    AioRequest request;
    std::size_t needed = 0;                     ///< bytes of the request that have to arrive
    std::byte* to = nullptr;                    ///< where a read through `bounce` ends up
    std::size_t skip = 0;                       ///< bytes of `bounce` before that
    std::size_t to_bytes = 0;                   ///< how many
    int tries = 0;                              ///< without progress
    std::unique_ptr<std::byte, Free> bounce{};  ///< one block, aligned
  };

  void run();
  [[nodiscard]] bool idle() const noexcept {
    return pieces_.empty() && free_.size() == flights_.size();
  }
  /// Makes requests of the pieces for all free tags.
  void fill();
  void prepare(Flight& flight, AioPiece& piece);
  void bounce(Flight& flight, const AioPiece& piece, std::size_t bytes);
  void submit();
  /// Deals with a submission that took nothing; false: it may not be tried again before a reap.
  [[nodiscard]] bool try_again(int error);
  void reap();
  void completed(const AioCompletion& completion);
  void retry(std::uint32_t tag, int error);
  void fail(std::uint32_t tag, int error);
  /// The tag is free again; a piece without further requests ends here.
  void finish(std::uint32_t tag);

  const AioOptions& options_;
  std::unique_ptr<AioQueue> queue_;
  std::vector<Flight> flights_;        // by tag
  std::vector<std::uint32_t> free_;    // tags
  std::deque<std::uint32_t> waiting_;  // tags to be submitted
  std::deque<std::shared_ptr<AioPiece>> pieces_;
  std::vector<AioRequest> requests_;  // of one submission
  std::vector<AioCompletion> done_;   // of one reap
  std::size_t in_flight_ = 0;

  std::mutex mutex_;  // guards inbox_ and stopping_
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<AioPiece>> inbox_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace zero::offload
