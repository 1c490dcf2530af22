#include "config/rules.h"

#include "config/convert.h"

namespace zero::config {
namespace {

void apply(Checked& out, const Rule& rule) {
  Issue issue{.path = std::string(rule.path),
              .message = std::string(rule.message),
              .todo = std::string(rule.todo)};
  if (out.given(rule.path)) {
    issue.value = value_text(out.raw(rule.path));
  }
  const std::size_t offset = out.offset(rule.path);
  switch (rule.when) {
    case When::kParse:
      out.error("conflict", std::move(issue), offset);
      break;
    case When::kBuild:
    case When::kStep:
      out.block("conflict", std::move(issue), offset);
      break;
    case When::kWarn:
      out.warn("conflict", std::move(issue), offset);
      break;
  }
}

void refuse(Checked& out, const std::string& path, Feature feature) {
  const FeatureState& state = feature_state(feature);
  if (!state.available) {
    out.block("not_supported",
              {.path = path,
               .value = value_text(out.raw(path)),
               .message = std::string(state.what) + " is not supported yet",
               .todo = "leave it out"},
              out.offset(path));
  }
}

/// Features whose keys only count together with another one.
void check_features(Checked& out) {
  const std::string bf16_path = out.bf16_block() + ".";
  if (bf16(out, "enabled")) {
    refuse(out, bf16_path + "enabled", Feature::kBf16);
  }
  for (const char* key : {"bf16_master_weights_and_grads", "bf16_optimizer_states"}) {
    if (bf16(out, key)) {
      refuse(out, bf16_path + key, Feature::kLowPrecisionMasters);
    }
  }
  if (stage(out) == 3 && home(out, "offload_param") != "none") {
    refuse(out, "zero_optimization.offload_param.device", Feature::kOffloadParam);
  }
  if (other_dtype(out, "data_types.grad_accum_dtype")) {
    refuse(out, "data_types.grad_accum_dtype", Feature::kAccumulationDtype);
  }
  if (other_dtype(out, "communication_data_type")) {
    refuse(out, "communication_data_type", Feature::kCommunicationDtype);
  }
  if (zenflow(out)) {
    refuse(out, "zero_optimization.zenflow", Feature::kZenflow);
  }
  if (out.is_true("zero_optimization.cpu_offload")) {
    refuse(out, "zero_optimization.cpu_offload", Feature::kOffloadOptimizer);
  }
  for (const std::string block : {"offload_optimizer", "offload_param"}) {
    if (home(out, block) == "nvme" && (block == "offload_optimizer" || stage(out) == 3)) {
      refuse(out, "zero_optimization." + block + ".device", Feature::kOffloadNvme);
    }
  }
  if (stage(out) == 3 && out.is_true("zero_optimization.cpu_offload_param")) {
    refuse(out, "zero_optimization.cpu_offload_param", Feature::kOffloadParam);
  }
}

}  // namespace

void check_rules(Checked& out) {
  for (const Rule& rule : rules()) {
    if (rule.broken(out)) {
      apply(out, rule);
    }
  }
  check_features(out);
}

}  // namespace zero::config
