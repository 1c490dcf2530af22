#pragma once

#include "engine/accel/cpu/scratch.h"
#include <zero/accel/stream.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>

namespace zero::accel {

/// A latch that a stream opens when it passes, with the stream's error if it has one.
class CpuEvent final : public Event::State {
 public:
  [[nodiscard]] bool ready() const override;
  void wait() const override;
  void open(std::exception_ptr error);
  /// The error it was opened with; call only when ready.
  [[nodiscard]] std::exception_ptr error() const;

 private:
  mutable std::mutex mutex_;  // guards open_ and error_
  mutable std::condition_variable opened_;
  bool open_ = false;
  std::exception_ptr error_;
};

/// A worker thread with a queue.
class CpuStream final : public Stream {
 public:
  CpuStream(std::string name, int threads);
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;
  CpuStream(CpuStream&&) = delete;
  CpuStream& operator=(CpuStream&&) = delete;

  [[nodiscard]] const std::string& name() const override { return name_; }
  void host_task(std::function<void()> task) override;
  [[nodiscard]] Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;

 private:
  /// `always` runs although the stream is poisoned: it opens events.
  struct Task {
    std::function<void()> run;
    bool always = false;
  };
  void push(Task task);
  void work();
  void execute(Task& task);

  std::string name_;
  int threads_;
  std::exception_ptr error_;  // of the worker thread alone
  std::mutex mutex_;          // guards queue_ and stopping_
  std::condition_variable filled_;
  std::deque<Task> queue_;
  bool stopping_ = false;
  std::thread worker_;
};

/// Drops everything.
class NullStream final : public Stream {
 public:
  [[nodiscard]] const std::string& name() const override { return name_; }
  void host_task(std::function<void()> /*task*/) override {}
  [[nodiscard]] Event record() override { return {}; }
  void wait(const Event& /*event*/) override {}
  void synchronize() override {}
  void expect_scratch(std::size_t use, std::size_t bytes) override {
    scratch_.at(use) = std::max(scratch_.at(use), bytes);
  }
  [[nodiscard]] std::size_t scratch_bytes() const override {
    return std::accumulate(scratch_.begin(), scratch_.end(), std::size_t{0});
  }

 private:
  std::string name_ = "nothing";
  std::array<std::size_t, kScratchUses> scratch_{};
};

}  // namespace zero::accel
