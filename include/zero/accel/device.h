#pragma once

#include <zero/accel/kernels.h>
#include <zero/accel/stream.h>
#include <zero/core/ledger.h>
#include <zero/core/rank_context.h>
#include <zero/core/tensor_view.h>

#include <memory>
#include <string>

namespace zero::accel {

class Device;

/// Owner of one allocation; its bytes are in the ledger under its category for as long as it lives.
/// Move-only. The owner must keep it until no enqueued work uses it (the destructor does not wait).
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(Device& device,
         std::byte* data,
         std::size_t bytes,
         MemorySpace space,
         Category category) noexcept
      : device_(&device), data_(data), bytes_(bytes), space_(space), category_(category) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer old(std::move(other));
    swap(old);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr; }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// The whole buffer as `elems` elements of `dtype` from its start.
  [[nodiscard]] TensorView view(DType dtype, Shape shape) const;

 private:
  void swap(Buffer& other) noexcept;

  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemorySpace space_ = MemorySpace::kDevice;
  Category category_ = Category::kOther;
};

/// One accelerator as one rank sees it: memory, streams and kernels. Outlives its buffers and
/// streams.
///
/// Device pointers may be dereferenced by kernels and copies of this layer only (the preset
/// `biased` proves it).
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  Device(Device&&) = delete;
  Device& operator=(Device&&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] virtual const std::string& name() const = 0;
  /// Compute threads of this rank (CPU) or 1.
  [[nodiscard]] virtual int threads() const = 0;
  /// Kernels on tensors that all lie in `space`; those for kHost run on the CPU, on any stream.
  [[nodiscard]] virtual const Kernels& kernels(MemorySpace space) const = 0;
  [[nodiscard]] const Kernels& kernels() const { return kernels(MemorySpace::kDevice); }

  /// `bytes` of uninitialised memory, 64-byte aligned (4096 from 1 MiB on). kHost is page-aligned
  /// memory that copies to and from the device run asynchronously with. Throws ResourceError naming
  /// bytes and category.
  [[nodiscard]] virtual Buffer allocate(std::size_t bytes,
                                        Category category,
                                        MemorySpace space) = 0;
  [[nodiscard]] Buffer allocate(std::size_t bytes, Category category) {
    return allocate(bytes, category, MemorySpace::kDevice);
  }

  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream(const std::string& name) = 0;
  /// A stream that drops everything: models run on it to count what they would need.
  [[nodiscard]] virtual std::unique_ptr<Stream> make_null_stream() = 0;

  /// Copies between any two spaces; same dtype and element count. Returns at once; both must live
  /// until the stream has passed.
  virtual void copy(ConstTensorView src, TensorView dst, Stream& stream) = 0;
  /// Host → device of values that are kept alive by the call itself.
  virtual void upload(std::shared_ptr<const std::byte[]> src, TensorView dst, Stream& stream) = 0;
  /// Sets every byte to zero.
  virtual void zero(TensorView dst, Stream& stream) = 0;

  /// The address under which host code (transports) may read and write device memory, or nullptr
  /// where the device is not host-addressable (CUDA). On the CPU this takes the bias of the test
  /// preset away.
  [[nodiscard]] virtual std::byte* host_pointer(std::byte* device_pointer) const = 0;
  [[nodiscard]] const std::byte* host_pointer(const std::byte* device_pointer) const {
    return host_pointer(const_cast<std::byte*>(device_pointer));
  }

 protected:
  friend class Buffer;
  virtual void deallocate(std::byte* data,
                          std::size_t bytes,
                          MemorySpace space,
                          Category category) noexcept = 0;
};

/// The CPU as a device: streams are worker threads, kernels run with `threads` threads each.
/// `context` must outlive the device.
[[nodiscard]] std::unique_ptr<Device> make_cpu_device(RankContext& context, int threads);

}  // namespace zero::accel
