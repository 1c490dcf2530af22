#include <support/run_ranks.h>
#include <zero/core/error.h>

#include <exception>
#include <mutex>
#include <string>
#include <thread>

namespace zero::support {
namespace {

class FirstFailure {
 public:
  void add(std::exception_ptr error, bool consequence) {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr || (consequence_ && !consequence)) {
      error_ = std::move(error);
      consequence_ = consequence;
    }
  }
  void rethrow() const {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::mutex mutex_;  // guards everything below
  std::exception_ptr error_;
  bool consequence_ = false;
};

void run_one(RankEnv& env, const std::function<void(RankEnv&)>& body, FirstFailure& failure) {
  try {
    body(env);
  } catch (const PeerError& error) {
    failure.add(std::current_exception(), true);
    env.group.abort(error.what(), 4);
  } catch (const std::exception& error) {
    failure.add(std::current_exception(), false);
    env.group.abort(error.what(), 1);
  } catch (...) {
    failure.add(std::current_exception(), false);
    env.group.abort("unknown exception", 1);
  }
}

}  // namespace

void run_rank_threads(int ranks,
                      const RunOptions& options,
                      const std::function<void(RankEnv&)>& body) {
  const std::shared_ptr<comm::LocalHub> hub = comm::make_local_hub(ranks);
  Env env;
  env.timeout_s = options.timeout_s;
  FirstFailure failure;
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        RankContext context(rank, ranks, env);
        const auto device = accel::make_cpu_device(context, options.threads);
        const auto group = comm::make_local_group(hub, context, *device);
        std::vector<std::unique_ptr<accel::Stream>> streams;
        RankEnv rank_env{context, *device, *group, streams};
        run_one(rank_env, body, failure);
      });
    }
  }
  failure.rethrow();
}

}  // namespace zero::support
