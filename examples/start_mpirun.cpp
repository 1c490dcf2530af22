#include "examples/start_mpirun.h"

#include <zero/core/error.h>
#include <zero/engine/launch.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
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

bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = variable(name); rank != nullptr) {
      return std::strcmp(rank, "0") == 0;
    }
  }
  return true;
}

}  // namespace

void start_mpirun(int ranks, char** argv) {
  std::vector<std::string> words = {"mpirun", "--quiet", "--oversubscribe", "--bind-to", "none"};
  if (geteuid() == 0) {
    words.emplace_back("--allow-run-as-root");
  }
  // Time to finish a step after Ctrl-C before the ranks are killed; the default is one second.
  words.insert(words.end(), {"--mca", "odls_base_sigkill_timeout", "20"});
  for (const char* name : kPassedOn) {
    if (variable(name) != nullptr) {
      words.insert(words.end(), {"-x", name});
    }
  }
  words.insert(words.end(), {"-n", std::to_string(ranks), own_path()});
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  for (char** argument = argv + 1; *argument != nullptr; ++argument) {
    arguments.push_back(*argument);
  }
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  throw ResourceError(std::string("mpirun cannot be started: ") + std::strerror(errno),
                      "--comm mpi",
                      "install openmpi-bin or use --comm local");
}

int report_once(const std::exception& error) noexcept {
  if (is_first_process()) {
    return report_error(error);
  }
  // The first process says it and thereby ends the job; this one must not come before it.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const auto* ours = dynamic_cast<const Error*>(&error);
  return static_cast<int>(ours != nullptr ? ours->exit_code() : ExitCode::kInternal);
}

}  // namespace zero::examples
