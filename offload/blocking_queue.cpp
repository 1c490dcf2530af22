#include <zero/offload/aio_queue.h>

#include <algorithm>
#include <cerrno>
#include <unistd.h>
#include <vector>

namespace zero::offload {
namespace {

class BlockingQueue final : public AioQueue {
 public:
  [[nodiscard]] int submit(std::span<const AioRequest> requests) override {
    const AioRequest& request = requests.front();
    const auto offset = static_cast<off_t>(request.offset);
    const ssize_t moved = request.write
                              ? ::pwrite(request.descriptor, request.data, request.bytes, offset)
                              : ::pread(request.descriptor, request.data, request.bytes, offset);
    done_.push_back({request.tag, moved < 0 ? -errno : moved});
    return 1;
  }

  [[nodiscard]] int reap(std::span<AioCompletion> done) override {
    const std::size_t count = std::min(done.size(), done_.size());
    std::copy_n(done_.begin(), count, done.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
  }

 private:
  std::vector<AioCompletion> done_;
};

}  // namespace

std::unique_ptr<AioQueue> make_blocking_queue() {
  return std::make_unique<BlockingQueue>();
}

}  // namespace zero::offload
