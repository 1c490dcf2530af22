#include <zero/engine/plan.h>

#include <nlohmann/json.hpp>

namespace zero {
namespace {

using Json = nlohmann::ordered_json;

std::string_view home_name(Home home) {
  switch (home) {
    case Home::kHost:
      return "host";
    case Home::kNvme:
      return "nvme";
    case Home::kDevice:
      break;
  }
  return "device";
}

Json to_value(const Placement& placement) {
  return {{"partitioned", placement.partitioned}, {"home", home_name(placement.home)}};
}

Json to_value(const PlannedBytes& planned) {
  Json bytes = Json::object();
  for (std::size_t category = 0; category < kCategories; ++category) {
    bytes[std::string(category_name(static_cast<Category>(category)))] = planned.at(category);
  }
  return bytes;
}

Json to_value(const StatePlan& plan, const Flat& flat) {
  Json params = Json::array();
  for (const FlatParam& param : flat.params) {
    params.push_back({{"name", plan.params[param.param].name},
                      {"offset", param.offset},
                      {"elems", param.elems}});
  }
  return {{"trainable", flat.trainable},
          {"persistent", flat.persistent},
          {"padded_elems", flat.padded_elems},
          {"slice_elems", flat.slice_elems},
          {"parameters", to_value(flat.parameters)},
          {"gradients", to_value(flat.gradients)},
          {"state", to_value(flat.state)},
          {"params", params}};
}

}  // namespace

std::string to_json(const StatePlan& plan) {
  Json units = Json::array();
  for (const Unit& unit : plan.units) {
    Json flats = Json::array();
    for (const int flat : unit.flats) {
      flats.push_back(to_value(plan, plan.flats[static_cast<std::size_t>(flat)]));
    }
    units.push_back({{"name", unit.name}, {"shared", unit.shared}, {"flats", flats}});
  }
  const Json document = {{"ranks", plan.ranks},
                         {"shards", plan.shards},
                         {"node_ranks", plan.node_ranks},
                         {"stage", plan.stage},
                         {"model_dtype", dtype_name(plan.model_dtype)},
                         {"accumulation_dtype", dtype_name(plan.accumulation_dtype)},
                         {"recompute", plan.recompute},
                         {"elems", plan.elems()},
                         {"padded_elems", plan.padded_elems()},
                         {"bytes_per_rank", to_value(plan.bytes)},
                         {"host_bytes_per_rank", to_value(plan.host_bytes)},
                         {"total_bytes_per_rank", plan.total_bytes()},
                         {"buckets", plan.buckets.size()},
                         {"units", units}};
  return document.dump(2) + "\n";
}

}  // namespace zero
