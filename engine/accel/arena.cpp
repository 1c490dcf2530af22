#include <zero/accel/arena.h>

#include <algorithm>
#include <string>

namespace zero::accel {
namespace {

constexpr std::size_t kAlignBytes = 64;

}  // namespace

TensorView Arena::take(DType dtype, const Shape& shape) {
  const TensorView view{base_ + used_, dtype, shape};
  const std::size_t bytes = (view.bytes() + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  if (base_ != nullptr && used_ + bytes > capacity_) {
    throw ResourceError("activation memory of " + std::to_string(capacity_) + " bytes is full",
                        "while taking " + std::to_string(bytes) + " bytes",
                        "run passes of one shape as they were profiled");
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  // A counting arena gives an address that is not null, so that views count as present.
  return base_ != nullptr ? view
                          : TensorView{reinterpret_cast<std::byte*>(kAlignBytes), dtype, shape};
}

void Arena::release(std::size_t mark) {
  ZERO_CHECK(mark <= used_, "arena memory is released twice");
  used_ = mark;
}

}  // namespace zero::accel
