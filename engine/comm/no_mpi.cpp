#include <zero/comm/group.h>
#include <zero/core/error.h>

namespace zero::comm {

/// Never made in a build without MPI.
class MpiSession::Service {};

namespace {
[[noreturn]] void refuse() {
  throw ResourceError("this build has no MPI back end",
                      "in MpiSession",
                      "install MPI and configure with ZERO_WITH_MPI=ON, or use --comm local");
}
}  // namespace

MpiSession::MpiSession() {
  refuse();
}
MpiSession::~MpiSession() = default;

int MpiSession::rank() const noexcept {
  return 0;
}
int MpiSession::size() const noexcept {
  return 1;
}
int MpiSession::local_size() const noexcept {
  return 1;
}

bool have_mpi() noexcept {
  return false;
}

std::unique_ptr<Group> make_mpi_group(MpiSession& /*session*/,
                                      RankContext& /*context*/,
                                      accel::Device& /*device*/) {
  refuse();
}

}  // namespace zero::comm
