#pragma once

#include <zero/core/env.h>
#include <zero/core/ledger.h>
#include <zero/core/log.h>
#include <zero/core/timeline.h>

#include <atomic>
#include <cstdint>

namespace zero {

/// Everything mutable that belongs to one rank. Ranks may be threads of one process, so nothing of
/// this is static.
struct RankContext {
  RankContext(int rank_, int world_, const Env& env_)
      : rank(rank_), world(world_), env(env_), log(rank_, env_.log_level) {}
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;
  RankContext(RankContext&&) = delete;
  RankContext& operator=(RankContext&&) = delete;
  ~RankContext() = default;

  int rank;
  int world;
  Env env;
  Log log;
  Ledger ledger;
  Timeline timeline;
  /// The optimizer step that runs, from 1, for messages; 0 before the first. Streams' threads read
  /// it.
  std::atomic<std::int64_t> step = 0;
};

}  // namespace zero
