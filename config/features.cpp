#include "config/keys.h"

#include <array>

namespace zero::config {
namespace {

/// The one place that says what the engine can do. A feature that arrives flips its row; checks,
/// messages, schema and documentation follow.
constexpr std::array kFeatures = {
    FeatureState{Feature::kNow, true, ""},
    FeatureState{Feature::kIdle, true, ""},
    FeatureState{Feature::kFp16, true, "fp16 training"},
    FeatureState{Feature::kBf16, true, "bf16 training"},
    FeatureState{Feature::kScheduler, true, "a learning-rate schedule from the file"},
    FeatureState{Feature::kOffloadOptimizer, true, "offload of the optimizer"},
    FeatureState{Feature::kOffloadParam, true, "offload of parameters"},
    FeatureState{Feature::kOffloadNvme, false, "offload to nvme"},
    FeatureState{Feature::kOffloadVariant, false, "an update shared between CPU and device"},
    FeatureState{Feature::kPrescale, true, "dividing gradients before their reduction"},
    FeatureState{Feature::kReduceOp, false, "summing gradients without dividing by the ranks"},
    FeatureState{
        Feature::kCommunicationDtype, true, "a reduction dtype other than that of the model"},
    FeatureState{
        Feature::kAccumulationDtype, true, "an accumulation dtype other than that of the model"},
    FeatureState{Feature::kManualAccumulation, false, "accumulation counted by the caller"},
    FeatureState{Feature::kLowPrecisionMasters, false, "16-bit master weights or moments"},
    FeatureState{Feature::kLegacyStage1, false, "the legacy implementation of stage 1"},
    FeatureState{Feature::kMics, true, "MiCS sharding"},
    FeatureState{Feature::kHpz, true, "a secondary partition inside a node (hpZ)"},
    FeatureState{Feature::kQuantized, false, "quantized communication (ZeRO++)"},
    FeatureState{Feature::kZenflow, false, "ZenFlow"},
    FeatureState{Feature::kTensorParallel, false, "tensor parallelism from the file (AutoTP)"},
    FeatureState{Feature::kSequenceParallel, false, "sequence parallelism"},
    FeatureState{Feature::kExpertParallel, false, "expert parallelism"},
    FeatureState{Feature::kAutocast, false, "torch autocast"},
    FeatureState{Feature::kDataEfficiency, false, "the data efficiency library"},
    FeatureState{Feature::kDeepCompile, false, "DeepCompile"},
    FeatureState{Feature::kOptimizerFlags, false, "this variant of the optimizer"},
};
static_assert(kFeatures.size() == static_cast<std::size_t>(Feature::kCount));

}  // namespace

const FeatureState& feature_state(Feature feature) {
  return kFeatures.at(static_cast<std::size_t>(feature));
}

}  // namespace zero::config
