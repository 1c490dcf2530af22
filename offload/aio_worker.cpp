#include "offload/aio_worker.h"

#include <zero/core/error.h>
#include <zero/core/round_up.h>

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace zero::offload {
namespace {

/// Memory of direct IO is aligned to this; file positions to kIoAlignBytes.
constexpr std::size_t kMemoryAlign = 512;
/// Tries without progress before a request fails; one that is told to wait waits a millisecond.
constexpr int kMostTries = 2000;
constexpr std::chrono::milliseconds kPause{1};

bool is_transient(int error) {
  return error == EINTR || error == EAGAIN;
}

}  // namespace

AioWorker::AioWorker(const AioOptions& options, std::unique_ptr<AioQueue> queue)
    : options_(options),
      queue_(std::move(queue)),
      flights_(static_cast<std::size_t>(options.queue_depth)),
      done_(flights_.size()) {
  for (std::size_t tag = flights_.size(); tag > 0; --tag) {
    free_.push_back(static_cast<std::uint32_t>(tag - 1));
  }
  thread_ = std::thread([this] { run(); });
}

AioWorker::~AioWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void AioWorker::give(AioPiece piece) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(std::make_shared<AioPiece>(std::move(piece)));
  }
  arrived_.notify_one();
}

void AioWorker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [this] { return stopping_ || !inbox_.empty() || !idle(); });
    if (inbox_.empty() && idle()) {
      return;
    }
    pieces_.insert(pieces_.end(), inbox_.begin(), inbox_.end());
    inbox_.clear();
    lock.unlock();
    if (options_.overlap_events || in_flight_ == 0) {
      fill();
    }
    submit();
    if (in_flight_ > 0) {
      reap();
    }
    lock.lock();
  }
}

void AioWorker::fill() {
  while (!free_.empty() && !pieces_.empty()) {
    const std::shared_ptr<AioPiece> piece = pieces_.front();
    const std::uint32_t tag = free_.back();
    free_.pop_back();
    Flight& flight = flights_[tag];
    flight.piece = piece;
    flight.request.tag = tag;
    flight.tries = 0;
    ++piece->in_flight;
    try {
      prepare(flight, *piece);
      waiting_.push_back(tag);
    } catch (...) {
      piece->error = std::current_exception();
      piece->bytes = 0;
      finish(tag);
    }
    if (piece->bytes == 0) {
      pieces_.pop_front();
    }
  }
}

void AioWorker::prepare(Flight& flight, AioPiece& piece) {
  const bool direct = piece.file->direct;
  const std::size_t head = piece.offset % kIoAlignBytes;
  std::size_t bytes = std::min(piece.bytes, static_cast<std::size_t>(options_.block_size));
  if (direct && head > 0) {
    bytes = std::min(bytes, kIoAlignBytes - head);
  } else if (direct && bytes >= kIoAlignBytes) {
    bytes -= bytes % kIoAlignBytes;  // the tail is a request of its own
  }
  flight.request.write = piece.write;
  flight.request.descriptor = piece.file->file.descriptor();
  flight.to = nullptr;
  const bool aligned = head == 0 && bytes % kIoAlignBytes == 0 &&
                       reinterpret_cast<std::uintptr_t>(piece.data) % kMemoryAlign == 0;
  if (!direct || aligned) {
    flight.request.data = piece.data;
    flight.request.bytes = bytes;
    flight.request.offset = piece.offset;
    flight.needed = bytes;
  } else {
    bounce(flight, piece, bytes);
  }
  piece.offset += bytes;
  piece.data += bytes;
  piece.bytes -= bytes;
}

/// A request for the whole blocks around the next `bytes` of a piece, through aligned memory.
void AioWorker::bounce(Flight& flight, const AioPiece& piece, std::size_t bytes) {
  const std::size_t head = piece.offset % kIoAlignBytes;
  const std::size_t whole = round_up(head + bytes, kIoAlignBytes);
  if (flight.bounce == nullptr) {
    flight.bounce.reset(static_cast<std::byte*>(
        std::aligned_alloc(kIoAlignBytes, static_cast<std::size_t>(options_.block_size))));
    if (flight.bounce == nullptr) {
      throw ResourceError("no memory for a buffer of file IO", piece.file->file.path());
    }
  }
  flight.request.data = flight.bounce.get();
  flight.request.bytes = whole;
  flight.request.offset = piece.offset - head;
  if (piece.write) {
    if (whole != bytes) {  // what the block holds beside these bytes stays
      piece.file->file.read_at({flight.bounce.get(), whole}, flight.request.offset);
    }
    std::memcpy(flight.bounce.get() + head, piece.data, bytes);
    flight.needed = whole;
  } else {
    flight.to = piece.data;
    flight.skip = head;
    flight.to_bytes = bytes;
    flight.needed = head + bytes;
  }
}

void AioWorker::submit() {
  while (!waiting_.empty()) {
    requests_.clear();
    for (const std::uint32_t tag : waiting_) {
      requests_.push_back(flights_[tag].request);
      if (options_.single_submit) {
        break;
      }
    }
    const int taken = queue_->submit(requests_);
    if (taken > 0) {
      waiting_.erase(waiting_.begin(), waiting_.begin() + taken);
      in_flight_ += static_cast<std::size_t>(taken);
    } else if (!try_again(taken == 0 ? EAGAIN : -taken)) {
      return;
    }
  }
}

bool AioWorker::try_again(int error) {
  if (error == EAGAIN && in_flight_ > 0) {
    return false;  // completions make room
  }
  const std::uint32_t tag = waiting_.front();
  waiting_.pop_front();
  if (is_transient(error)) {
    retry(tag, error);
  } else {
    fail(tag, error);
  }
  return true;
}

void AioWorker::reap() {
  const int count = queue_->reap(done_);
  ZERO_CHECK(count >= 0 || is_transient(-count),
             fmt::format("waiting for file IO ended with errno {}", -count));
  for (int i = 0; i < count; ++i) {
    --in_flight_;
    completed(done_[static_cast<std::size_t>(i)]);
  }
}

void AioWorker::completed(const AioCompletion& completion) {
  const std::uint32_t tag = completion.tag;
  Flight& flight = flights_[tag];
  if (completion.result < 0) {
    const int error = static_cast<int>(-completion.result);
    return is_transient(error) ? retry(tag, error) : fail(tag, error);
  }
  auto moved = static_cast<std::size_t>(completion.result);
  if (moved < flight.needed) {
    if (moved == 0) {
      return fail(tag, flight.request.write ? ENOSPC : 0);
    }
    // The rest of a short transfer; a direct one starts again at a whole block.
    moved -= flight.piece->file->direct ? moved % kIoAlignBytes : 0;
    flight.request.data += moved;
    flight.request.offset += moved;
    flight.request.bytes -= moved;
    flight.needed -= moved;
    flight.tries = moved > 0 ? 0 : flight.tries;
    return retry(tag, EIO);
  }
  if (flight.to != nullptr) {
    std::memcpy(flight.to, flight.bounce.get() + flight.skip, flight.to_bytes);
  }
  finish(tag);
}

void AioWorker::retry(std::uint32_t tag, int error) {
  if (++flights_[tag].tries > kMostTries) {
    return fail(tag, error);
  }
  if (error == EAGAIN) {
    std::this_thread::sleep_for(kPause);
  }
  waiting_.push_back(tag);
}

void AioWorker::fail(std::uint32_t tag, int error) {
  const Flight& flight = flights_[tag];
  AioPiece& piece = *flight.piece;
  const std::string what = fmt::format("cannot {} {} bytes at {}",
                                       flight.request.write ? "write" : "read",
                                       flight.request.bytes,
                                       flight.request.offset);
  try {
    if (error == 0) {
      throw IoError(what + ": the file ends before",
                    piece.file->file.path(),
                    "it was cut while in use, or is still being written");
    }
    throw_io_error(what, piece.file->file.path(), error);
  } catch (...) {
    piece.error = piece.error != nullptr ? piece.error : std::current_exception();
  }
  piece.bytes = 0;
  finish(tag);
}

void AioWorker::finish(std::uint32_t tag) {
  const std::shared_ptr<AioPiece> piece = std::move(flights_[tag].piece);
  free_.push_back(tag);
  if (--piece->in_flight == 0 && piece->bytes == 0) {
    piece->transfer->piece_ended(piece->error);
  }
}

}  // namespace zero::offload
