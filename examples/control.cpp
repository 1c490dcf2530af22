#include "examples/control.h"

#include "examples/mpirun.h"
#include <zero/accel/device.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <numeric>

namespace zero::examples {
namespace {

// The one thing a signal handler can reach: a lock-free number.
std::atomic<int> stop_signal_number{
    0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int signal) {
  stop_signal_number.store(meant_signal(signal));
}

}  // namespace

Control::Control(World& world)
    : world_(world),
      stream_(world.device.make_stream("control")),
      mine_(world.device.allocate(sizeof(double), Category::kOther)),
      all_(world.device.allocate(sizeof(double) * static_cast<std::size_t>(world.group.size()),
                                 Category::kOther)) {}

std::vector<double> Control::gather(double value) {
  std::vector<double> values(static_cast<std::size_t>(world_.group.size()));
  const Shape one{1};
  const Shape each{world_.group.size()};
  world_.device.copy(
      view_of(std::span<const double>(&value, 1)), mine_.view(DType::kF64, one), *stream_);
  const accel::Event gathered = world_.group.all_gather(mine_.view(DType::kF64, one),
                                                        all_.view(DType::kF64, each),
                                                        *stream_,
                                                        comm::Payload::kControl);
  world_.device.copy(all_.view(DType::kF64, each), view_of(std::span<double>(values)), *stream_);
  stream_->synchronize();
  gathered.wait();
  return values;
}

double Control::mean(double value) {
  const std::vector<double> values = gather(value);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void catch_stop_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) {
    struct sigaction action = {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

void ignore_file_size_signal() {
  std::signal(SIGXFSZ, SIG_IGN);
}

int stop_signal() noexcept {
  return stop_signal_number.load();
}

bool StopVote::stop_now() {
  const std::vector<double> votes = control_.gather(stop_signal());
  signal_ = static_cast<int>(*std::max_element(votes.begin(), votes.end()));
  return signal_ != 0;
}

}  // namespace zero::examples
