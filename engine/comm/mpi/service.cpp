#include "engine/comm/mpi/service.h"

#include <zero/core/error.h>

#include <algorithm>
#include <sys/prctl.h>
#include <utility>

namespace zero::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr auto kShortestSleep = std::chrono::microseconds(20);
constexpr auto kLongestSleep = std::chrono::microseconds(200);

}  // namespace

// --- Completion

void Completion::note_progress() noexcept {
  progress_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

void Completion::set(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    set_ = true;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

bool Completion::wait(double timeout_s) {
  const auto timeout =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  std::unique_lock lock(mutex_);
  while (!set_) {
    const Clock::time_point last(Clock::duration(progress_.load(std::memory_order_relaxed)));
    if (Clock::now() >= last + timeout) {
      given_up_ = true;
      return false;
    }
    changed_.wait_until(lock, last + timeout);
  }
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
  return true;
}

// --- Service

MpiSession::Service::Service() : thread_([this] { run(); }) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return started_; });
  if (start_error_ != nullptr) {
    lock.unlock();
    thread_.join();
    std::rethrow_exception(start_error_);
  }
}

MpiSession::Service::~Service() {
  if (broken_ || std::uncaught_exceptions() > 0) {
    abort(static_cast<int>(ExitCode::kPeer));
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool MpiSession::Service::perform(const std::shared_ptr<Operation>& operation, double timeout_s) {
  const std::shared_ptr<Completion> completion = operation->completion();
  {
    const std::lock_guard lock(mutex_);
    submitted_.push_back(operation);
  }
  changed_.notify_all();
  return completion->wait(timeout_s);
}

void MpiSession::Service::abort(int exit_code) noexcept {
  {
    const std::lock_guard lock(mutex_);
    int alive = 0;
    abort_code_.compare_exchange_strong(alive, exit_code != 0 ? exit_code : 1);
  }
  changed_.notify_all();
}

void MpiSession::Service::run() noexcept {
  std::exception_ptr error;
  wire::World world;
  try {
    world = wire::init();
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    world_ = world;
    start_error_ = error;
    started_ = true;
  }
  changed_.notify_all();
  if (error != nullptr) {
    return;
  }
  try {
    work();
  } catch (...) {
    // Only MPI_Abort and MPI_Finalize end up here: the process ends anyway, its status tells.
    return;
  }
}

void MpiSession::Service::work() {
  // Linux lets sleeps end up to 50 µs late; a refusal only costs that latency.
  (void)::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  int idle_rounds = 0;
  auto last_movement = Clock::now();
  while (take_submitted()) {
    if (abort_code_ != 0) {
      return wire::abort(abort_code_);
    }
    if (poll_all()) {
      idle_rounds = 0;
      last_movement = Clock::now();
    } else if (Clock::now() - last_movement < kSpin) {
      std::this_thread::yield();
    } else {
      rest(idle_rounds++);
    }
  }
  if (abort_code_ != 0) {
    return wire::abort(abort_code_);
  }
  wire::finalize();
}

/// Waits for work if there is none; false: the session ends.
bool MpiSession::Service::take_submitted() {
  std::unique_lock lock(mutex_);
  if (active_.empty()) {
    changed_.wait(lock, [this] { return !submitted_.empty() || stopping_ || abort_code_ != 0; });
  }
  for (auto& operation : submitted_) {
    active_.push_back(std::move(operation));
  }
  submitted_.clear();
  return !(stopping_ && active_.empty());
}

bool MpiSession::Service::poll_all() {
  bool moved = false;
  for (auto& operation : active_) {
    const std::shared_ptr<Completion> completion = operation->completion();
    std::exception_ptr error;
    try {
      if (!completion->given_up() && operation->poll()) {
        completion->note_progress();
        moved = true;
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (error != nullptr || completion->given_up()) {
      broken_ = true;
      given_up_.push_back(std::exchange(operation, nullptr));
      completion->set(error);
    } else if (operation->finished()) {
      error = operation->error();
      operation.reset();  // before the other thread goes on, see Operation
      completion->set(error);
      moved = true;
    }
  }
  std::erase(active_, nullptr);
  return moved;
}

void MpiSession::Service::rest(int idle_rounds) {
  const auto sleep = std::min(kLongestSleep, kShortestSleep * (1 << std::min(idle_rounds, 4)));
  std::unique_lock lock(mutex_);
  changed_.wait_for(
      lock, sleep, [this] { return !submitted_.empty() || stopping_ || abort_code_ != 0; });
}

// --- MpiSession

MpiSession::MpiSession() : service_(std::make_unique<Service>()) {}
MpiSession::~MpiSession() = default;

int MpiSession::rank() const noexcept {
  return service_->world().rank;
}
int MpiSession::size() const noexcept {
  return service_->world().size;
}
int MpiSession::local_size() const noexcept {
  return service_->world().local_size;
}

bool have_mpi() noexcept {
  return true;
}

}  // namespace zero::comm
