#pragma once

#include <zero/accel/device.h>
#include <zero/comm/group.h>
#include <zero/core/rank_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace zero::support {

/// What a rank of a test has: its context, a CPU device and the local group of all ranks.
///
/// Streams of `make_stream` live until the rank's function has ended, by an exception too: a stream
/// that the function owns itself would wait, while the stack unwinds, for work that waits for
/// peers.
struct RankEnv {
  RankContext& context;
  accel::Device& device;
  comm::Group& group;
  std::vector<std::unique_ptr<accel::Stream>>& streams;

  [[nodiscard]] accel::Stream& make_stream(const std::string& name) {
    streams.push_back(device.make_stream(name));
    return *streams.back();
  }
};

struct RunOptions {
  int threads = 1;          ///< compute threads a rank
  double timeout_s = 20.0;  ///< until a rank that does not arrive is an error
};

/// Runs `body` on `ranks` threads. Rethrows the first failure that is not the consequence of
/// another rank's (a PeerError); a rank that fails ends the group, so the others end too.
void run_rank_threads(int ranks,
                      const RunOptions& options,
                      const std::function<void(RankEnv&)>& body);

/// Runs f(RankEnv&) on `ranks` threads and returns the results in rank order. Catch2's assertions
/// are not for other threads: f returns values, the caller asserts.
template <class F>
auto run_ranks(int ranks, F f, const RunOptions& options = {}) {
  using Result = std::invoke_result_t<F&, RankEnv&>;
  if constexpr (std::is_void_v<Result>) {
    run_rank_threads(ranks, options, [&f](RankEnv& env) { f(env); });
  } else {
    std::vector<std::optional<Result>> kept(static_cast<std::size_t>(ranks));
    run_rank_threads(ranks, options, [&](RankEnv& env) {
      kept[static_cast<std::size_t>(env.context.rank)].emplace(f(env));
    });
    std::vector<Result> results;
    results.reserve(kept.size());
    for (auto& result : kept) {
      results.push_back(std::move(*result));
    }
    return results;
  }
}

}  // namespace zero::support
