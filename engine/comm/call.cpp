#include "engine/comm/call.h"

#include <fmt/format.h>

namespace zero::comm {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29U);
}

const char* op_name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kMax:
      return "max";
  }
  return "?";
}

std::int64_t elems_of(const Segment& segment, int ranks) noexcept {
  if (!segment.src_sliced && !segment.dst_sliced) {
    return segment.count;
  }
  std::int64_t elems = 0;
  for (int k = 0; k < ranks; ++k) {
    elems += segment.elems(k);
  }
  return elems;
}

/// Whether two signatures mean the same call. A background save's may fall into different steps of
/// its ranks, so the step does not count.
bool same_call(const Signature& a, const Signature& b) noexcept {
  return a.sequence == b.sequence && a.verb == b.verb && a.op == b.op && a.dtype == b.dtype &&
         a.payload == b.payload && a.root == b.root && a.elems == b.elems && a.layout == b.layout &&
         a.occasion.what == b.occasion.what;
}

std::string describe(const Occasion& occasion) {
  std::string text;
  if (occasion.what.front() != '\0') {
    text += fmt::format(" for {}", occasion.what.data());
  }
  if (occasion.step > 0) {
    text += fmt::format(" in step {}", occasion.step);
  }
  return text;
}

}  // namespace

Occasion make_occasion(std::int64_t step, std::string_view what) noexcept {
  Occasion occasion{.step = static_cast<std::int32_t>(step)};
  what.copy(occasion.what.data(), occasion.what.size() - 1);
  return occasion;
}

Signature signature_of(const Call& call, int ranks) {
  Signature result{.sequence = call.sequence,
                   .verb = call.verb,
                   .op = call.op,
                   .payload = call.payload,
                   .root = call.root,
                   .occasion = call.occasion};
  if (!call.segments.empty()) {
    result.dtype = call.segments.front().dtype;
  }
  for (const Segment& segment : call.segments) {
    result.elems += elems_of(segment, ranks);
    result.layout = mix(result.layout, static_cast<std::uint64_t>(segment.dtype) + 1);
    result.layout = mix(result.layout, static_cast<std::uint64_t>(segment.stride));
    result.layout = mix(result.layout, static_cast<std::uint64_t>(segment.begin));
    result.layout = mix(result.layout, static_cast<std::uint64_t>(segment.count));
  }
  return result;
}

bool agree(const Signature& a, const Signature& b) noexcept {
  const auto one_sided = [](Verb verb) { return verb == Verb::kSend || verb == Verb::kRecv; };
  if (one_sided(a.verb) && one_sided(b.verb)) {
    return a.verb != b.verb && a.sequence == b.sequence && a.dtype == b.dtype &&
           a.elems == b.elems && a.layout == b.layout;
  }
  return same_call(a, b);
}

const char* verb_name(Verb verb) noexcept {
  switch (verb) {
    case Verb::kAllGather:
      return "all_gather";
    case Verb::kReduceScatter:
      return "reduce_scatter";
    case Verb::kAllReduce:
      return "all_reduce";
    case Verb::kBroadcast:
      return "broadcast";
    case Verb::kAllToAll:
      return "all_to_all";
    case Verb::kBarrier:
      return "barrier";
    case Verb::kSplit:
      return "split";
    case Verb::kSend:
      return "send";
    case Verb::kRecv:
      return "recv";
  }
  return "?";
}

std::string describe(const Signature& signature) {
  std::string text = verb_name(signature.verb);
  if (signature.verb == Verb::kReduceScatter || signature.verb == Verb::kAllReduce) {
    text += fmt::format("({})", op_name(signature.op));
  }
  text += fmt::format(" #{}", signature.sequence);
  if (signature.verb != Verb::kBarrier && signature.verb != Verb::kSplit) {
    text += fmt::format(" of {} {}", signature.elems, dtype_name(signature.dtype));
  }
  switch (signature.verb) {
    case Verb::kBroadcast:
    case Verb::kRecv:
      text += fmt::format(" from rank {}", signature.root);
      break;
    case Verb::kSend:
      text += fmt::format(" to rank {}", signature.root);
      break;
    default:
      break;
  }
  if (signature.payload == Payload::kControl) {
    text += " (control)";
  }
  return text + describe(signature.occasion);
}

std::string find_disagreement(std::span<const Signature> signatures, std::span<const int> ranks) {
  for (std::size_t i = 1; i < signatures.size(); ++i) {
    if (agree(signatures[0], signatures[i])) {
      continue;
    }
    const std::string first = describe(signatures[0]);
    std::string other = describe(signatures[i]);
    if (first == other) {
      other += " cut into other pieces";
    }
    return fmt::format("rank {} calls {}, rank {} calls {}", ranks[0], first, ranks[i], other);
  }
  return {};
}

std::string name_ranks(std::span<const Absent> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i].rank);
  }
  return text;
}

PeerError disagreement(const std::string& text, const std::string& group) {
  return PeerError(
      text, "in group " + group, "make all ranks call the same verbs in the same order and sizes");
}

std::string describe_late(std::span<const Absent> missing,
                          const Signature& call,
                          double timeout_s) {
  std::string text =
      missing.empty()
          ? fmt::format("nothing moved for {} s", timeout_s)
          : fmt::format("{} did not arrive within {} s", name_ranks(missing), timeout_s);
  text += " in " + describe(call);
  for (const Absent& absent : missing) {
    text +=
        absent.latest
            ? fmt::format("; rank {} was last seen in {}", absent.rank, describe(*absent.latest))
            : fmt::format("; rank {} has not been seen in this group", absent.rank);
  }
  return text;
}

PeerError late(const std::string& text, const std::string& group) {
  return PeerError(
      text,
      "in group " + group,
      "look at the log of the rank that is late, or raise ZERO_TIMEOUT if it is only slow");
}

}  // namespace zero::comm
