#include <zero/core/unique_handle.h>
#include <zero/offload/aio_queue.h>

#include <fmt/core.h>
#include <libaio.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

namespace zero::offload {
namespace {

struct ContextTraits {
  using Value = io_context_t;
  static constexpr io_context_t kNull = nullptr;
  static void close(io_context_t context) noexcept { (void)::io_destroy(context); }
};

class KernelQueue final : public AioQueue {
 public:
  KernelQueue(io_context_t context, std::size_t depth)
      : context_(context), blocks_(depth), pointers_(depth), events_(depth) {}

  [[nodiscard]] int submit(std::span<const AioRequest> requests) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const AioRequest& request = requests[i];
      iocb& block = blocks_.at(request.tag);
      const auto prepare = request.write ? io_prep_pwrite : io_prep_pread;
      prepare(&block,
              request.descriptor,
              request.data,
              request.bytes,
              static_cast<long long>(request.offset));
      pointers_.at(i) = &block;
    }
    return ::io_submit(context_.get(), static_cast<long>(requests.size()), pointers_.data());
  }

  [[nodiscard]] int reap(std::span<AioCompletion> done) override {
    const auto most = static_cast<long>(std::min(done.size(), events_.size()));
    const int count = ::io_getevents(context_.get(), 1, most, events_.data(), nullptr);
    for (int i = 0; i < count; ++i) {
      const io_event& event = events_[static_cast<std::size_t>(i)];
      done[static_cast<std::size_t>(i)] = {static_cast<std::uint32_t>(event.obj - blocks_.data()),
                                           static_cast<std::int64_t>(event.res)};
    }
    return count;
  }

 private:
  UniqueHandle<ContextTraits> context_;
  std::vector<iocb> blocks_;  // by tag
  std::vector<iocb*> pointers_;
  std::vector<io_event> events_;
};

}  // namespace

std::unique_ptr<AioQueue> make_kernel_queue(int depth, std::string& why) {
  io_context_t context = nullptr;
  const int error = -::io_setup(depth, &context);
  if (error == 0) {
    return std::make_unique<KernelQueue>(context, static_cast<std::size_t>(depth));
  }
  why =
      error == EAGAIN
          ? fmt::format("the kernel has no room for {} more requests (sysctl fs.aio-max-nr)", depth)
          : "the kernel offers no asynchronous IO: " + std::generic_category().message(error);
  return nullptr;
}

}  // namespace zero::offload
