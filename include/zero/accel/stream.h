#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace zero::accel {

/// A point in the work of a stream. Cheap to copy; a default-constructed event has always happened.
class Event {
 public:
  /// Back ends implement this: a latch on the CPU, a cudaEvent on CUDA.
  class State {
   public:
    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    State(State&&) = delete;
    State& operator=(State&&) = delete;
    virtual ~State() = default;
    [[nodiscard]] virtual bool ready() const = 0;
    virtual void wait() const = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// Whether the work before it is done. Does not block, does not throw.
  [[nodiscard]] bool ready() const { return state_ == nullptr || state_->ready(); }
  /// Blocks the calling host thread; rethrows what a task before it threw.
  void wait() const {
    if (state_ != nullptr) {
      state_->wait();
    }
  }
  [[nodiscard]] const std::shared_ptr<State>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// An ordered queue of work on a device. On the CPU a worker thread, on CUDA a cudaStream.
///
/// A task that throws poisons the stream: later tasks are dropped, and every Event::wait and
/// synchronize from then on rethrows the first error. Thread: any thread may enqueue; one at a time
/// if order matters. The destructor waits for the task in work and drops the rest.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  Stream(Stream&&) = delete;
  Stream& operator=(Stream&&) = delete;
  virtual ~Stream() = default;

  [[nodiscard]] virtual const std::string& name() const = 0;
  /// Runs `task` on a host thread after all work enqueued before it. It must not call the stream's
  /// blocking functions.
  virtual void host_task(std::function<void()> task) = 0;
  /// An event that happens when all work enqueued so far is done.
  [[nodiscard]] virtual Event record() = 0;
  /// Work enqueued from now on starts after `event`. Does not block the host. An event of a
  /// poisoned stream poisons this one too.
  virtual void wait(const Event& event) = 0;
  /// Blocks the host until the stream is empty; rethrows its error.
  virtual void synchronize() = 0;

  /// Kernels say here what memory of their own they will take for `use` from what the stream keeps
  /// for them. A stream that drops everything remembers it; others take it when they need it.
  virtual void expect_scratch(std::size_t /*use*/, std::size_t /*bytes*/) {}
  /// Sum of the largest of each use, in a stream that drops everything.
  [[nodiscard]] virtual std::size_t scratch_bytes() const { return 0; }
};

}  // namespace zero::accel
