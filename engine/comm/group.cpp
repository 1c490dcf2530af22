#include "engine/comm/call.h"
#include <zero/comm/group.h>
#include <zero/core/error.h>

#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace zero::comm {
namespace {

constexpr const char* kSameEverywhere = "give every rank the same, valid arguments";

Segment whole(const std::byte* src, std::byte* dst, DType dtype, std::int64_t elems) {
  return {.src = src, .dst = dst, .dtype = dtype, .stride = elems, .count = elems, .end = elems};
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) noexcept {
  return (a + b - 1) / b;
}

}  // namespace

Group::Group(RankContext& context, accel::Device& device, int rank, int size)
    : context_(context),
      device_(device),
      rank_(rank),
      size_(size),
      sent_(static_cast<std::size_t>(size)),
      received_(static_cast<std::size_t>(size)) {
  ZERO_CHECK(rank >= 0 && rank < size, fmt::format("rank {} of a group of {}", rank, size));
}

void Group::enqueue_on(Group& inner, Call call, accel::Stream& stream) {
  inner.enqueue(std::move(call), stream);
}

// --- checks of one rank's own arguments

void Group::refuse(Verb verb, const std::string& what, const std::string& todo) const {
  throw InputError(what, fmt::format("in {} on group {}", verb_name(verb), name()), todo);
}

void Group::check_memory(Verb verb, ConstTensorView view, accel::Stream& stream) const {
  const std::int64_t elems = view.elems();
  // On a stream that drops everything views stand for sizes only; such a stream has no events.
  if (elems > 0 && view.data == nullptr && stream.record().state() != nullptr) {
    refuse(verb, fmt::format("an empty view stands for {} elements", elems), "allocate it first");
  }
}

void Group::check_disjoint(Verb verb, ConstTensorView src, ConstTensorView dst) const {
  const auto a = reinterpret_cast<std::uintptr_t>(src.data);
  const auto b = reinterpret_cast<std::uintptr_t>(dst.data);
  if (src.bytes() > 0 && dst.bytes() > 0 && a < b + dst.bytes() && b < a + src.bytes()) {
    refuse(verb, "source and destination overlap", "use the verb that works in place");
  }
}

void Group::check_reducible(Verb verb, DType dtype, ReduceOp op) const {
  if (dtype == DType::kU8 || dtype == DType::kF64) {
    refuse(verb,
           fmt::format("{} has no reduction", dtype_name(dtype)),
           "use fp32, fp16, bf16, int32 or int64");
  }
  if (op == ReduceOp::kMean && !is_floating(dtype)) {
    refuse(verb, fmt::format("{} has no mean", dtype_name(dtype)), "use the sum");
  }
}

void Group::check_peer(Verb verb, int peer) const {
  if (peer < 0 || peer >= size_) {
    refuse(verb,
           fmt::format("there is no rank {}", peer),
           fmt::format("use a rank from 0 to {}", size_ - 1));
  }
  if (verb != Verb::kBroadcast && peer == rank_) {
    refuse(verb, fmt::format("rank {} is the caller itself", peer), "use a copy");
  }
}

std::byte* Group::host_address(const std::byte* data, std::int64_t elems) const {
  if (elems == 0 || data == nullptr) {
    return nullptr;
  }
  std::byte* host = device_.host_pointer(const_cast<std::byte*>(data));
  if (host == nullptr) {
    throw DeviceError(fmt::format("memory of {} cannot be reached by the host", device_.name()),
                      "in group " + name(),
                      "use a back end made for this device");
  }
  return host;
}

// --- the common ways of a call

accel::Event Group::start(Call call, accel::Stream& stream) {
  if (size_ > 1) {
    call.sequence = next_sequence();
    call.occasion = make_occasion(context_.step, about_);
    enqueue(std::move(call), stream);
  }
  return stream.record();
}

accel::Event Group::start_pairwise(Call call,
                                   std::vector<std::uint64_t>& counters,
                                   accel::Stream& stream) {
  call.sequence = counters[static_cast<std::size_t>(call.root)]++;
  call.occasion = make_occasion(context_.step, about_);
  enqueue(std::move(call), stream);
  return stream.record();
}

accel::Event Group::copy_alone(ConstTensorView src, TensorView dst, accel::Stream& stream) {
  if (src.elems() > 0) {
    device_.copy(src.reshape({src.elems()}), dst.reshape({dst.elems()}), stream);
  }
  return stream.record();
}

Call Group::sliced_call(Verb verb, std::span<const SlicedView> views, accel::Stream& stream) const {
  Call call{.verb = verb};
  for (const SlicedView& view : views) {
    const std::int64_t elems = view.buffer.elems();
    check_memory(verb, view.buffer, stream);
    const std::int64_t slice = elems / size_;
    if (elems % size_ != 0) {
      refuse(verb,
             fmt::format("a buffer of {} elements has no {} equal slices", elems, size_),
             "pad it to a multiple of the number of ranks");
    }
    if (view.begin < 0 || view.count < 0 || view.begin > slice - view.count) {
      refuse(verb,
             fmt::format("elements [{}, {} + {}) lie outside a slice of {}",
                         view.begin,
                         view.begin,
                         view.count,
                         slice),
             kSameEverywhere);
    }
    std::byte* host = host_address(view.buffer.data, elems);
    call.segments.push_back({.src = host,
                             .dst = host,
                             .dtype = view.buffer.dtype,
                             .stride = slice,
                             .begin = view.begin,
                             .count = view.count,
                             .end = elems,
                             .src_sliced = true,
                             .dst_sliced = true});
  }
  return call;
}

// --- verbs

accel::Event Group::all_gather_in_place(std::span<const SlicedView> views, accel::Stream& stream) {
  return start(sliced_call(Verb::kAllGather, views, stream), stream);
}

accel::Event Group::reduce_scatter_in_place(std::span<const SlicedView> views,
                                            ReduceOp op,
                                            accel::Stream& stream) {
  for (const SlicedView& view : views) {
    check_reducible(Verb::kReduceScatter, view.buffer.dtype, op);
  }
  Call call = sliced_call(Verb::kReduceScatter, views, stream);
  call.op = op;
  return start(std::move(call), stream);
}

accel::Event Group::all_reduce_in_place(std::span<const TensorView> views,
                                        ReduceOp op,
                                        accel::Stream& stream,
                                        Payload payload) {
  Call call{.verb = Verb::kAllReduce, .op = op, .payload = payload};
  for (const TensorView& view : views) {
    check_reducible(Verb::kAllReduce, view.dtype, op);
    check_memory(Verb::kAllReduce, view, stream);
    std::byte* host = host_address(view.data, view.elems());
    Segment segment = whole(host, host, view.dtype, view.elems());
    segment.stride = segment.count = divide_up(view.elems(), size_);
    segment.src_sliced = segment.dst_sliced = true;
    call.segments.push_back(segment);
  }
  return start(std::move(call), stream);
}

accel::Event Group::all_gather(ConstTensorView src,
                               TensorView dst,
                               accel::Stream& stream,
                               Payload payload) {
  constexpr Verb kVerb = Verb::kAllGather;
  check_memory(kVerb, src, stream);
  check_memory(kVerb, dst, stream);
  if (src.dtype != dst.dtype || dst.elems() != src.elems() * size_) {
    refuse(kVerb,
           fmt::format("{} {} do not become {} {} on {} ranks",
                       src.elems(),
                       dtype_name(src.dtype),
                       dst.elems(),
                       dtype_name(dst.dtype),
                       size_),
           "make the destination N times the source, of the same type");
  }
  check_disjoint(kVerb, src, dst);
  if (size_ == 1) {
    return copy_alone(src, dst, stream);
  }
  Segment segment = whole(host_address(src.data, src.elems()),
                          host_address(dst.data, dst.elems()),
                          src.dtype,
                          src.elems());
  segment.end = dst.elems();
  segment.dst_sliced = true;
  return start({.verb = kVerb, .payload = payload, .segments = {segment}}, stream);
}

accel::Event Group::reduce_scatter(ConstTensorView src,
                                   TensorView dst,
                                   ReduceOp op,
                                   accel::Stream& stream) {
  constexpr Verb kVerb = Verb::kReduceScatter;
  check_reducible(kVerb, src.dtype, op);
  check_memory(kVerb, src, stream);
  check_memory(kVerb, dst, stream);
  if (src.dtype != dst.dtype || src.elems() != dst.elems() * size_) {
    refuse(kVerb,
           fmt::format("{} {} do not scatter to {} {} on {} ranks",
                       src.elems(),
                       dtype_name(src.dtype),
                       dst.elems(),
                       dtype_name(dst.dtype),
                       size_),
           "make the source N times the destination, of the same type");
  }
  check_disjoint(kVerb, src, dst);
  if (size_ == 1) {
    return copy_alone(src, dst, stream);
  }
  Segment segment = whole(host_address(src.data, src.elems()),
                          host_address(dst.data, dst.elems()),
                          src.dtype,
                          dst.elems());
  segment.end = src.elems();
  segment.src_sliced = true;
  return start({.verb = kVerb, .op = op, .segments = {segment}}, stream);
}

accel::Event Group::broadcast(TensorView view, int root, accel::Stream& stream, Payload payload) {
  check_peer(Verb::kBroadcast, root);
  check_memory(Verb::kBroadcast, view, stream);
  std::byte* host = host_address(view.data, view.elems());
  return start({.verb = Verb::kBroadcast,
                .payload = payload,
                .root = root,
                .segments = {whole(host, host, view.dtype, view.elems())}},
               stream);
}

accel::Event Group::all_to_all(ConstTensorView src, TensorView dst, accel::Stream& stream) {
  constexpr Verb kVerb = Verb::kAllToAll;
  check_memory(kVerb, src, stream);
  check_memory(kVerb, dst, stream);
  if (src.dtype != dst.dtype || src.elems() != dst.elems() || src.elems() % size_ != 0) {
    refuse(kVerb,
           fmt::format("{} {} do not go to {} {} in {} equal slices",
                       src.elems(),
                       dtype_name(src.dtype),
                       dst.elems(),
                       dtype_name(dst.dtype),
                       size_),
           "make both the same multiple of the number of ranks, of the same type");
  }
  check_disjoint(kVerb, src, dst);
  if (size_ == 1) {
    return copy_alone(src, dst, stream);
  }
  Segment segment = whole(host_address(src.data, src.elems()),
                          host_address(dst.data, dst.elems()),
                          src.dtype,
                          src.elems() / size_);
  segment.end = src.elems();
  segment.src_sliced = segment.dst_sliced = true;
  return start({.verb = kVerb, .segments = {segment}}, stream);
}

accel::Event Group::send(ConstTensorView src, int to, accel::Stream& stream) {
  check_peer(Verb::kSend, to);
  check_memory(Verb::kSend, src, stream);
  const std::byte* host = host_address(src.data, src.elems());
  return start_pairwise(
      {.verb = Verb::kSend, .root = to, .segments = {whole(host, nullptr, src.dtype, src.elems())}},
      sent_,
      stream);
}

accel::Event Group::recv(TensorView dst, int from, accel::Stream& stream) {
  check_peer(Verb::kRecv, from);
  check_memory(Verb::kRecv, dst, stream);
  std::byte* host = host_address(dst.data, dst.elems());
  return start_pairwise({.verb = Verb::kRecv,
                         .root = from,
                         .segments = {whole(nullptr, host, dst.dtype, dst.elems())}},
                        received_,
                        stream);
}

accel::Event Group::barrier(accel::Stream& stream) {
  return start({.verb = Verb::kBarrier, .payload = Payload::kControl}, stream);
}

}  // namespace zero::comm
