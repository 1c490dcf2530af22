#pragma once

#include <zero/accel/device.h>
#include <zero/comm/group.h>
#include <zero/core/rank_context.h>

#include <memory>

namespace zero::comm_cases {

/// What one process of a test under mpirun has.
struct MpiWorld {
  explicit MpiWorld(double timeout_s)
      : context(session.rank(), session.size(), env_with(timeout_s)),
        device(accel::make_cpu_device(context, 1)),
        group(comm::make_mpi_group(session, context, *device)) {}

  static Env env_with(double timeout_s) {
    Env env;
    env.timeout_s = timeout_s;
    return env;
  }

  comm::MpiSession session;
  RankContext context;
  std::unique_ptr<accel::Device> device;
  std::unique_ptr<comm::Group> group;
};

}  // namespace zero::comm_cases
