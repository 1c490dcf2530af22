#pragma once

#include <zero/comm/group.h>
#include <zero/core/dtype.h>
#include <zero/core/error.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::comm {

enum class Verb : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kBarrier,
  kSplit,
  kSend,
  kRecv
};

/// One piece of memory of a call, host-addressed, seen as N slices.
///
/// Slice k holds elements [k·stride + begin, k·stride + begin + count), cut off at `end`. A side
/// that is not sliced has one slice only: the start of the memory, whatever k. src may be dst.
struct Segment {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  DType dtype = DType::kF32;
  std::int64_t stride = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t end = 0;
  bool src_sliced = false;
  bool dst_sliced = false;

  /// Elements of slice k.
  [[nodiscard]] std::int64_t elems(int k) const noexcept {
    return std::clamp(end - k * stride - begin, std::int64_t{0}, count);
  }
  [[nodiscard]] std::size_t bytes(int k) const noexcept {
    return static_cast<std::size_t>(elems(k)) * dtype_size(dtype);
  }
  /// Slice k of what the rank gives.
  [[nodiscard]] std::span<const std::byte> source(int k) const noexcept {
    return {elems(k) == 0 ? src : src + offset(src_sliced ? k : 0), bytes(k)};
  }
  /// Slice k of where the rank receives.
  [[nodiscard]] std::span<std::byte> target(int k) const noexcept {
    return {elems(k) == 0 ? dst : dst + offset(dst_sliced ? k : 0), bytes(k)};
  }

 private:
  [[nodiscard]] std::size_t offset(int k) const noexcept {
    return static_cast<std::size_t>(k * stride + begin) * dtype_size(dtype);
  }
};

/// What a call is for, in messages about it: of fixed size because it travels with the signature.
struct Occasion {
  std::int32_t step = 0;        ///< optimizer step that runs, from 1; 0: before the first
  std::array<char, 28> what{};  ///< the name of a unit, cut to 27 characters, zero-padded
};
static_assert(sizeof(Occasion) == 32);
[[nodiscard]] Occasion make_occasion(std::int64_t step, std::string_view what) noexcept;

/// What the ranks compare before data moves; also what travels over MPI, hence of fixed size.
struct Signature {
  std::uint64_t sequence = 0;
  Verb verb = Verb::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;  ///< of the first segment; the others are in `layout`
  Payload payload = Payload::kData;
  std::int32_t root = 0;
  std::int64_t elems = 0;    ///< of the whole call
  std::uint64_t layout = 0;  ///< hash of dtype, slice length, begin and count of every segment
  Occasion occasion{};       ///< `what` is compared, `step` is not
};
static_assert(sizeof(Signature) == 64);

struct Call {
  Verb verb = Verb::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  Payload payload = Payload::kData;
  int root = 0;  ///< broadcast: who gives; send and recv: the peer
  std::uint64_t sequence = 0;
  std::vector<Segment> segments = {};
  int color = 0;  ///< split only
  int key = 0;    ///< split only
  Occasion occasion{};

  [[nodiscard]] bool pairwise() const noexcept {
    return verb == Verb::kSend || verb == Verb::kRecv;
  }
  [[nodiscard]] bool reduces() const noexcept {
    return verb == Verb::kReduceScatter || verb == Verb::kAllReduce;
  }
  /// Whether Traffic::collectives counts it.
  [[nodiscard]] bool counts() const noexcept {
    return !pairwise() && verb != Verb::kBarrier && verb != Verb::kSplit &&
           payload == Payload::kData;
  }
};

[[nodiscard]] Signature signature_of(const Call& call, int ranks);
/// Whether two ranks mean the same call; a send matches a recv of the same size.
[[nodiscard]] bool agree(const Signature& a, const Signature& b) noexcept;
[[nodiscard]] const char* verb_name(Verb verb) noexcept;
/// "all_gather #12 of 640 fp32 for blocks.3 in step 7"
[[nodiscard]] std::string describe(const Signature& signature);

/// Text of the first disagreement among the ranks' calls, or empty. `ranks[i]` is the rank, as
/// messages name it, that sent `signatures[i]`.
[[nodiscard]] std::string find_disagreement(std::span<const Signature> signatures,
                                            std::span<const int> ranks);
/// A rank that has not come, and what it called last on this group, if anything.
struct Absent {
  int rank = 0;
  std::optional<Signature> latest;
};
/// "rank 1" or "ranks 1, 3"
[[nodiscard]] std::string name_ranks(std::span<const Absent> ranks);

/// The errors that all back ends throw.
[[nodiscard]] PeerError disagreement(const std::string& text, const std::string& group);
/// "rank 1 did not arrive within 10 s in all_gather …; rank 1 was last seen in …"
[[nodiscard]] std::string describe_late(std::span<const Absent> missing,
                                        const Signature& call,
                                        double timeout_s);
[[nodiscard]] PeerError late(const std::string& text, const std::string& group);

}  // namespace zero::comm
