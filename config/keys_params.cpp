#include "config/keys.h"

#include <array>

namespace zero::config {
namespace {

using enum Kind;
using enum Level;
using F = Feature;

constexpr Key kLr{"lr", kFloat, "0.001", kCore, F::kNow, "learning rate"};
constexpr Key kBetas{
    "betas", kList, "[0.9, 0.999]", kCore, F::kNow, "decay of the first and second moment"};
constexpr Key kEps{"eps", kFloat, "1e-8", kCore, F::kNow, "added to the root of the second moment"};
constexpr Key kDecay{"weight_decay", kFloat, "0.0", kCore, F::kNow, "weight decay"};
constexpr Key kBias{"bias_correction",
                    kBool,
                    "true",
                    kCore,
                    F::kNow,
                    "correct the moments for their start at zero"};
constexpr Key kFp32States{"fp32_optimizer_states",
                          kBool,
                          "true",
                          kShould,
                          F::kOptimizerFlags,
                          "moments in fp32",
                          "",
                          "",
                          {.gate = true}};
constexpr Key kGradNone{"set_grad_none",
                        kBool,
                        "true",
                        kForeign,
                        F::kIdle,
                        "free gradients instead of zeroing them",
                        "same numbers"};
constexpr Key kNoClass{"", kAny, "null", kForeign, F::kOptimizerFlags, ""};

constexpr Key only(std::string_view name,
                   Kind kind,
                   std::string_view fallback,
                   std::string_view meaning) {
  Key key = kNoClass;
  key.name = name;
  key.kind = kind;
  key.fallback = fallback;
  key.meaning = meaning;
  return key;
}

constexpr std::array kAdam = {
    kLr,
    kBetas,
    kEps,
    kDecay,
    kBias,
    Key{"adam_w_mode",
        kBool,
        "true",
        kCore,
        F::kNow,
        "type Adam: decoupled decay unless false; type AdamW ignores it"},
    Key{"torch_adam",
        kBool,
        "false",
        kCore,
        F::kNow,
        "PyTorch's class, whose weight_decay is 0.01 by default for AdamW"},
    Key{"amsgrad",
        kBool,
        "false",
        kShould,
        F::kOptimizerFlags,
        "keep the largest second moment",
        "",
        "",
        {.gate = true}},
    kGradNone,
    kFp32States,
    Key{"foreach", kBool, "null", kForeign, F::kIdle, "how PyTorch loops", "same numbers"},
    Key{"fused", kBool, "null", kForeign, F::kIdle, "how PyTorch loops", "same numbers"},
    Key{"capturable", kBool, "false", kForeign, F::kIdle, "for CUDA graphs", "same numbers"},
    Key{"differentiable",
        kBool,
        "false",
        kForeign,
        F::kIdle,
        "for higher derivatives",
        "same numbers"},
    Key{"maximize",
        kBool,
        "false",
        kForeign,
        F::kOptimizerFlags,
        "climb instead of descend",
        "",
        "",
        {.gate = true}},
};

constexpr std::array kSgd = {
    kLr,
    kDecay,
    Key{"momentum",
        kFloat,
        "0.0",
        kCore,
        F::kNow,
        "momentum",
        "one fp32 value a parameter if not 0"},
    Key{"dampening", kFloat, "0.0", kCore, F::kNow, "dampening of the momentum"},
    Key{"nesterov", kBool, "false", kCore, F::kNow, "Nesterov's momentum"},
    Key{"maximize",
        kBool,
        "false",
        kForeign,
        F::kOptimizerFlags,
        "climb instead of descend",
        "",
        "",
        {.gate = true}},
    Key{"foreach", kBool, "null", kForeign, F::kIdle, "how PyTorch loops", "same numbers"},
    Key{"fused", kBool, "null", kForeign, F::kIdle, "how PyTorch loops", "same numbers"},
    Key{"differentiable",
        kBool,
        "false",
        kForeign,
        F::kIdle,
        "for higher derivatives",
        "same numbers"},
};

constexpr std::array kLion = {kLr, kBetas, kDecay, kGradNone, kFp32States};
constexpr Key other_default(Key key, std::string_view fallback) {
  key.fallback = fallback;
  return key;
}

constexpr std::array kAdagrad = {
    other_default(kLr, "0.01"),
    kDecay,
    other_default(kEps, "1e-10"),
    Key{"lr_decay",
        kFloat,
        "0.0",
        kShould,
        F::kNow,
        "rate of update t: lr / (1 + (t − 1) lr_decay)"},
    Key{"initial_accumulator_value",
        kFloat,
        "0.0",
        kShould,
        F::kOptimizerFlags,
        "start of the sum of squares",
        "",
        "",
        {.gate = true}},
    Key{"amsgrad", kBool, "false", kForeign, F::kIdle, "unused in DeepSpeed too", "same numbers"},
    Key{"foreach", kBool, "null", kForeign, F::kIdle, "how PyTorch loops", "same numbers"},
    kFp32States,
};
constexpr std::array kLamb = {
    kLr,
    kBias,
    kBetas,
    kEps,
    kDecay,
    only("eps_inside_sqrt", kBool, "false", "epsilon under the root"),
    only("max_coeff", kFloat, "10.0", "largest trust ratio"),
    only("min_coeff", kFloat, "0.01", "smallest trust ratio"),
    only("amsgrad", kBool, "false", "must be false"),
};
constexpr std::array kMuon = {
    only("lr", kFloat, "0.02", "learning rate (0.0003 for the Adam part)"),
    only("momentum", kFloat, "0.95", "momentum"),
    kDecay,
    only("muon_lr", kFloat, "null", "learning rate of matrices"),
    only("adam_lr", kFloat, "null", "learning rate of the rest"),
    only("ns_method", kWord, "\"gram\"", "gram or standard iteration"),
    only("betas", kList, "[0.9, 0.95]", "moments of the Adam part"),
    only("eps", kFloat, "1e-10", "epsilon of the Adam part"),
};
constexpr std::array kOneBit = {
    kLr,
    kBias,
    kBetas,
    kEps,
    kDecay,
    only("eps_inside_sqrt", kBool, "false", "epsilon under the root"),
    only("max_coeff", kFloat, "10.0", "largest trust ratio"),
    only("min_coeff", kFloat, "0.01", "smallest trust ratio"),
    only("amsgrad", kBool, "false", "must be false"),
    only("freeze_step", kInt, "100000", "steps before compression"),
    only("cuda_aware", kBool, "false", "MPI takes device memory"),
    only("comm_backend_name", kString, "\"nccl\"", "transport"),
    only("coeff_beta", kFloat, "0.9", "decay of the trust ratio"),
    only("factor_max", kFloat, "4.0", "largest factor"),
    only("factor_min", kFloat, "0.5", "smallest factor"),
    only("factor_threshold", kFloat, "0.1", "largest change of the factor"),
    only("var_freeze_step", kInt, "100000", "steps before the variance is frozen"),
    only("var_update_scaler", kInt, "16", "interval of variance updates"),
    only("local_step_scaler", kInt, "32678", "interval of local steps"),
    only("local_step_clipper", kInt, "16", "largest interval"),
};

constexpr auto kS = F::kScheduler;
constexpr Key kMinLr{"warmup_min_lr", kNumbers, "0.0", kCore, kS, "learning rate at the start"};
constexpr Key kSteps{
    "warmup_num_steps", kInt, "1000", kCore, kS, "updates of the warm-up", "", ">0"};
constexpr Key kShape{"warmup_type", kString, "\"log\"", kCore, kS, "log or linear"};
constexpr Key kLast{"last_batch_iteration", kInt, "-1", kCore, kS, "index to continue from"};
constexpr Key kTotal{
    "total_num_steps", kInt, "null", kCore, kS, "updates in all", "", "", {.required = true}};

constexpr std::array kWarmup = {kMinLr,
                                Key{"warmup_max_lr",
                                    kNumbers,
                                    "null",
                                    kCore,
                                    kS,
                                    "learning rate after the warm-up; null: that of the optimizer"},
                                kSteps,
                                kShape,
                                kLast};
constexpr std::array kDecaying = {
    kTotal,
    kMinLr,
    Key{"warmup_max_lr", kNumbers, "0.001", kCore, kS, "learning rate after the warm-up"},
    kSteps,
    kShape,
    kLast};
constexpr std::array kCosine = {
    kTotal,
    Key{"warmup_min_ratio", kFloat, "0.0", kCore, kS, "share of the learning rate at the start"},
    kSteps,
    Key{"cos_min_ratio", kFloat, "0.0001", kCore, kS, "share of the learning rate at the end"},
    kShape,
    kLast};
constexpr std::array kRange = {
    Key{"lr_range_test_min_lr", kNumbers, "0.001", kCore, kS, "learning rate at the start"},
    Key{"lr_range_test_step_size", kInt, "2000", kCore, kS, "updates between increases", "", ">0"},
    Key{"lr_range_test_step_rate", kFloat, "1.0", kCore, kS, "size of an increase"},
    Key{"lr_range_test_staircase", kBool, "false", kCore, kS, "increase in steps"},
    kLast};
constexpr std::array kOneCycle = {
    Key{"cycle_min_lr",
        kNumbers,
        "null",
        kCore,
        kS,
        "lowest learning rate",
        "",
        "",
        {.required = true}},
    Key{"cycle_max_lr",
        kNumbers,
        "null",
        kCore,
        kS,
        "highest learning rate",
        "",
        "",
        {.required = true}},
    Key{"decay_lr_rate", kFloat, "0.0", kCore, kS, "decay after the cycle"},
    Key{"cycle_first_step_size", kInt, "2000", kCore, kS, "updates of the rise", "", ">0"},
    Key{"cycle_second_step_size",
        kInt,
        "null",
        kCore,
        kS,
        "updates of the fall; null: as the rise",
        "",
        ">=0"},
    Key{"cycle_first_stair_count", kInt, "0", kCore, kS, "stairs of the rise"},
    Key{"cycle_second_stair_count",
        kInt,
        "null",
        kCore,
        kS,
        "stairs of the fall; null: as the rise"},
    Key{"decay_step_size", kInt, "0", kCore, kS, "updates of a decay step"},
    Key{"cycle_momentum", kBool, "true", kCore, kS, "cycle the momentum too"},
    Key{"cycle_min_mom", kNumbers, "0.8", kCore, kS, "lowest momentum"},
    Key{"cycle_max_mom", kNumbers, "0.9", kCore, kS, "highest momentum"},
    Key{"decay_mom_rate", kFloat, "0.0", kCore, kS, "change of the momentum after the cycle"},
    kLast};

constexpr std::string_view kO = "optimizer.params";
constexpr std::string_view kP = "scheduler.params";
constexpr std::array kBlocks = {
    Block{kO, "adam|adamw", false, true, "Adam with L2 or decoupled decay", kAdam},
    Block{kO, "sgd", false, true, "stochastic gradient descent", kSgd},
    Block{kO, "lion", false, true, "Lion", kLion},
    Block{kO, "adagrad", false, true, "Adagrad", kAdagrad},
    Block{kO, "lamb", false, true, "LAMB (not available here)", kLamb},
    Block{kO, "muon", false, true, "Muon (not available here)", kMuon},
    Block{kO,
          "onebitadam|onebitlamb|zerooneadam",
          false,
          true,
          "optimizers with compressed communication (not available here)",
          kOneBit},
    Block{kP, "WarmupLR", false, false, "rises, then stays", kWarmup},
    Block{kP, "WarmupDecayLR", false, false, "rises, then falls to 0", kDecaying},
    Block{kP, "WarmupCosineLR", false, false, "rises, then falls as a cosine", kCosine},
    Block{kP, "LRRangeTest", false, false, "rises for ever, to find a learning rate", kRange},
    Block{kP, "OneCycle", false, false, "rises, falls, decays", kOneCycle},
};

}  // namespace

std::span<const Block> params_blocks() {
  return kBlocks;
}

}  // namespace zero::config
