#include "offload/aio_worker.h"
#include <zero/core/round_up.h>

#include <algorithm>

namespace zero::offload {
namespace {

/// Threads of the pool that stands in for the kernel's queue, if the options ask for no more.
constexpr int kPoolThreads = 4;

}  // namespace

void AioTransfer::piece_ended(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  error_ = error_ != nullptr ? error_ : error;
  if (--pieces_left_ == 0) {
    ended_.notify_all();
  }
}

void AioTransfer::wait_for_end() noexcept {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return pieces_left_ == 0; });
}

void AioTransfer::wait() {
  wait_for_end();
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
}

IoTicket& IoTicket::operator=(IoTicket&& other) noexcept {
  const IoTicket old(std::exchange(transfer_, std::move(other.transfer_)));
  return *this;
}

IoTicket::~IoTicket() {
  if (transfer_ != nullptr) {
    transfer_->wait_for_end();
  }
}

void IoTicket::wait() {
  if (transfer_ != nullptr) {
    transfer_->wait();
  }
}

AioEngine::AioEngine(const AioOptions& options, Log& log, const AioQueueFactory& make_queue)
    : options_(options) {
  options_.block_size = static_cast<std::int64_t>(
      round_up(static_cast<std::size_t>(options.block_size), kIoAlignBytes));
  std::vector<std::unique_ptr<AioQueue>> queues;
  std::string why;
  for (int i = 0; i < options_.intra_op_parallelism && kernel_; ++i) {
    queues.push_back(make_queue(options_.queue_depth, why));
    kernel_ = queues.back() != nullptr;
  }
  if (!kernel_) {
    queues.resize(static_cast<std::size_t>(
        std::max(options_.intra_op_parallelism, std::min(kPoolThreads, options_.queue_depth))));
    std::generate(queues.begin(), queues.end(), make_blocking_queue);
    ZERO_LOG(log,
             kWarn,
             "offload",
             "file IO goes through {} threads, which is slower: {}",
             queues.size(),
             why);
  }
  for (auto& queue : queues) {
    workers_.push_back(std::make_unique<AioWorker>(options_, std::move(queue)));
  }
}

AioEngine::~AioEngine() = default;

IoTicket AioEngine::read(const AioFile& file, std::uint64_t offset, std::span<std::byte> into) {
  return start(false, file, offset, into.data(), into.size());
}

IoTicket AioEngine::write(const AioFile& file,
                          std::uint64_t offset,
                          std::span<const std::byte> from) {
  return start(true, file, offset, const_cast<std::byte*>(from.data()), from.size());
}

IoTicket AioEngine::start(
    bool write, const AioFile& file, std::uint64_t offset, std::byte* data, std::size_t bytes) {
  if (bytes == 0) {
    return {};
  }
  // Every thread takes whole blocks of the file.
  const std::size_t head = offset % kIoAlignBytes;
  const std::size_t piece =
      round_up((head + bytes + workers_.size() - 1) / workers_.size(), kIoAlignBytes);
  const auto pieces = static_cast<int>((head + bytes + piece - 1) / piece);
  auto transfer = std::make_shared<AioTransfer>(pieces);
  std::size_t at = 0;
  for (int i = 0; i < pieces; ++i) {
    const std::size_t end = std::min(bytes, static_cast<std::size_t>(i + 1) * piece - head);
    workers_[next_worker_++ % workers_.size()]->give(
        {transfer, write, &file, offset + at, data + at, end - at});
    at = end;
  }
  return IoTicket(std::move(transfer));
}

}  // namespace zero::offload
