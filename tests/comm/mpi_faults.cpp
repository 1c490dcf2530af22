// A program under mpirun whose rank 1 fails in the way its argument names, while the others wait
// for it. The test looks at mpirun's status and at the time it takes.
#include "mpi_world.h"
#include <zero/core/error.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

namespace zero {
namespace {

constexpr int kUnexpected = 99;

void fail(const std::string& how, comm::Group& group) {
  if (how == "kill") {
    std::raise(SIGKILL);
  } else if (how == "abort") {
    group.abort("the disk is full", 3);
    std::this_thread::sleep_for(std::chrono::seconds(60));  // the job ends meanwhile
  } else if (how == "late") {
    std::this_thread::sleep_for(std::chrono::seconds(60));
  } else {
    throw InputError("rank 1 has bad input");
  }
}

int run(const std::string& how) {
  comm_cases::MpiWorld world(how == "late" ? 1.0 : 600.0);
  const auto stream = world.device->make_stream("comm");
  world.group->barrier(*stream).wait();
  if (world.group->rank() == 1) {
    fail(how, *world.group);
    return kUnexpected;
  }
  try {
    world.group->barrier(*stream).wait();
  } catch (const PeerError& error) {
    std::fprintf(stderr, "rank %d: %s\n", world.group->rank(), error.what());
    const std::string text = error.what();
    const bool named = text.find("rank 1 did not arrive within 1 s") != std::string::npos;
    world.group->abort(text, named ? 4 : kUnexpected);
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  return kUnexpected;
}

}  // namespace
}  // namespace zero

int main(int argc, char** argv) {
  try {
    return zero::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return zero::kUnexpected;
  }
}
