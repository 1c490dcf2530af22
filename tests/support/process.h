#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

namespace zero::support {

/// How a program that a test ran has ended.
struct CommandResult {
  int exit_code = 0;  ///< 128 + n if signal n ended it
  bool timed_out = false;
  double seconds = 0.0;
  std::string out;
  std::string err;
};

struct CommandOptions {
  double timeout_s = 60.0;                 ///< then it and its children are killed
  std::vector<std::string> environment{};  ///< "NAME=value", added to this process's
  std::int64_t file_size_bytes = -1;       ///< no file may grow larger; −1: no limit
};

/// A running program with its output in files, in a process group of its own, which the destructor
/// kills. Thread: one at a time.
class Process {
 public:
  Process(const std::vector<std::string>& arguments, const CommandOptions& options);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process(Process&&) = delete;
  Process& operator=(Process&&) = delete;
  ~Process();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void send_signal(int signal) const;
  /// What it has written to standard error so far.
  [[nodiscard]] std::string error_text() const;
  /// Waits for the end, at most the options' time, then kills the whole group.
  [[nodiscard]] CommandResult wait();

 private:
  pid_t pid_ = -1;
  CommandOptions options_;
  std::string out_path_;
  std::string err_path_;
};

/// Runs a program to its end.
[[nodiscard]] CommandResult run_command(const std::vector<std::string>& arguments,
                                        const CommandOptions& options = {});

/// Processes whose parent is `parent`, from /proc.
[[nodiscard]] std::vector<pid_t> children_of(pid_t parent);
[[nodiscard]] bool is_running(pid_t process);

[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);

}  // namespace zero::support
