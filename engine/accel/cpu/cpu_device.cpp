#include "engine/accel/cpu/cpu_kernels.h"
#include "engine/accel/cpu/cpu_stream.h"
#include "engine/accel/cpu/host_memory.h"
#include <zero/accel/device.h>
#include <zero/core/round_up.h>

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace zero::accel {
namespace {

/// From here on memory is mapped and unmapped by itself, so that what is freed goes back to the
/// system.
constexpr std::size_t kMapBytes = std::size_t{1} << 20U;
constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPage = 4096;

void* take(std::size_t bytes, MemorySpace space) {
  if (bytes < kMapBytes) {
    const std::size_t alignment = space == MemorySpace::kHost ? kPage : kCacheLine;
    return std::aligned_alloc(alignment, round_up(bytes == 0 ? 1 : bytes, alignment));
  }
  void* memory = ::mmap(
      nullptr, round_up(bytes, kPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void give_back(void* memory, std::size_t bytes) noexcept {
  if (bytes < kMapBytes) {
    std::free(memory);
  } else {
    ::munmap(memory, round_up(bytes, kPage));
  }
}

class CpuDevice final : public Device {
 public:
  CpuDevice(RankContext& context, int threads)
      : context_(context), threads_(threads), kernels_(make_cpu_kernels(*this)) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] int threads() const override { return threads_; }
  using Device::kernels;
  [[nodiscard]] const Kernels& kernels(MemorySpace /*space*/) const override { return *kernels_; }

  [[nodiscard]] Buffer allocate(std::size_t bytes, Category category, MemorySpace space) override {
    context_.ledger.add(space, category, static_cast<std::int64_t>(bytes));
    void* memory = take(bytes, space);
    if (memory == nullptr) {
      context_.ledger.subtract(space, category, static_cast<std::int64_t>(bytes));
      throw ResourceError(
          fmt::format("no memory for {} bytes of {}", bytes, category_name(category)),
          fmt::format("rank {}", context_.rank),
          "use a higher ZeRO stage, more ranks or a smaller micro-batch");
    }
    auto* data = static_cast<std::byte*>(memory);
    return {
        *this, space == MemorySpace::kDevice ? data + kDeviceBias : data, bytes, space, category};
  }

  [[nodiscard]] std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<CpuStream>(name, threads_);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_null_stream() override {
    return std::make_unique<NullStream>();
  }

  void copy(ConstTensorView src, TensorView dst, Stream& stream) override {
    ZERO_CHECK(src.dtype == dst.dtype && src.elems() == dst.elems(),
               "copy between different views");
    stream.host_task([src, dst] {
      if (src.bytes() > 0) {
        std::memmove(host_address(dst.data), host_address(src.data), src.bytes());
      }
    });
  }
  void upload(std::shared_ptr<const std::byte[]> src, TensorView dst, Stream& stream) override {
    stream.host_task([src = std::move(src), dst] {
      if (dst.bytes() > 0) {
        std::memcpy(host_address(dst.data), src.get(), dst.bytes());
      }
    });
  }
  void zero(TensorView dst, Stream& stream) override {
    stream.host_task([dst] {
      if (dst.bytes() > 0) {
        std::memset(host_address(dst.data), 0, dst.bytes());
      }
    });
  }
  using Device::host_pointer;
  [[nodiscard]] std::byte* host_pointer(std::byte* device_pointer) const override {
    return host_address(device_pointer);
  }

 protected:
  void deallocate(std::byte* data,
                  std::size_t bytes,
                  MemorySpace space,
                  Category category) noexcept override {
    give_back(host_address(data), bytes);
    context_.ledger.subtract(space, category, static_cast<std::int64_t>(bytes));
  }

 private:
  RankContext& context_;
  int threads_;
  std::unique_ptr<Kernels> kernels_;
  std::string name_ = "cpu";
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(RankContext& context, int threads) {
  return std::make_unique<CpuDevice>(context, threads);
}

}  // namespace zero::accel
