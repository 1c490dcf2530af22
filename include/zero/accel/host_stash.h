#pragma once

#include <zero/accel/device.h>
#include <zero/accel/stream.h>

#include <cstddef>

namespace zero::accel {

/// Host memory for activations that a pass will want back in reverse order (ds_config:
/// activation_checkpointing.cpu_checkpointing). Copies run on a stream of their own, beside the
/// model's kernels. Thread: the thread that runs the model.
class HostStash {
 public:
  /// Counts only, for planning with a null stream.
  HostStash() = default;
  /// Copies on `copies` to and from `host`; both must outlive it.
  HostStash(Device& device, Stream& copies, const Buffer& host)
      : device_(&device), copies_(&copies), base_(host.data()), capacity_(host.bytes()) {}

  /// Copies what `compute` has written to `x` so far to the host. The event: `x` may be written
  /// again. Throws ResourceError if the memory is full.
  [[nodiscard]] Event push(ConstTensorView x, Stream& compute);
  /// Copies the latest push back into `x`, of its dtype and shape, once `compute` has passed what
  /// it does so far. The event: `x` may be read.
  [[nodiscard]] Event pop(TensorView x, Stream& compute);
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }

 private:
  Device* device_ = nullptr;
  Stream* copies_ = nullptr;
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace zero::accel
