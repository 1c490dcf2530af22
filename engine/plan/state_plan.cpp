#include "engine/plan/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

namespace zero {
namespace {

using config::Config;

/// One row of the table: which states are cut over the ranks in a ZeRO stage (Rajbhandari et al.
/// 2020, figure 1).
struct StageRow {
  bool parameters;
  bool gradients;
  bool state;
};
constexpr std::array<StageRow, 4> kStages = {
    {{false, false, false}, {false, false, true}, {false, true, true}, {true, true, true}}};

/// Slots of a class that holds several units: one in use, one on its way.
constexpr int kSlotsPerClass = 2;
/// Units that are gathered ahead at most: more take memory and hide nothing more.
constexpr std::int64_t kUnitsAhead = 3;

/// Parameters that stay gathered, by the two thresholds in declaration order; none where parameters
/// are whole anyway.
std::vector<bool> choose_persistent(Module& model, const Config& config, bool partitioned) {
  std::vector<bool> persistent;
  const config::ZeroOptimization& zero = config.zero_optimization;
  std::int64_t total = 0;
  for (const auto& parameter : parameters_of(model)) {
    const std::int64_t elems = parameter->info.shape.elems();
    const bool stays = partitioned && elems <= zero.stage3_param_persistence_threshold &&
                       zero.stage3_param_persistence_threshold > 0 &&
                       elems <= zero.stage3_model_persistence_threshold - total;
    total += stays ? elems : 0;
    persistent.push_back(stays);
  }
  return persistent;
}

void place_states(StatePlan& plan, const StageRow& row) {
  for (Flat& flat : plan.flats) {
    flat.parameters.partitioned = row.parameters && !flat.persistent;
    flat.gradients.partitioned = row.gradients;
    flat.state.partitioned = row.state;
  }
}

/// Over how many ranks states are cut (MiCS: Zhang et al. 2022), and how many keep a second copy of
/// what they gather (hpZ of ZeRO++: Wang et al. 2023). Both concern partitioned parameters only, as
/// in DeepSpeed; the config has checked that they divide the ranks.
void choose_shards(StatePlan& plan, const StageRow& row, const config::ZeroOptimization& zero) {
  const auto ranks = static_cast<std::int64_t>(plan.ranks);
  const std::int64_t shards =
      row.parameters && zero.mics_shard_size > 0 ? zero.mics_shard_size : ranks;
  const std::int64_t node = row.parameters ? std::min(zero.zero_hpz_partition_size, ranks) : 1;
  ZERO_CHECK(ranks % shards == 0 && ranks % std::max<std::int64_t>(1, node) == 0,
             "shards that do not divide the ranks");
  plan.shards = static_cast<int>(shards);
  plan.node_ranks = static_cast<int>(std::max<std::int64_t>(1, node));
}

/// Offload moves homes: master and moments together with the gradients that they meet, and
/// parameters, the latter two where they are cut into slices (ZeRO-Offload: Ren et al. 2021).
void choose_homes(StatePlan& plan, const Config& config) {
  const auto home_of = [](const config::OffloadConfig& offload) {
    return offload.device == "none" ? Home::kDevice : Home::kHost;
  };
  for (Flat& flat : plan.flats) {
    flat.state.home = flat.trainable ? home_of(config.offload_optimizer) : Home::kDevice;
    flat.gradients.home = flat.gradients.partitioned ? flat.state.home : Home::kDevice;
    flat.parameters.home =
        flat.parameters.partitioned ? home_of(config.offload_param) : Home::kDevice;
  }
  plan.separate_master = plan.model_dtype != DType::kF32 ||
                         std::any_of(plan.flats.begin(), plan.flats.end(), [](const Flat& flat) {
                           return flat.trainable && flat.parameters.home != flat.state.home;
                         });
}

/// Tiles that are read, updated and written back at the same time.
constexpr int kTiles = 3;
/// Elements of a tile at most: bounds staging to 24 MiB, and is long enough to hide its start.
constexpr std::int64_t kTileElems = std::int64_t{1} << 20;

/// Elements initialised at a time at most: bounds the memory that filling takes.
constexpr std::int64_t kFillElems = 1 << 18;

std::int64_t kept(const Flat& flat, const Placement& placement) {
  return placement.partitioned ? flat.slice_elems : flat.padded_elems;
}

/// The longest run of initial values: of one parameter, as far as any rank holds it.
std::int64_t plan_fill(const StatePlan& plan) {
  std::int64_t elems = 1;
  for (const Flat& flat : plan.flats) {
    const std::int64_t held = kept(flat, flat.parameters);
    for (const FlatParam& param : flat.params) {
      const std::int64_t first = std::min(param.elems, held - param.offset % held);
      elems = std::max({elems, first, std::min(param.elems - first, held)});
    }
  }
  return std::min(elems, kFillElems);
}

UpdateTiles plan_tiles(const StatePlan& plan, std::int64_t sub_group_size) {
  const std::int64_t limit =
      std::clamp(round_up(sub_group_size, kAlignElems), kAlignElems, kTileElems);
  UpdateTiles tiles;
  for (const Flat& flat : plan.flats) {
    if (!flat.trainable) {
      continue;
    }
    const std::int64_t owned = flat.state.partitioned ? flat.slice_elems : flat.padded_elems;
    tiles.elems = std::max(tiles.elems, std::min(owned, limit));
    tiles.space = space_of(flat.state.home);
    tiles.gradients = tiles.gradients || flat.gradients.home != flat.state.home;
    tiles.parameters = tiles.parameters || flat.parameters.home != flat.state.home;
  }
  tiles.count = tiles.gradients || tiles.parameters ? kTiles : 0;
  tiles.parameters = tiles.parameters && plan.model_dtype != DType::kF32;
  return tiles;
}

/// Tiles that are filled and added at the same time.
constexpr int kLandingTiles = 2;

LandingTiles plan_landing(const StatePlan& plan) {
  LandingTiles landing;
  for (const Flat& flat : plan.flats) {
    if (flat.trainable && flat.gradients.home != Home::kDevice) {
      landing.count = kLandingTiles;
      landing.elems = std::max(landing.elems, std::min(flat.slice_elems, kTileElems));
    }
  }
  const DType reduced = plan.ranks > 1 ? plan.communication_dtype : plan.model_dtype;
  landing.bytes = landing.elems * static_cast<std::int64_t>(dtype_size(reduced));
  return landing;
}

/// Elements of each unit that have to be gathered.
std::vector<std::int64_t> gathered_elems(const StatePlan& plan) {
  std::vector<std::int64_t> elems(plan.units.size());
  for (const Flat& flat : plan.flats) {
    elems[static_cast<std::size_t>(flat.unit)] +=
        flat.parameters.partitioned ? flat.padded_elems : 0;
  }
  return elems;
}

/// What is gathered ahead where the file does not say: as much as the largest unit.
std::int64_t default_prefetch(const StatePlan& plan) {
  const std::vector<std::int64_t> elems = gathered_elems(plan);
  return elems.empty() ? 0 : *std::max_element(elems.begin(), elems.end());
}

/// Gives every flat that `needs` a slot a class of about its size; units of their own (shared ones)
/// get one slot each.
template <class Needs>
std::vector<SlotClass> make_slot_classes(StatePlan& plan,
                                         int Flat::*member,
                                         std::int64_t elems_ahead,
                                         Needs needs) {
  std::vector<int> order;
  for (int index = 0; index < static_cast<int>(plan.flats.size()); ++index) {
    if (needs(plan.flats[static_cast<std::size_t>(index)])) {
      order.push_back(index);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return plan.flats[static_cast<std::size_t>(a)].padded_elems >
           plan.flats[static_cast<std::size_t>(b)].padded_elems;
  });
  std::vector<SlotClass> classes;
  int open = -1;  // the class that takes further flats
  for (const int index : order) {
    Flat& flat = plan.flats[static_cast<std::size_t>(index)];
    const bool shared = plan.units[static_cast<std::size_t>(flat.unit)].shared;
    const auto fits = [&] {
      const std::int64_t size = classes[static_cast<std::size_t>(open)].elems;
      return flat.padded_elems * 5 >= size * 4;
    };
    if (shared || open < 0 || !fits()) {
      classes.push_back({.elems = flat.padded_elems, .count = 0});
      flat.*member = static_cast<int>(classes.size()) - 1;
      open = shared ? open : flat.*member;
    } else {
      flat.*member = open;
    }
    SlotClass& mine = classes[static_cast<std::size_t>(flat.*member)];
    const std::int64_t ahead =
        (elems_ahead + mine.elems - 1) / std::max<std::int64_t>(1, mine.elems);
    mine.count = std::min(mine.count + 1, 1 + static_cast<int>(std::min(ahead, kUnitsAhead)));
  }
  return classes;
}

/// Partitioned elements that a module uses at once with all that its events enclose: a block
/// everything below it, another module its own and the neediest child's.
std::int64_t elems_at_once(Module& module,
                           const std::unordered_map<const Parameter*, int>& unit_of,
                           const std::vector<std::int64_t>& elems) {
  std::set<int> units;
  for (const auto& parameter : module.is_block() ? parameters_of(module) : module.parameters()) {
    units.insert(unit_of.at(parameter.get()));
  }
  std::int64_t children = 0;
  for (Module* child : module.children()) {
    children = std::max(children, module.is_block() ? 0 : elems_at_once(*child, unit_of, elems));
  }
  return std::accumulate(units.begin(), units.end(), children, [&](std::int64_t sum, int unit) {
    return sum + elems[static_cast<std::size_t>(unit)];
  });
}

/// Refuses a stage3_max_live_parameters under which the model cannot run, and gives up slots that
/// it leaves no use for.
void limit_live_elems(StatePlan& plan, Module& model) {
  const std::vector<std::int64_t> elems = gathered_elems(plan);
  std::unordered_map<const Parameter*, int> unit_of;
  const auto parameters = parameters_of(model);
  for (const Flat& flat : plan.flats) {
    for (const FlatParam& param : flat.params) {
      unit_of[parameters[param.param].get()] = flat.unit;
    }
  }
  const std::int64_t least = elems_at_once(model, unit_of, elems);
  if (plan.max_live_elems < least) {
    throw ConfigError(
        fmt::format("stage3_max_live_parameters is {}, and one part of the model alone uses {}",
                    plan.max_live_elems,
                    least),
        "ds_config: zero_optimization",
        fmt::format("set it to {} or more", least));
  }
  for (SlotClass& slots : plan.gather_classes) {
    const std::int64_t useful = plan.max_live_elems / std::max<std::int64_t>(1, slots.elems);
    slots.count = static_cast<int>(std::clamp<std::int64_t>(useful, 1, slots.count));
  }
}

/// Flats in the order in which backward completes them: units from last to first, shared ones at
/// the end.
std::vector<int> backward_order(const StatePlan& plan) {
  std::vector<int> order;
  for (const bool shared : {false, true}) {
    for (auto unit = plan.units.rbegin(); unit != plan.units.rend(); ++unit) {
      if (unit->shared == shared) {
        std::copy_if(
            unit->flats.begin(), unit->flats.end(), std::back_inserter(order), [&](int flat) {
              return plan.flats[static_cast<std::size_t>(flat)].trainable;
            });
      }
    }
  }
  return order;
}

/// Groups whole small flats up to the limit, and cuts a larger one into pieces of each slice.
///
/// A bucket never holds more than the largest flat (or the limit, if that is less): gradients in
/// flight stay bounded by the model, whatever reduce_bucket_size says.
std::vector<Bucket> make_buckets(const StatePlan& plan, std::int64_t reduce_bucket_size) {
  std::int64_t largest = 0;
  for (const Flat& flat : plan.flats) {
    largest = std::max(largest, flat.trainable ? flat.padded_elems : 0);
  }
  const std::int64_t limit = std::max<std::int64_t>(1, std::min(reduce_bucket_size, largest));
  std::vector<Bucket> buckets;
  std::int64_t filled = limit;  // the first flat opens a bucket
  for (const int index : backward_order(plan)) {
    const Flat& flat = plan.flats[static_cast<std::size_t>(index)];
    if (flat.padded_elems <= limit) {
      if (filled + flat.padded_elems > limit) {
        buckets.emplace_back();
        filled = 0;
      }
      buckets.back().push_back({.flat = index, .begin = 0, .count = flat.slice_elems});
      filled += flat.padded_elems;
      continue;
    }
    const std::int64_t piece =
        std::max(kAlignElems, limit / plan.shards / kAlignElems * kAlignElems);
    for (std::int64_t begin = 0; begin < flat.slice_elems; begin += piece) {
      buckets.push_back(
          {{.flat = index, .begin = begin, .count = std::min(piece, flat.slice_elems - begin)}});
    }
    filled = limit;
  }
  return buckets;
}

/// A bucket of several flats of one class holds as many slots: room for it and for the next one.
void widen_classes(StatePlan& plan, std::vector<SlotClass>& classes, int Flat::*member) {
  std::vector<int> flats(classes.size());
  for (const Flat& flat : plan.flats) {
    if (flat.*member >= 0) {
      ++flats[static_cast<std::size_t>(flat.*member)];
    }
  }
  for (const Bucket& bucket : plan.buckets) {
    std::vector<int> held(classes.size());
    for (const BucketPiece& piece : bucket) {
      const int slots = plan.flats[static_cast<std::size_t>(piece.flat)].*member;
      if (slots >= 0) {
        const auto index = static_cast<std::size_t>(slots);
        SlotClass& mine = classes[index];
        mine.count = std::max(mine.count, std::min(flats[index], kSlotsPerClass * ++held[index]));
      }
    }
  }
}

void count_bytes(StatePlan& plan, const ActivationProfile& profile) {
  const auto model_bytes = static_cast<std::int64_t>(dtype_size(plan.model_dtype));
  const auto sum_bytes = static_cast<std::int64_t>(dtype_size(plan.accumulation_dtype));
  const auto in = [&](MemorySpace space, Category category) -> std::int64_t& {
    PlannedBytes& bytes = space == MemorySpace::kDevice ? plan.bytes : plan.host_bytes;
    return bytes.at(static_cast<std::size_t>(category));
  };
  const auto at = [&](Category category) -> std::int64_t& {
    return in(MemorySpace::kDevice, category);
  };
  for (const Flat& flat : plan.flats) {
    const MemorySpace state = space_of(flat.state.home);
    in(space_of(flat.parameters.home), Category::kParameters) +=
        kept(flat, flat.parameters) * model_bytes;
    if (flat.parameters.partitioned && plan.node_ranks > 1) {
      at(Category::kParameters) += flat.padded_elems / plan.node_ranks * model_bytes;
    }
    if (flat.trainable) {
      in(space_of(flat.gradients.home), Category::kGradients) +=
          kept(flat, flat.gradients) * sum_bytes;
      in(state, Category::kMaster) += plan.separate_master ? kept(flat, flat.state) * 4 : 0;
      in(state, Category::kMoments) += kept(flat, flat.state) * 4 * plan.moments;
    }
  }
  const UpdateTiles& tiles = plan.tiles;
  in(tiles.space, tiles.space == MemorySpace::kHost ? Category::kPinned : Category::kStaging) +=
      tiles.count * tiles.elems *
      ((tiles.gradients ? sum_bytes : 0) + (tiles.parameters ? model_bytes : 0));
  in(MemorySpace::kHost, Category::kPinned) += plan.landing.count * plan.landing.bytes;
  at(Category::kStaging) += plan.fill_elems * 4;
  for (const SlotClass& slots : plan.gather_classes) {
    at(Category::kGathered) += slots.elems * slots.count * model_bytes;
  }
  for (const SlotClass& slots : plan.gradient_classes) {
    at(Category::kBuckets) += slots.elems * slots.count * model_bytes;
  }
  for (const SlotClass& slots : plan.transport_classes) {
    at(Category::kBuckets) +=
        slots.elems * slots.count * static_cast<std::int64_t>(dtype_size(plan.communication_dtype));
  }
  at(Category::kActivations) = profile.activation_bytes;
  in(MemorySpace::kHost, Category::kActivations) = profile.stashed_bytes;
  at(Category::kOther) = profile.batch_bytes;
  in(MemorySpace::kHost, Category::kOther) = profile.scratch_bytes;
}

}  // namespace

std::int64_t StatePlan::elems() const {
  return std::accumulate(
      params.begin(), params.end(), std::int64_t{0}, [](std::int64_t sum, const ParamInfo& info) {
        return sum + info.shape.elems();
      });
}

std::int64_t StatePlan::padded_elems() const {
  return std::accumulate(
      flats.begin(), flats.end(), std::int64_t{0}, [](std::int64_t sum, const Flat& flat) {
        return sum + flat.padded_elems;
      });
}

std::int64_t StatePlan::total_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}) +
         std::accumulate(host_bytes.begin(), host_bytes.end(), std::int64_t{0});
}

std::int64_t StatePlan::local_accumulation_bytes() const {
  std::int64_t elems = 0;
  for (const Flat& flat : flats) {
    elems += flat.trainable ? flat.padded_elems - kept(flat, flat.gradients) : 0;
  }
  return elems * static_cast<std::int64_t>(dtype_size(accumulation_dtype));
}

StatePlan make_plan(Module& model,
                    const Config& config,
                    const ActivationProfile& profile,
                    int ranks,
                    const PlanOptions& options) {
  const config::ZeroOptimization& zero = config.zero_optimization;
  StageRow row = kStages.at(static_cast<std::size_t>(zero.stage));
  row.gradients = row.gradients && !options.local_accumulation;
  StatePlan plan;
  plan.ranks = ranks;
  plan.stage = zero.stage;
  choose_shards(plan, row, zero);
  plan.model_dtype = config.model_dtype();
  plan.accumulation_dtype = config.grad_accum_dtype.value_or(plan.model_dtype);
  plan.communication_dtype = config.communication_data_type.value_or(plan.model_dtype);
  if (config.prescale_gradients) {
    plan.factor_before_reduction = 1.0 / ranks;
  } else if (config.gradient_predivide_factor != 1.0) {
    plan.factor_before_reduction = 1.0 / config.gradient_predivide_factor;
    plan.factor_after_reduction = config.gradient_predivide_factor / ranks;
  }
  plan.moments = optimizer_moments(config.optimizer);
  plan.reduce_at_boundary = !row.gradients;
  plan.all_reduce = !row.state;
  plan.overlap = zero.overlap_comm.value_or(true);
  plan.max_reuse_elems = zero.stage3_max_reuse_distance;
  plan.max_live_elems = zero.stage3_max_live_parameters;
  plan.gather_bucket_elems = zero.allgather_bucket_size;
  Layout layout = make_layout(model, plan.shards, choose_persistent(model, config, row.parameters));
  plan.params = std::move(layout.params);
  plan.units = std::move(layout.units);
  plan.flats = std::move(layout.flats);
  place_states(plan, row);
  choose_homes(plan, config);
  plan.fill_elems = plan_fill(plan);
  plan.tiles = plan_tiles(plan, std::min(zero.sub_group_size, kTileElems));
  plan.landing = plan_landing(plan);
  plan.prefetch_elems = zero.stage3_prefetch_bucket_size.value_or(default_prefetch(plan));
  plan.gather_classes =
      make_slot_classes(plan, &Flat::gather_class, plan.prefetch_elems, [](const Flat& flat) {
        return flat.parameters.partitioned;
      });
  limit_live_elems(plan, model);
  plan.gradient_classes = make_slot_classes(plan, &Flat::gradient_class, 1, [&](const Flat& flat) {
    return flat.trainable &&
           (flat.gradients.partitioned || plan.accumulation_dtype != plan.model_dtype);
  });
  plan.transport_classes =
      make_slot_classes(plan, &Flat::transport_class, 1, [&](const Flat& flat) {
        const DType from = flat.gradients.partitioned ? plan.model_dtype : plan.accumulation_dtype;
        return flat.trainable && ranks > 1 && from != plan.communication_dtype;
      });
  plan.buckets = make_buckets(plan, zero.reduce_bucket_size);
  widen_classes(plan, plan.gradient_classes, &Flat::gradient_class);
  widen_classes(plan, plan.transport_classes, &Flat::transport_class);
  count_bytes(plan, profile);
  for (const auto& buffer : buffers_of(model)) {
    plan.bytes[static_cast<std::size_t>(Category::kOther)] +=
        buffer->shape.elems() * static_cast<std::int64_t>(sizeof(float));
  }
  return plan;
}

}  // namespace zero
