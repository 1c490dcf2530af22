#include "engine/optim/optimizer.h"

#include <zero/core/error.h>
#include <zero/engine/plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace zero::optim {
namespace {

using Maker = std::unique_ptr<UpdateRule> (*)(const config::OptimizerConfig&);

/// Every rule by its name in a ds_config, in lower case. A new optimizer is a row here and a file
/// beside this one.
struct Row {
  std::string_view name;
  Maker make;
};
constexpr std::array<Row, 5> kRules = {{
    {"adam",
     [](const config::OptimizerConfig& config) { return make_adam(config, config.adam_w_mode); }},
    {"adamw", [](const config::OptimizerConfig& config) { return make_adam(config, true); }},
    {"sgd", make_sgd},
    {"lion", make_lion},
    {"adagrad", make_adagrad},
}};

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(const config::OptimizerConfig& config) {
  std::string name = config.type;
  std::transform(
      name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string known;
  for (const Row& row : kRules) {
    if (row.name == name) {
      return row.make(config);
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw ConfigError(fmt::format("optimizer.type \"{}\" is not available", config.type),
                    "ds_config",
                    "use one of " + known);
}

}  // namespace zero::optim

namespace zero {

int optimizer_moments(const config::OptimizerConfig& optimizer) {
  return optim::make_update_rule(optimizer)->moments();
}

}  // namespace zero
