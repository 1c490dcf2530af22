#include <zero/accel/device.h>
#include <zero/engine/launch.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace zero {
namespace {

/// More threads than this in one process is a typing error, not a plan.
constexpr int kMaxLocalRanks = 1024;

int exit_code_of(const std::exception& error) noexcept {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return static_cast<int>(ours != nullptr ? ours->exit_code() : ExitCode::kInternal);
}

/// Remembers the error to report: the first that is not a consequence of another rank's.
class FirstError {
 public:
  void add(const std::exception_ptr& error, bool consequence) {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr || (consequence_ && !consequence)) {
      error_ = error;
      consequence_ = consequence;
    }
  }
  void rethrow() const {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::mutex mutex_;  // guards the members below
  std::exception_ptr error_;
  bool consequence_ = false;
};

/// Runs one rank; an error is kept and ends the group for the others.
int run_rank(World world, const std::function<int(World&)>& body, FirstError& errors) {
  try {
    return body(world);
  } catch (const PeerError& error) {
    errors.add(std::current_exception(), true);
    world.group.abort(error.what(), exit_code_of(error));
  } catch (const std::exception& error) {
    errors.add(std::current_exception(), false);
    world.group.abort(error.what(), exit_code_of(error));
  }
  return 0;
}

std::unique_ptr<comm::Group> shaped(std::unique_ptr<comm::Group> group,
                                    const LaunchOptions& options,
                                    RankContext& context,
                                    accel::Device& device) {
  return options.network ? comm::shape_network(std::move(group), *options.network, context, device)
                         : std::move(group);
}

int run_local(const LaunchOptions& options,
              int ranks,
              int threads,
              const std::function<int(World&)>& body) {
  const Env env = Env::from_process();
  const std::shared_ptr<comm::LocalHub> hub = comm::make_local_hub(ranks);
  FirstError errors;
  std::vector<int> codes(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> workers;
    for (int rank = 0; rank < ranks; ++rank) {
      workers.emplace_back([&, rank] {
        RankContext context(rank, ranks, env);
        const auto device = accel::make_cpu_device(context, threads_per_rank(threads, ranks));
        const auto group =
            shaped(comm::make_local_group(hub, context, *device), options, context, *device);
        codes[static_cast<std::size_t>(rank)] = run_rank({context, *device, *group}, body, errors);
      });
    }
  }
  errors.rethrow();
  return *std::max_element(codes.begin(), codes.end());
}

int run_mpi(const LaunchOptions& options, int threads, const std::function<int(World&)>& body) {
  comm::MpiSession session;
  RankContext context(session.rank(), session.size(), Env::from_process());
  const auto device =
      accel::make_cpu_device(context, threads_per_rank(threads, session.local_size()));
  const auto group =
      shaped(comm::make_mpi_group(session, context, *device), options, context, *device);
  try {
    if (options.ranks > 0 && options.ranks != session.size()) {
      throw InputError(
          fmt::format(
              "{} ranks were asked for, but mpirun started {}", options.ranks, session.size()),
          "--ranks",
          "leave it out under mpirun");
    }
    World world{context, *device, *group};
    return body(world);
  } catch (const std::exception& error) {
    // The job ends here: the other ranks may be waiting for this one inside a collective. What is
    // wrong on all ranks is said by rank 0 alone: the others give it the time to end the job.
    if (context.rank > 0) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
    }
    const int code = report_error(error);
    group->abort(error.what(), code);
    return code;
  }
}

}  // namespace

int report_error(const std::exception& error) noexcept {
  std::fprintf(stderr, "error: %s\n", error.what());
  return exit_code_of(error);
}

int launch(const LaunchOptions& options, const std::function<int(World&)>& body) {
  if (options.device != "cpu") {
    throw DeviceError(fmt::format("device \"{}\" is not available in this build", options.device),
                      "--device",
                      "use cpu");
  }
  if (options.comm != "auto" && options.comm != "local" && options.comm != "mpi") {
    throw InputError(
        fmt::format("back end \"{}\" is unknown", options.comm), "--comm", "use local or mpi");
  }
  const int threads = options.threads > 0 ? options.threads : Env::from_process().threads;
  if (options.comm == "mpi" || (options.comm == "auto" && comm::under_mpirun())) {
    return run_mpi(options, threads, body);
  }
  if (options.ranks < 0 || options.ranks > kMaxLocalRanks) {
    throw InputError(fmt::format("{} ranks in one process", options.ranks),
                     "--ranks",
                     fmt::format("use 1 to {}, or mpirun", kMaxLocalRanks));
  }
  return run_local(options, std::max(1, options.ranks), threads, body);
}

}  // namespace zero
