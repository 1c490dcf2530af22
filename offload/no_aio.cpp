#include <zero/offload/aio_queue.h>

namespace zero::offload {

std::unique_ptr<AioQueue> make_kernel_queue(int /*depth*/, std::string& why) {
  why = "this build has no libaio (ZERO_WITH_AIO)";
  return nullptr;
}

}  // namespace zero::offload
