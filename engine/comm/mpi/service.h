#pragma once

#include "engine/comm/mpi/wire.h"
#include <zero/comm/group.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zero::comm {

/// How the thread that submitted an operation learns its end.
class Completion {
 public:
  Completion() { note_progress(); }
  void note_progress() noexcept;
  void set(std::exception_ptr error);
  /// Blocks until set() and rethrows its error. false: nothing has moved for `timeout_s`, and the
  /// operation is given up.
  [[nodiscard]] bool wait(double timeout_s);
  [[nodiscard]] bool given_up() const noexcept { return given_up_; }

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::duration::rep> progress_ = 0;  ///< time of the last movement
  std::atomic<bool> given_up_ = false;
  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  bool set_ = false;
  std::exception_ptr error_;
};

/// Work for the service thread: a state machine that never blocks.
///
/// One thread waits for its end and is the last to hold it: what an operation refers to may go as
/// soon as that thread goes on. One that was given up stays with the service, because MPI may still
/// write to its memory.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  Operation(Operation&&) = delete;
  Operation& operator=(Operation&&) = delete;
  virtual ~Operation() = default;

  /// Does what can be done now; whether anything has moved. Calls finish() at the end. Service
  /// thread.
  virtual bool poll() = 0;
  [[nodiscard]] bool finished() const noexcept { return finished_; }
  [[nodiscard]] const std::exception_ptr& error() const noexcept { return error_; }
  [[nodiscard]] const std::shared_ptr<Completion>& completion() const noexcept {
    return completion_;
  }

 protected:
  /// No MPI call is outstanding any more.
  void finish(std::exception_ptr error = nullptr) noexcept {
    finished_ = true;
    error_ = std::move(error);
  }

 private:
  bool finished_ = false;     // service thread only
  std::exception_ptr error_;  // service thread only
  const std::shared_ptr<Completion> completion_ = std::make_shared<Completion>();
};

/// The thread that owns MPI: starts it, is the only one to call it, and ends it.
///
/// It polls all active operations in turn, so that none waits for another. When nothing moves it
/// spins for 20 µs, then sleeps 20 to 200 µs between two looks; without operations it sleeps until
/// one comes.
class MpiSession::Service {
 public:
  Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  Service(Service&&) = delete;
  Service& operator=(Service&&) = delete;
  /// Ends MPI once all operations are through. After a failure, or while an exception unwinds the
  /// stack, it aborts the job instead: finalising would wait for ranks that wait for this one.
  ~Service();

  [[nodiscard]] const wire::World& world() const noexcept { return world_; }
  /// Hands the operation over and blocks until it ends; rethrows its error. false: as
  /// Completion::wait.
  [[nodiscard]] bool perform(const std::shared_ptr<Operation>& operation, double timeout_s);
  /// Ends the job from the service thread, soon. Never blocks.
  void abort(int exit_code) noexcept;

 private:
  void run() noexcept;
  void work();
  bool poll_all();
  void rest(int idle_rounds);
  [[nodiscard]] bool take_submitted();

  wire::World world_;
  std::atomic<bool> broken_ = false;                ///< MPI has failed or an operation was given up
  std::atomic<int> abort_code_ = 0;                 ///< 0: alive
  std::vector<std::shared_ptr<Operation>> active_;  // service thread only
  std::vector<std::shared_ptr<Operation>> given_up_;  // service thread only

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> submitted_;
  bool stopping_ = false;
  bool started_ = false;
  std::exception_ptr start_error_;

  std::thread thread_;
};

}  // namespace zero::comm
