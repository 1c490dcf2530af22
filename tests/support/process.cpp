#include <support/process.h>
#include <support/temporary_folder.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace zero::support {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string temporary_file() {
  std::string path = (fs::temp_directory_path() / "zero_test_XXXXXX").string();
  const int descriptor = mkstemp(path.data());
  if (descriptor < 0) {
    throw std::runtime_error("no temporary file in " + fs::temp_directory_path().string());
  }
  close(descriptor);
  return path;
}

/// After fork: nothing but what a signal handler may call, and exec.
[[noreturn]] void become(const std::vector<char*>& arguments,
                         const std::vector<char*>& environment,
                         const char* out_path,
                         const char* err_path,
                         std::int64_t file_size_bytes) {
  setpgid(0, 0);
  const int input = open("/dev/null", O_RDONLY);
  const int output = open(out_path, O_WRONLY | O_TRUNC);
  const int errors = open(err_path, O_WRONLY | O_TRUNC);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  if (file_size_bytes >= 0) {
    const auto bytes = static_cast<rlim_t>(file_size_bytes);
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  execvpe(arguments.front(), arguments.data(), environment.data());
  _exit(127);
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const CommandOptions& options)
    : options_(options), out_path_(temporary_file()), err_path_(temporary_file()) {
  std::vector<std::string> words = arguments;
  std::vector<std::string> variables = options.environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  const std::vector<char*> argument_pointers = pointers_to(words);
  const std::vector<char*> variable_pointers = pointers_to(variables);
  pid_ = fork();
  if (pid_ == 0) {
    become(argument_pointers,
           variable_pointers,
           out_path_.c_str(),
           err_path_.c_str(),
           options.file_size_bytes);
  }
  if (pid_ < 0) {
    throw std::runtime_error("fork failed");
  }
  setpgid(pid_, pid_);  // in both processes: whoever comes first
}

Process::~Process() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  fs::remove(out_path_, ignored);
  fs::remove(err_path_, ignored);
}

void Process::send_signal(int signal) const {
  kill(pid_, signal);
}

std::string Process::error_text() const {
  return read_bytes(err_path_);
}

CommandResult Process::wait() {
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  CommandResult result;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (elapsed() > options_.timeout_s) {
      result.timed_out = true;
      kill(-pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_ = -1;
  result.seconds = elapsed();
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.out = read_bytes(out_path_);
  result.err = read_bytes(err_path_);
  return result;
}

CommandResult run_command(const std::vector<std::string>& arguments,
                          const CommandOptions& options) {
  return Process(arguments, options).wait();
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    // "pid (name) state ppid …"; the name may hold anything, so look behind its last bracket.
    const std::string stat = read_bytes(entry.path().string() + "/stat");
    std::istringstream rest(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    char state = 0;
    pid_t parent_of_it = 0;
    if (rest >> state >> parent_of_it && parent_of_it == parent && state != 'Z') {
      children.push_back(static_cast<pid_t>(std::stol(name)));
    }
  }
  return children;
}

bool is_running(pid_t process) {
  const std::string stat = read_bytes("/proc/" + std::to_string(process) + "/stat");
  const std::size_t bracket = stat.rfind(')');
  return bracket != std::string::npos && stat.size() > bracket + 2 && stat[bracket + 2] != 'Z';
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace zero::support
