#include "cases.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace zero::comm_cases {
namespace {

using comm::ReduceOp;

/// A different number for each index below 2^bits.
std::uint64_t spread(std::uint64_t index, unsigned bits) {
  return (index * 0x9E3779B1ULL + 0x2F0B4C47ULL) & ((1ULL << bits) - 1);
}

/// Bits of the floating number number `index`: sign, 5 bits of exponent (fp16: 4), all the
/// mantissa.
std::uint64_t floating_bits(DType dtype, std::uint64_t index) {
  switch (dtype) {
    case DType::kBF16: {
      const std::uint64_t x = spread(index, 13);
      return (x >> 12U) << 15U | (((x >> 7U) & 31U) + 112U) << 7U | (x & 127U);
    }
    case DType::kF16: {
      const std::uint64_t x = spread(index, 15);
      return (x >> 14U) << 15U | (((x >> 10U) & 15U) + 6U) << 10U | (x & 1023U);
    }
    default: {
      const std::uint64_t x = spread(index, 29);
      return (x >> 28U) << 31U | (((x >> 23U) & 31U) + 112U) << 23U | (x & 0x7FFFFFU);
    }
  }
}

Array distinct(DType dtype, std::int64_t elems, int rank, std::uint64_t salt) {
  Array array(dtype, elems);
  for (std::int64_t i = 0; i < elems; ++i) {
    const auto index = static_cast<std::uint64_t>(rank * elems + i) + salt;
    array.set_bits(i,
                   is_floating(dtype) && dtype != DType::kF64 ? floating_bits(dtype, index)
                                                              : index * 0x9E3779B97F4A7C15ULL);
  }
  return array;
}

float as_float(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::kBF16:
      return to_float(BFloat16{static_cast<std::uint16_t>(bits)});
    case DType::kF16:
      return to_float(Float16{static_cast<std::uint16_t>(bits)});
    default:
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  }
}

std::uint64_t from_float_bits(DType dtype, float x) {
  switch (dtype) {
    case DType::kBF16:
      return to_bfloat16(x).bits;
    case DType::kF16:
      return to_float16(x).bits;
    default:
      return std::bit_cast<std::uint32_t>(x);
  }
}

std::int64_t as_int(DType dtype, std::uint64_t bits) {
  return dtype == DType::kI32 ? static_cast<std::int32_t>(bits) : static_cast<std::int64_t>(bits);
}

/// The oracle: one element of every rank, in rank order.
std::uint64_t reduced(const std::vector<Array>& of_ranks, std::int64_t i, ReduceOp op) {
  const DType dtype = of_ranks.front().dtype;
  if (!is_floating(dtype)) {
    std::uint64_t acc = of_ranks.front().bits(i);
    for (std::size_t k = 1; k < of_ranks.size(); ++k) {
      const std::uint64_t x = of_ranks[k].bits(i);
      if (op == ReduceOp::kMax) {
        acc = as_int(dtype, x) > as_int(dtype, acc) ? x : acc;
      } else {
        acc += x;
      }
    }
    return acc;
  }
  volatile float acc = as_float(dtype, of_ranks.front().bits(i));
  for (std::size_t k = 1; k < of_ranks.size(); ++k) {
    const float x = as_float(dtype, of_ranks[k].bits(i));
    if (op == ReduceOp::kMax) {
      acc = x > acc ? x : acc;
    } else {
      acc = acc + x;
    }
  }
  if (op == ReduceOp::kMean) {
    acc = acc * (1.0F / static_cast<float>(of_ranks.size()));
  }
  return from_float_bits(dtype, acc);
}

std::int64_t slice_of(const Case& c) {
  return c.begin + c.count + c.rest;
}

bool in_place(Kind kind) {
  return kind == Kind::kGatherInPlace || kind == Kind::kScatterInPlace;
}

/// Array `a` of every rank before the call.
std::vector<Array> of_all_ranks(const Case& c, std::size_t a, int size) {
  std::vector<Array> result;
  result.reserve(static_cast<std::size_t>(size));
  for (int k = 0; k < size; ++k) {
    result.push_back(inputs(c, k, size)[a]);
  }
  return result;
}

void copy_elems(const Array& from, std::int64_t at, Array& to, std::int64_t to_at, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    to.set_bits(to_at + i, from.bits(at + i));
  }
}

/// Kinds with one array for each dtype.
void expect_in_place(const Case& c, int rank, const std::vector<Array>& all, Array& mine) {
  const std::int64_t slice = slice_of(c);
  const int size = static_cast<int>(all.size());
  if (c.kind == Kind::kGatherInPlace) {
    for (int k = 0; k < size; ++k) {
      const std::int64_t first = k * slice + c.begin;
      copy_elems(all[static_cast<std::size_t>(k)], first, mine, first, c.count);
    }
  } else if (c.kind == Kind::kScatterInPlace) {
    for (std::int64_t i = 0; i < c.count; ++i) {
      const std::int64_t place = rank * slice + c.begin + i;
      mine.set_bits(place, reduced(all, place, c.op));
    }
  } else if (c.kind == Kind::kAllReduce) {
    for (std::int64_t i = 0; i < c.count; ++i) {
      mine.set_bits(i, reduced(all, i, c.op));
    }
  } else {
    mine = all[static_cast<std::size_t>(size - 1)];  // broadcast from the last rank
  }
}

/// Kinds with a source and a destination.
void expect_apart(const Case& c, int rank, const std::vector<Array>& sources, Array& dst) {
  const int size = static_cast<int>(sources.size());
  for (int k = 0; k < size; ++k) {
    const Array& source = sources[static_cast<std::size_t>(k)];
    if (c.kind == Kind::kGather) {
      copy_elems(source, 0, dst, k * c.count, c.count);
    } else if (c.kind == Kind::kAllToAll) {
      copy_elems(source, rank * c.count, dst, k * c.count, c.count);
    } else if (c.kind == Kind::kRing && (k + 1) % size == rank) {
      copy_elems(source, 0, dst, 0, c.count);
    }
  }
  if (c.kind == Kind::kScatter) {
    for (std::int64_t i = 0; i < c.count; ++i) {
      dst.set_bits(i, reduced(sources, rank * c.count + i, c.op));
    }
  }
}

bool one_array(Kind kind) {
  return in_place(kind) || kind == Kind::kAllReduce || kind == Kind::kBroadcast;
}

/// Even ranks send first, so that one stream does for both.
void ring(comm::Group& group, const std::vector<TensorView>& views, accel::Stream& stream) {
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
  const auto give = [&] { (void)group.send(views[0], next, stream); };
  const auto take = [&] { (void)group.recv(views[1], before, stream); };
  if (group.size() == 1) {
    return;
  }
  if (group.rank() % 2 == 0) {
    give();
    take();
  } else {
    take();
    give();
  }
}

void call(const Case& c,
          comm::Group& group,
          const std::vector<TensorView>& views,
          accel::Stream& stream) {
  std::vector<comm::SlicedView> sliced;
  sliced.reserve(views.size());
  for (const TensorView& view : views) {
    sliced.push_back({view, c.begin, c.count});
  }
  switch (c.kind) {
    case Kind::kGatherInPlace:
      return (void)group.all_gather_in_place(sliced, stream);
    case Kind::kScatterInPlace:
      return (void)group.reduce_scatter_in_place(sliced, c.op, stream);
    case Kind::kAllReduce:
      return (void)group.all_reduce_in_place(views, c.op, stream);
    case Kind::kGather:
      return (void)group.all_gather(views[0], views[1], stream);
    case Kind::kScatter:
      return (void)group.reduce_scatter(views[0], views[1], c.op, stream);
    case Kind::kBroadcast:
      return (void)group.broadcast(views[0], group.size() - 1, stream);
    case Kind::kAllToAll:
      return (void)group.all_to_all(views[0], views[1], stream);
    case Kind::kRing:
      return ring(group, views, stream);
  }
}

}  // namespace

std::uint64_t Array::bits(std::int64_t i) const {
  const std::size_t size = dtype_size(dtype);
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * size, size);
  return value;
}

void Array::set_bits(std::int64_t i, std::uint64_t value) {
  const std::size_t size = dtype_size(dtype);
  std::memcpy(bytes.data() + static_cast<std::size_t>(i) * size, &value, size);
}

std::string to_string(const Case& c) {
  constexpr const char* kNames[] = {"all_gather_in_place",
                                    "reduce_scatter_in_place",
                                    "all_reduce_in_place",
                                    "all_gather",
                                    "reduce_scatter",
                                    "broadcast",
                                    "all_to_all",
                                    "ring"};
  std::string text =
      fmt::format("{} op {} of", kNames[static_cast<int>(c.kind)], static_cast<int>(c.op));
  for (const DType dtype : c.dtypes) {
    text += fmt::format(" {}", dtype_name(dtype));
  }
  return text + fmt::format(" [{}, +{}) +{}", c.begin, c.count, c.rest);
}

std::vector<Array> inputs(const Case& c, int rank, int size) {
  std::vector<Array> result;
  std::uint64_t salt = 1;
  for (const DType dtype : c.dtypes) {
    if (in_place(c.kind)) {
      result.push_back(distinct(dtype, slice_of(c) * size, rank, salt));
    } else if (one_array(c.kind)) {
      result.push_back(distinct(dtype, c.count, rank, salt));
    } else {
      const bool many_in = c.kind == Kind::kScatter || c.kind == Kind::kAllToAll;
      const bool many_out = c.kind == Kind::kGather || c.kind == Kind::kAllToAll;
      result.push_back(distinct(dtype, c.count * (many_in ? size : 1), rank, salt));
      result.emplace_back(dtype, c.count * (many_out ? size : 1));
    }
    salt += 7919;
  }
  return result;
}

std::vector<Array> expected(const Case& c, int rank, int size) {
  std::vector<Array> result = inputs(c, rank, size);
  if (one_array(c.kind)) {
    for (std::size_t a = 0; a < result.size(); ++a) {
      expect_in_place(c, rank, of_all_ranks(c, a, size), result[a]);
    }
  } else if (c.kind != Kind::kRing || size > 1) {
    expect_apart(c, rank, of_all_ranks(c, 0, size), result[1]);
  }
  return result;
}

std::vector<Array> execute(const Case& c,
                           comm::Group& group,
                           accel::Device& device,
                           accel::Stream& stream) {
  std::vector<Array> memory = inputs(c, group.rank(), group.size());
  std::vector<accel::Buffer> buffers;
  std::vector<TensorView> views;
  const auto host = [](Array& array) {
    return TensorView{array.bytes.data(), array.dtype, Shape{array.elems()}};
  };
  for (Array& array : memory) {
    buffers.push_back(device.allocate(array.bytes.size() + 64, Category::kOther));
    views.push_back({buffers.back().data(), array.dtype, Shape{array.elems()}});
    if (array.elems() > 0) {
      device.copy(host(array), views.back(), stream);
    }
  }
  call(c, group, views, stream);
  for (std::size_t a = 0; a < memory.size(); ++a) {
    if (memory[a].elems() > 0) {
      device.copy(views[a], host(memory[a]), stream);
    }
  }
  stream.synchronize();
  return memory;
}

std::string difference(const Case& c,
                       const std::vector<Array>& got,
                       const std::vector<Array>& want) {
  for (std::size_t a = 0; a < want.size(); ++a) {
    for (std::int64_t i = 0; i < want[a].elems(); ++i) {
      if (got[a].bits(i) != want[a].bits(i)) {
        return fmt::format("{}: array {} element {} is {:x}, not {:x}",
                           to_string(c),
                           a,
                           i,
                           got[a].bits(i),
                           want[a].bits(i));
      }
    }
  }
  return {};
}

std::uint64_t bytes_each_way(const Case& c, int size) {
  std::uint64_t bytes = 0;
  for (const DType dtype : c.dtypes) {
    const std::uint64_t moved = static_cast<std::uint64_t>(c.count) * dtype_size(dtype);
    const auto others = static_cast<std::uint64_t>(size - 1);
    bytes += c.kind == Kind::kAllReduce ? 2 * moved * others / static_cast<std::uint64_t>(size)
                                        : moved * others;
  }
  return bytes;
}

std::vector<Case> all_cases(const std::vector<std::int64_t>& counts) {
  const std::vector<DType> every = {
      DType::kF32, DType::kF16, DType::kBF16, DType::kI32, DType::kI64, DType::kF64, DType::kU8};
  std::vector<Case> cases;
  for (const std::int64_t n : counts) {
    for (const DType dtype : every) {
      cases.push_back({.kind = Kind::kGatherInPlace, .dtypes = {dtype}, .count = n});
      cases.push_back(
          {.kind = Kind::kGatherInPlace, .dtypes = {dtype}, .count = n, .begin = 3, .rest = 5});
      for (const Kind kind : {Kind::kGather, Kind::kBroadcast, Kind::kAllToAll, Kind::kRing}) {
        cases.push_back({.kind = kind, .dtypes = {dtype}, .count = n});
      }
      if (dtype == DType::kF64 || dtype == DType::kU8) {
        continue;  // they only move
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
        if (op == ReduceOp::kMean && !is_floating(dtype)) {
          continue;
        }
        for (const Kind kind : {Kind::kScatterInPlace, Kind::kScatter, Kind::kAllReduce}) {
          cases.push_back({.kind = kind, .dtypes = {dtype}, .op = op, .count = n});
        }
        cases.push_back({.kind = Kind::kScatterInPlace,
                         .dtypes = {dtype},
                         .op = op,
                         .count = n,
                         .begin = 2,
                         .rest = 1});
      }
    }
    const std::vector<DType> mixed = {DType::kF32, DType::kBF16, DType::kF32};
    for (const Kind kind : {Kind::kGatherInPlace, Kind::kScatterInPlace, Kind::kAllReduce}) {
      cases.push_back({.kind = kind, .dtypes = mixed, .op = ReduceOp::kMean, .count = n});
    }
  }
  return cases;
}

std::vector<std::string> run_all(const std::vector<Case>& cases,
                                 comm::Group& group,
                                 accel::Device& device,
                                 accel::Stream& stream) {
  std::vector<std::string> failures;
  for (const Case& c : cases) {
    const std::string text =
        difference(c, execute(c, group, device, stream), expected(c, group.rank(), group.size()));
    if (!text.empty()) {
      failures.push_back(fmt::format("rank {}: {}", group.rank(), text));
    }
  }
  return failures;
}

}  // namespace zero::comm_cases
