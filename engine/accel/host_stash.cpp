#include <zero/accel/host_stash.h>
#include <zero/core/round_up.h>

#include <algorithm>
#include <string>

namespace zero::accel {
namespace {

constexpr std::int64_t kAlignBytes = 64;

std::size_t padded(ConstTensorView x) {
  return static_cast<std::size_t>(round_up(static_cast<std::int64_t>(x.bytes()), kAlignBytes));
}

}  // namespace

Event HostStash::push(ConstTensorView x, Stream& compute) {
  const std::size_t bytes = padded(x);
  if (device_ != nullptr && used_ + bytes > capacity_) {
    throw ResourceError(
        "host memory of " + std::to_string(capacity_) + " bytes for activations is full",
        "while taking " + std::to_string(bytes) + " bytes",
        "run passes of one shape as they were profiled");
  }
  std::byte* place = base_ + used_;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  if (device_ == nullptr) {
    return {};
  }
  copies_->wait(compute.record());  // read-after-write: x
  device_->copy(x, {place, x.dtype, x.shape}, *copies_);
  return copies_->record();
}

Event HostStash::pop(TensorView x, Stream& compute) {
  const std::size_t bytes = padded(x);
  ZERO_CHECK(bytes <= used_, "more is taken from the host than was put there");
  used_ -= bytes;
  if (device_ == nullptr) {
    return {};
  }
  copies_->wait(compute.record());  // write-after-read: what x held
  device_->copy({base_ + used_, x.dtype, x.shape}, x, *copies_);
  return copies_->record();
}

}  // namespace zero::accel
