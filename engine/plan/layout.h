#pragma once

#include <zero/core/round_up.h>
#include <zero/engine/plan.h>

namespace zero {

/// Units and flats of a model: which parameters lie together, in which order, at which offsets.
struct Layout {
  std::vector<ParamInfo> params;
  std::vector<Unit> units;
  std::vector<Flat> flats;
};

/// `persistent(param)`: whether a parameter stays gathered. Throws InputError for duplicate names.
[[nodiscard]] Layout make_layout(Module& model, int shards, const std::vector<bool>& persistent);

}  // namespace zero
