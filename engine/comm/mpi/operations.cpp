#include "engine/comm/mpi/operations.h"

#include "engine/comm/reduce.h"
#include <zero/core/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace zero::comm {
namespace {

/// Tags tell the calls of a group apart; messages of one tag keep their order.
enum class TagKind : std::uint8_t { kIntroduction, kMove, kPairIntroduction, kPairMove };

int tag_of(const Call& call, bool introduction) noexcept {
  constexpr std::uint64_t kSequences = 4096;  // tags stay below 32767, which every MPI has
  const TagKind kind = call.pairwise()
                           ? (introduction ? TagKind::kPairIntroduction : TagKind::kPairMove)
                           : (introduction ? TagKind::kIntroduction : TagKind::kMove);
  return static_cast<int>(call.sequence % kSequences) * 4 + static_cast<int>(kind);
}

std::span<const std::byte> bytes_of(const Signature& signature) noexcept {
  return {reinterpret_cast<const std::byte*>(&signature), sizeof(Signature)};
}

std::size_t at(int rank) noexcept {
  return static_cast<std::size_t>(rank);
}

}  // namespace

// --- Introduction

Introduction::Introduction(MpiGroupState& group, const Call& call)
    : group_(group), own_(signature_of(call, group.size)), tag_(tag_of(call, true)) {
  if (call.pairwise()) {
    peers_ = {call.root};
  } else {
    for (int k = 0; k < group.size; ++k) {
      if (k != group.rank) {
        peers_.push_back(k);
      }
    }
  }
  theirs_.resize(peers_.size());
  heard_ = std::make_unique<std::atomic<bool>[]>(peers_.size());
  for (std::size_t i = 0; i <= peers_.size(); ++i) {
    transfers_.push_back(std::make_unique<wire::Transfers>());
  }
}

void Introduction::start() {
  started_ = true;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const std::span<std::byte> into(reinterpret_cast<std::byte*>(&theirs_[i]), sizeof(Signature));
    transfers_[i]->receive(group_.comm, peers_[i], tag_, into);
    transfers_.back()->send(group_.comm, peers_[i], tag_, bytes_of(own_));
    group_.counters.add_in(Payload::kControl, sizeof(Signature));
    group_.counters.add_out(Payload::kControl, sizeof(Signature));
  }
}

bool Introduction::poll() {
  if (checked_) {
    return false;
  }
  if (!started_) {
    start();
  }
  bool moved = false;
  bool all = true;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    moved |= transfers_[i]->poll();
    all &= transfers_[i]->done();
    if (i < peers_.size() && transfers_[i]->done() &&
        !heard_[i].exchange(true, std::memory_order_relaxed)) {
      const std::lock_guard lock(group_.latest_mutex);
      group_.latest.resize(at(group_.size));
      group_.latest[at(peers_[i])] = theirs_[i];
    }
  }
  if (all) {
    checked_ = true;
    check();
  }
  return moved;
}

void Introduction::check() {
  std::vector<Signature> signatures(theirs_);
  std::vector<int> peers(peers_);
  const auto place = std::lower_bound(peers.begin(), peers.end(), group_.rank) - peers.begin();
  signatures.insert(signatures.begin() + place, own_);
  peers.insert(peers.begin() + place, group_.rank);
  for (int& rank : peers) {
    rank = group_.world_ranks[at(rank)];
  }
  const std::string text = find_disagreement(signatures, peers);
  if (!text.empty()) {
    error_ = std::make_exception_ptr(disagreement(text, group_.name));
  }
}

std::vector<Absent> Introduction::missing() const {
  const std::lock_guard lock(group_.latest_mutex);
  group_.latest.resize(at(group_.size));
  std::vector<Absent> result;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (!heard_[i].load(std::memory_order_relaxed)) {
      result.push_back({group_.world_ranks[at(peers_[i])], group_.latest[at(peers_[i])]});
    }
  }
  return result;
}

// --- ChunkCursor

ChunkCursor::Chunk ChunkCursor::next() {
  while (segment_ < call_.segments.size()) {
    const Segment& segment = call_.segments[segment_];
    const std::size_t left = segment.bytes(owner_) - offset_;
    if (left == 0) {
      ++segment_;
      offset_ = 0;
      continue;
    }
    const Chunk chunk{&segment, offset_, std::min(left, kChunkBytes)};
    offset_ += chunk.bytes;
    return chunk;
  }
  return {};
}

// --- Reduction

Reduction::Reduction(MpiGroupState& group, const Call& call, int tag)
    : group_(group), call_(call), tag_(tag), cursor_(call, group.rank) {
  for (int k = 0; k < group.size; ++k) {
    if (k != group.rank) {
      outgoing_.push_back(std::make_unique<Outgoing>(call, k));
    }
  }
}

Reduction::~Reduction() {
  if (holds_staging_) {
    group_.staging_user = nullptr;
  }
}

bool Reduction::done() const noexcept {
  return received_ && std::all_of(outgoing_.begin(), outgoing_.end(), [](const auto& out) {
           return out->exhausted && out->transfers.done();
         });
}

bool Reduction::poll() {
  const bool sent = poll_sends();
  return poll_receives() || sent;
}

bool Reduction::poll_sends() {
  bool moved = false;
  for (const auto& out : outgoing_) {
    moved |= out->transfers.poll();
    while (!out->exhausted && out->transfers.outstanding() < kChunksUnderWay) {
      const ChunkCursor::Chunk chunk = out->cursor.next();
      if (chunk.segment == nullptr) {
        out->exhausted = true;
        break;
      }
      out->transfers.send(group_.comm,
                          out->rank,
                          tag_,
                          chunk.segment->source(out->rank).subspan(chunk.offset, chunk.bytes));
      group_.counters.add_out(call_.payload, chunk.bytes);
      moved = true;
    }
  }
  return moved;
}

bool Reduction::take_staging() {
  if (!holds_staging_ && group_.staging_user == nullptr) {
    group_.staging_user = this;
    holds_staging_ = true;
    for (std::size_t slot = 0; slot < kChunksUnderWay; ++slot) {
      post_receives(slot);
    }
  }
  return holds_staging_;
}

bool Reduction::poll_receives() {
  if (received_ || !take_staging()) {
    return false;
  }
  bool moved = false;
  for (Incoming& incoming : incoming_) {
    moved |= incoming.transfers.poll();
  }
  while (incoming_[slot_].chunk.segment != nullptr && incoming_[slot_].transfers.done()) {
    sum(slot_);
    post_receives(slot_);
    slot_ = (slot_ + 1) % kChunksUnderWay;
    moved = true;
  }
  if (incoming_[slot_].chunk.segment == nullptr) {
    received_ = true;
    holds_staging_ = false;
    group_.staging_user = nullptr;
    moved = true;
  }
  return moved;
}

std::span<std::byte> Reduction::staging(std::size_t slot, int peer, std::size_t bytes) const {
  const int place = peer < group_.rank ? peer : peer - 1;
  const std::size_t chunk = slot * at(group_.size - 1) + at(place);
  return {group_.staging_host + chunk * kChunkBytes, bytes};
}

void Reduction::post_receives(std::size_t slot) {
  Incoming& incoming = incoming_[slot];
  incoming.chunk = cursor_.next();
  if (incoming.chunk.segment == nullptr) {
    return;
  }
  for (const auto& out : outgoing_) {
    incoming.transfers.receive(
        group_.comm, out->rank, tag_, staging(slot, out->rank, incoming.chunk.bytes));
    group_.counters.add_in(call_.payload, incoming.chunk.bytes);
  }
}

void Reduction::sum(std::size_t slot) {
  const ChunkCursor::Chunk& chunk = incoming_[slot].chunk;
  std::vector<const std::byte*> sources;
  sources.reserve(at(group_.size));
  for (int k = 0; k < group_.size; ++k) {
    sources.push_back(k == group_.rank ? chunk.segment->source(k).data() + chunk.offset
                                       : staging(slot, k, chunk.bytes).data());
  }
  reduce_in_order(sources,
                  chunk.segment->target(group_.rank).subspan(chunk.offset, chunk.bytes),
                  chunk.segment->dtype,
                  call_.op);
}

// --- CallOperation

CallOperation::CallOperation(std::shared_ptr<MpiGroupState> group, std::shared_ptr<const Call> call)
    : group_(std::move(group)),
      call_(std::move(call)),
      tag_(tag_of(*call_, false)),
      introduction_(*group_, *call_) {
  if (call_->reduces()) {
    reduction_ = std::make_unique<Reduction>(*group_, *call_, tag_);
  }
}

bool CallOperation::poll() {
  bool moved = introduction_.poll();
  if (!introduction_.done()) {
    return moved;
  }
  if (introduction_.error() != nullptr) {
    finish(introduction_.error());
    return true;
  }
  if (reduction_ != nullptr && !reduction_->done()) {
    moved |= reduction_->poll();
    if (!reduction_->done()) {
      return moved;
    }
  }
  if (!moving_) {
    moving_ = true;
    start_moves();
  }
  moved |= moves_.poll();
  if (moves_.done()) {
    if (call_->counts()) {
      group_->counters.add_collective();
    }
    finish();
  }
  return moved;
}

void CallOperation::start_moves() {
  switch (call_->verb) {
    case Verb::kAllGather:
    case Verb::kAllToAll:
      return gather(false);
    case Verb::kAllReduce:
      return gather(true);
    case Verb::kBroadcast:
      for (const Segment& segment : call_->segments) {
        if (group_->rank != call_->root) {
          receive(call_->root, segment.target(0));
          continue;
        }
        for (int k = 0; k < group_->size; ++k) {
          if (k != group_->rank) {
            send(k, segment.source(0));
          }
        }
      }
      return;
    case Verb::kSend:
      return send(call_->root, call_->segments.front().source(0));
    case Verb::kRecv:
      return receive(call_->root, call_->segments.front().target(0));
    case Verb::kReduceScatter:
    case Verb::kBarrier:
    case Verb::kSplit:
      return;
  }
}

/// Exchanges slices pairwise: a peer gets this rank's own slice or, in all_to_all, the one with its
/// number. `from_targets`: the second half of an all-reduce, which gives what it has just summed.
void CallOperation::gather(bool from_targets) {
  const int rank = group_->rank;
  for (const Segment& segment : call_->segments) {
    for (int k = 0; k < group_->size; ++k) {
      const int slice = call_->verb == Verb::kAllToAll ? k : rank;
      const auto source =
          from_targets ? std::span<const std::byte>(segment.target(slice)) : segment.source(slice);
      const auto target = segment.target(k);
      if (k != rank) {
        receive(k, target);
        send(k, source);
      } else if (source.data() != target.data() && !target.empty()) {
        std::memcpy(target.data(), source.data(), target.size());
      }
    }
  }
}

void CallOperation::send(int to, std::span<const std::byte> bytes) {
  moves_.send(group_->comm, to, tag_, bytes);
  group_->counters.add_out(call_->payload, bytes.size());
}

void CallOperation::receive(int from, std::span<std::byte> bytes) {
  moves_.receive(group_->comm, from, tag_, bytes);
  group_->counters.add_in(call_->payload, bytes.size());
}

// --- communicators

bool WorldOperation::poll() {
  if (comm_ == nullptr) {
    comm_ = transfers_.duplicate_world();
  }
  const bool moved = transfers_.poll();
  if (transfers_.done()) {
    finish();
  }
  return moved;
}

SplitOperation::SplitOperation(std::shared_ptr<MpiGroupState> group, Call call)
    : group_(std::move(group)), call_(std::move(call)), introduction_(*group_, call_) {}

bool SplitOperation::poll() {
  const bool moved = introduction_.poll();
  if (introduction_.error() != nullptr) {
    finish(introduction_.error());
  } else if (introduction_.done()) {
    // All ranks have submitted their split, so this blocks no longer than their next poll.
    comm_ = wire::split(group_->comm, call_.color, call_.key);
    world_ranks_ = wire::world_ranks(comm_);
    rank_ = wire::rank_in(comm_);
    finish();
  }
  return moved;
}

}  // namespace zero::comm
