#pragma once

#include "engine/engine_run.h"

#include <random>
#include <string>

namespace zero::testing {

/// A point of the space in which the reproducibility rule holds: stage, buckets, prefetch, live and
/// reuse limits, persistence, overlap, hpZ, homes, recomputation, precision, accumulation.
[[nodiscard]] RunSpec random_spec(std::mt19937_64& random, int ranks);

/// The plainest run that must give the same bits: stage 0, or with accumulation and a stage that
/// sums after the reduction stage 2.
[[nodiscard]] RunSpec plainest(const RunSpec& spec);

/// One line to repeat a point by.
[[nodiscard]] std::string describe(const RunSpec& spec);

}  // namespace zero::testing
