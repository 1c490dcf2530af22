#include "engine/accel/cpu/cpu_stream.h"

#include <zero/core/error.h>

#include <omp.h>

#include <utility>

namespace zero::accel {

bool CpuEvent::ready() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

void CpuEvent::wait() const {
  std::unique_lock lock(mutex_);
  opened_.wait(lock, [this] { return open_; });
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
}

void CpuEvent::open(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  open_ = true;
  error_ = std::move(error);
  opened_.notify_all();
}

std::exception_ptr CpuEvent::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

CpuStream::CpuStream(std::string name, int threads)
    : name_(std::move(name)), threads_(threads), worker_([this] { work(); }) {}

CpuStream::~CpuStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  filled_.notify_all();
  worker_.join();
  const auto dropped =
      std::make_exception_ptr(InternalError("stream " + name_ + " ended before this work"));
  error_ = error_ != nullptr ? error_ : dropped;
  for (Task& task : queue_) {  // nobody may wait for ever
    execute(task);
  }
}

void CpuStream::push(Task task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  filled_.notify_one();
}

void CpuStream::host_task(std::function<void()> task) {
  push({std::move(task), false});
}

Event CpuStream::record() {
  auto event = std::make_shared<CpuEvent>();
  push({[this, event] { event->open(error_); }, true});
  return Event(event);
}

void CpuStream::wait(const Event& event) {
  if (event.state() != nullptr) {
    push({[event] { event.wait(); }, false});
  }
}

void CpuStream::synchronize() {
  record().wait();
}

void CpuStream::work() {
  omp_set_num_threads(threads_);
  std::unique_lock lock(mutex_);
  while (true) {
    filled_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) {
      return;
    }
    Task task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    execute(task);
    task = {};  // what it captured is released outside the lock
    lock.lock();
  }
}

void CpuStream::execute(Task& task) {
  if (error_ != nullptr && !task.always) {
    return;
  }
  try {
    task.run();
  } catch (...) {
    error_ = std::current_exception();
  }
}

}  // namespace zero::accel
