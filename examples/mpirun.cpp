#include "examples/mpirun.h"

#include <zero/core/error.h>
#include <zero/engine/launch.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace zero::examples {
namespace {

/// Variables that have to reach the ranks on every node.
constexpr const char* kPassedOn[] = {
    "ZERO_LOG_LEVEL", "ZERO_TIMEOUT", "ZERO_THREADS", "OMP_WAIT_POLICY"};

const char* variable(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no other thread runs yet
}

std::string own_path() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return path;
}

std::vector<std::string> words_of(int ranks, char** argv) {
  std::vector<std::string> words = {"mpirun", "--quiet", "--oversubscribe", "--bind-to", "none"};
  if (geteuid() == 0) {
    words.emplace_back("--allow-run-as-root");
  }
  for (const char* name : kPassedOn) {
    if (variable(name) != nullptr) {
      words.insert(words.end(), {"-x", name});
    }
  }
  words.insert(words.end(), {"-n", std::to_string(ranks), own_path()});
  for (char** argument = argv + 1; *argument != nullptr; ++argument) {
    words.emplace_back(*argument);
  }
  return words;
}

std::atomic<pid_t> mpirun_process{0};  // for the signal handler
static_assert(std::atomic<pid_t>::is_always_lock_free);

void pass_on(int signal) {
  kill(mpirun_process.load(), signal == SIGINT ? SIGUSR1 : SIGUSR2);
}

/// In the child, after fork.
[[noreturn]] void become_mpirun(const std::vector<char*>& arguments) {
  setpgid(0, 0);  // a Ctrl-C at the terminal is for us, not for mpirun
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  execvp(arguments.front(), arguments.data());
  const int reason = errno;
  _exit(report_error(ResourceError(std::string("mpirun cannot be started: ") +
                                       std::strerror(reason),  // NOLINT(concurrency-mt-unsafe)
                                   "--comm mpi",
                                   "install openmpi-bin or use --comm local")));
}

bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = variable(name); rank != nullptr) {
      return std::strcmp(rank, "0") == 0;
    }
  }
  return true;
}

}  // namespace

int run_under_mpirun(int ranks, char** argv) {
  std::vector<std::string> words = words_of(ranks, argv);
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    become_mpirun(arguments);
  }
  if (child < 0) {
    throw ResourceError("mpirun cannot be started: no further process", "--comm mpi", "try again");
  }
  mpirun_process.store(child);
  std::signal(SIGINT, pass_on);
  std::signal(SIGTERM, pass_on);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int meant_signal(int signal) noexcept {
  return signal == SIGUSR1 ? SIGINT : signal == SIGUSR2 ? SIGTERM : signal;
}

int report_once(const std::exception& error) noexcept {
  if (is_first_process()) {
    return report_error(error);
  }
  // The first process says it and thereby ends the job; this one must not come before it.
  std::this_thread::sleep_for(std::chrono::seconds(3));
  const auto* ours = dynamic_cast<const Error*>(&error);
  return static_cast<int>(ours != nullptr ? ours->exit_code() : ExitCode::kInternal);
}

}  // namespace zero::examples
