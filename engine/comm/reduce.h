#pragma once

#include <zero/comm/group.h>
#include <zero/core/dtype.h>

#include <cstddef>
#include <span>

namespace zero::comm {

/// dst[i] = op over sources[0][i], sources[1][i], …, in this order; the one reduction of all back
/// ends.
///
/// fp32, fp16, bf16: fp32 accumulator that starts as the first source, kMean multiplies it by 1/N
/// (rounded to fp32), then one rounding to the dtype; kMax: a NaN wins. int32, int64: modulo 2^n.
/// dst may be one of the sources. Every source has at least dst.size() bytes.
void reduce_in_order(std::span<const std::byte* const> sources,
                     std::span<std::byte> dst,
                     DType dtype,
                     ReduceOp op);

}  // namespace zero::comm
