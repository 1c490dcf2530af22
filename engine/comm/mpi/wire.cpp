#include "engine/comm/mpi/wire.h"

#include <zero/core/error.h>

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace zero::comm::wire {
namespace {

/// MPI counts with int: longer messages are cut.
constexpr std::size_t kMessageBytes = std::size_t{1} << 30U;

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return fmt::format("MPI error {}", code);
  }
  return std::string(text.data(), static_cast<std::size_t>(length));
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    throw PeerError(fmt::format("{} failed: {}", call, error_text(code)),
                    "in the mpi transport",
                    "look whether another rank or its machine has gone");
  }
}

}  // namespace

struct Communicator {
  MPI_Comm comm = MPI_COMM_NULL;
};

World init() {
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED) {
    throw ResourceError("MPI does not start in a process with threads",
                        "in MPI_Init_thread",
                        "use an MPI with MPI_THREAD_FUNNELED, or --comm local");
  }
  World world;
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(MPI_COMM_WORLD, &world.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &world.size), "MPI_Comm_size");
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
  check(MPI_Comm_size(node, &world.local_size), "MPI_Comm_size");
  check(MPI_Comm_free(&node), "MPI_Comm_free");
  return world;
}

void finalize() {
  check(MPI_Finalize(), "MPI_Finalize");
}

void abort(int exit_code) {
  check(MPI_Abort(MPI_COMM_WORLD, exit_code), "MPI_Abort");
}

struct Transfers::Requests {
  std::vector<MPI_Request> active;
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;
};

Transfers::Transfers() : requests_(std::make_unique<Requests>()) {}
Transfers::~Transfers() = default;

void Transfers::send(const CommunicatorRef& comm,
                     int to,
                     int tag,
                     std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kMessageBytes);
    MPI_Request& request = requests_->active.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Isend(bytes.data(), static_cast<int>(n), MPI_BYTE, to, tag, comm->comm, &request),
          "MPI_Isend");
    bytes = bytes.subspan(n);
  }
  outstanding_ = requests_->active.size();
}

void Transfers::receive(const CommunicatorRef& comm,
                        int from,
                        int tag,
                        std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kMessageBytes);
    MPI_Request& request = requests_->active.emplace_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(bytes.data(), static_cast<int>(n), MPI_BYTE, from, tag, comm->comm, &request),
          "MPI_Irecv");
    bytes = bytes.subspan(n);
  }
  outstanding_ = requests_->active.size();
}

CommunicatorRef Transfers::duplicate_world() {
  auto result = std::make_shared<Communicator>();
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(MPI_COMM_WORLD, &result->comm, &request), "MPI_Comm_idup");
  requests_->active.push_back(request);
  outstanding_ = requests_->active.size();
  return result;
}

bool Transfers::poll() {
  Requests& all = *requests_;
  if (all.active.empty()) {
    return false;
  }
  all.indices.resize(all.active.size());
  all.statuses.resize(all.active.size());
  int completed = 0;
  const int code = MPI_Testsome(static_cast<int>(all.active.size()),
                                all.active.data(),
                                &completed,
                                all.indices.data(),
                                all.statuses.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < completed; ++i) {
      check(all.statuses[static_cast<std::size_t>(i)].MPI_ERROR, "a transfer");
    }
  }
  check(code, "MPI_Testsome");
  if (completed == 0 || completed == MPI_UNDEFINED) {
    return false;
  }
  std::erase(all.active, MPI_REQUEST_NULL);
  outstanding_ = all.active.size();
  return true;
}

CommunicatorRef split(const CommunicatorRef& parent, int color, int key) {
  auto result = std::make_shared<Communicator>();
  check(MPI_Comm_split(parent->comm, color, key, &result->comm), "MPI_Comm_split");
  return result;
}

std::vector<int> world_ranks(const CommunicatorRef& comm) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  int size = 0;
  check(MPI_Comm_size(comm->comm, &size), "MPI_Comm_size");
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check(MPI_Comm_group(comm->comm, &group), "MPI_Comm_group");
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::vector<int> result(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  check(MPI_Group_translate_ranks(group, size, ranks.data(), world, result.data()),
        "MPI_Group_translate_ranks");
  check(MPI_Group_free(&group), "MPI_Group_free");
  check(MPI_Group_free(&world), "MPI_Group_free");
  return result;
}

int rank_in(const CommunicatorRef& comm) {
  int rank = 0;
  check(MPI_Comm_rank(comm->comm, &rank), "MPI_Comm_rank");
  return rank;
}

}  // namespace zero::comm::wire
