#pragma once

#include <zero/accel/device.h>
#include <zero/comm/group.h>
#include <zero/core/dtype.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Calls of a group with their inputs and what a scalar loop in rank order makes of them; the same
/// for all back ends.
namespace zero::comm_cases {

/// Host elements of one dtype.
struct Array {
  DType dtype = DType::kF32;
  std::vector<std::byte> bytes;

  Array(DType type, std::int64_t elems)
      : dtype(type), bytes(static_cast<std::size_t>(elems) * dtype_size(type)) {}
  [[nodiscard]] std::int64_t elems() const {
    return static_cast<std::int64_t>(bytes.size() / dtype_size(dtype));
  }
  [[nodiscard]] std::uint64_t bits(std::int64_t i) const;
  void set_bits(std::int64_t i, std::uint64_t value);
};

enum class Kind : std::uint8_t {
  kGatherInPlace,
  kScatterInPlace,
  kAllReduce,
  kGather,
  kScatter,
  kBroadcast,
  kAllToAll,
  kRing,  ///< send to the next rank, receive from the one before
};

struct Case {
  Kind kind = Kind::kGather;
  std::vector<DType> dtypes;  ///< one array (or pair of arrays) each; a grouped call if several
  comm::ReduceOp op = comm::ReduceOp::kSum;
  std::int64_t count = 0;  ///< elements that move, of a slice (all_reduce, broadcast, ring: of all)
  std::int64_t begin = 0;  ///< in-place kinds: first element of the piece in its slice
  std::int64_t rest = 0;   ///< in-place kinds: elements of the slice behind the piece
};
[[nodiscard]] std::string to_string(const Case& c);

/// What rank `rank` of `size` has in memory before the call. No two elements of any two ranks are
/// equal (but for the 16-bit types if they are many); exponents spread over 32, so order matters.
[[nodiscard]] std::vector<Array> inputs(const Case& c, int rank, int size);
/// All of its memory afterwards.
[[nodiscard]] std::vector<Array> expected(const Case& c, int rank, int size);
/// Runs the call and returns all of the memory afterwards.
[[nodiscard]] std::vector<Array> execute(const Case& c,
                                         comm::Group& group,
                                         accel::Device& device,
                                         accel::Stream& stream);
/// Empty, or where `got` differs from `want`.
[[nodiscard]] std::string difference(const Case& c,
                                     const std::vector<Array>& got,
                                     const std::vector<Array>& want);
/// Bytes that this rank sends (= receives) in the call, where slices are equal.
[[nodiscard]] std::uint64_t bytes_each_way(const Case& c, int size);

/// Every kind × dtypes × operators with `counts`, whole and in pieces.
[[nodiscard]] std::vector<Case> all_cases(const std::vector<std::int64_t>& counts);
/// All of them on one group; the differences.
[[nodiscard]] std::vector<std::string> run_all(const std::vector<Case>& cases,
                                               comm::Group& group,
                                               accel::Device& device,
                                               accel::Stream& stream);

}  // namespace zero::comm_cases
