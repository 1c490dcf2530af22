#include <zero/config/report.h>
#include <zero/core/error.h>
#include <zero/engine/planner.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

namespace zero::planner {
namespace {

using Json = nlohmann::ordered_json;

/// A change is offered as faster if it saves more of the step.
constexpr double kWorthChanging = 0.05;
constexpr const char* kNvmePath = "/local_nvme";

constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";

Json offload_block(const std::string& device) {
  Json block = {{"device", device}, {"pin_memory", true}};
  if (device == "nvme") {
    block["nvme_path"] = kNvmePath;
  }
  return block;
}

Json offload_block(Offload offload) {
  return offload == Offload::kNone
             ? Json()
             : offload_block(std::string(offload == Offload::kCpu ? "cpu" : "nvme"));
}

/// Keys of zero_optimization that bound buffers and what is gathered.
Json limits_of(const config::ZeroOptimization& zero) {
  Json limits;
  if (zero.stage == 3) {
    limits["stage3_prefetch_bucket_size"] = *zero.stage3_prefetch_bucket_size;
    limits["stage3_max_live_parameters"] = zero.stage3_max_live_parameters;
    limits["stage3_max_reuse_distance"] = zero.stage3_max_reuse_distance;
  } else if (zero.stage > 0) {
    limits["allgather_bucket_size"] = zero.allgather_bucket_size;
  }
  if (zero.stage > 0) {
    limits["reduce_bucket_size"] = zero.reduce_bucket_size;
  }
  return limits;
}

Json document_of(const config::Config& config) {
  Json document = {{"train_batch_size", config.train_batch_size},
                   {kMicro, config.train_micro_batch_size_per_gpu},
                   {kSteps, config.gradient_accumulation_steps},
                   {"gradient_clipping", config.gradient_clipping}};
  if (config.model_dtype() != DType::kF32) {
    document[config.fp16.enabled ? "fp16" : "bf16"] = {{"enabled", true}};
  }
  document["optimizer"] = {{"type", config.optimizer.type},
                           {"params",
                            {{"lr", config.optimizer.lr},
                             {"betas", {config.optimizer.beta1, config.optimizer.beta2}},
                             {"eps", config.optimizer.eps},
                             {"weight_decay", config.optimizer.weight_decay}}}};
  const config::ZeroOptimization& zero = config.zero_optimization;
  Json block = {{"stage", zero.stage}};
  if (zero.stage > 0) {
    block["overlap_comm"] = zero.overlap_comm.value_or(true);
    block["contiguous_gradients"] = true;
    block.update(limits_of(zero));
  }
  if (zero.stage == 3) {
    block["stage3_param_persistence_threshold"] = zero.stage3_param_persistence_threshold;
  }
  for (const auto& [key, offload] : {std::pair{"offload_optimizer", config.offload_optimizer},
                                     std::pair{"offload_param", config.offload_param}}) {
    if (offload.device != "none") {
      block[key] = offload_block(offload.device);
    }
  }
  document["zero_optimization"] = std::move(block);
  if (config.activation_checkpointing.enabled) {
    document["activation_checkpointing"] = {
        {"number_checkpoints", config.activation_checkpointing.number_checkpoints}};
  }
  return document;
}

/// One key that gets another value; null: it goes.
struct Edit {
  std::vector<std::string> path;
  Json value;
};

std::string dotted(const std::vector<std::string>& path) {
  return fmt::format("{}", fmt::join(path, "."));
}

const Json* find(const Json& document, const std::vector<std::string>& path) {
  const Json* at = &document;
  for (const std::string& key : path) {
    if (!at->is_object() || !at->contains(key)) {
      return nullptr;
    }
    at = &at->at(key);
  }
  return at;
}

void apply(Json& document, const Edit& edit) {
  Json* at = &document;
  for (std::size_t depth = 0; depth + 1 < edit.path.size(); ++depth) {
    at = &(*at)[edit.path[depth]];
  }
  if (edit.value.is_null()) {
    at->erase(edit.path.back());
  } else {
    (*at)[edit.path.back()] = edit.value;
  }
}

std::vector<std::string> diff_of(const Json& document, const std::vector<Edit>& edits) {
  std::vector<std::string> lines;
  for (const Edit& edit : edits) {
    if (const Json* was = find(document, edit.path)) {
      lines.push_back(fmt::format("- {}: {}", dotted(edit.path), was->dump()));
    }
    if (!edit.value.is_null()) {
      lines.push_back(fmt::format("+ {}: {}", dotted(edit.path), edit.value.dump()));
    }
  }
  return lines;
}

/// A file as it stands, and what the engine makes of it after some edits.
class File {
 public:
  File(const std::string& path, const Evaluator& evaluator) : path_(path) {
    options_.world = static_cast<int>(evaluator.cluster().gpus());
    options_.hidden_size = evaluator.shape().hidden;
    const DType precision = evaluator.workload().precision;
    options_.fp16 = precision == DType::kF16;
    options_.bf16 = precision == DType::kBF16;
    const config::OptimizerConfig usual;
    options_.lr = usual.lr;
    options_.weight_decay = usual.weight_decay;
    options_.beta1 = usual.beta1;
    options_.beta2 = usual.beta2;
    options_.eps = usual.eps;
    constexpr std::int64_t kAnySteps = 1000;
    options_.warmup_num_steps = 1;
    options_.total_num_steps = kAnySteps;
    const std::string text = config::read_text(path);
    std::vector<std::string> notes;
    document_ = Json::parse(config::convert(text, path, notes));
    const Json* micro = find(document_, {kMicro});
    if (micro != nullptr && *micro == "auto") {
      options_.train_micro_batch_size_per_gpu =
          std::max<std::int64_t>(1, evaluator.workload().micro_batch);
    }
  }

  [[nodiscard]] const Json& document() const { return document_; }

  /// The set-up and values in force. Throws ConfigError if the file is rejected.
  [[nodiscard]] std::pair<Setup, config::Config> read(const std::vector<Edit>& edits) const {
    Json document = document_;
    for (const Edit& edit : edits) {
      apply(document, edit);
    }
    Setup setup;
    // The engine refuses nvme; its plan counts those states as host memory and moves them after.
    setup.offload_optimizer = take_nvme(document, "offload_optimizer");
    setup.offload_param = take_nvme(document, "offload_param");
    const config::Config config = config::parse(document.dump(), path_, options_);
    const auto or_cpu = [](Offload offload, const config::OffloadConfig& there) {
      return there.device == "none"      ? Offload::kNone
             : offload == Offload::kNvme ? offload
                                         : Offload::kCpu;
    };
    setup.offload_optimizer = or_cpu(setup.offload_optimizer, config.offload_optimizer);
    setup.offload_param = or_cpu(setup.offload_param, config.offload_param);
    setup.stage = config.zero_optimization.stage;
    setup.recompute = config.activation_checkpointing.enabled;
    setup.lean = setup.stage == 3 && config.zero_optimization.overlap_comm == false &&
                 config.zero_optimization.stage3_prefetch_bucket_size == 0;
    setup.data = options_.world;
    setup.micro_batch = config.train_micro_batch_size_per_gpu;
    setup.accumulation = config.gradient_accumulation_steps;
    return {setup, config};
  }

 private:
  static Offload take_nvme(Json& document, const std::string& key) {
    const Json* device = find(document, {"zero_optimization", key, "device"});
    if (device == nullptr || *device != "nvme") {
      return Offload::kNone;
    }
    apply(document, {{"zero_optimization", key, "device"}, "cpu"});
    return Offload::kNvme;
  }

  std::string path_;
  config::LoadOptions options_;
  Json document_;
};

/// What turns a file whose set-up is `from` into one whose set-up is `to`.
std::vector<Edit> edits_between(const Setup& from,
                                const Setup& to,
                                const ModelShape& shape,
                                const Json& document) {
  std::vector<Edit> edits;
  if (to.stage != from.stage) {
    edits.push_back({{"zero_optimization", "stage"}, to.stage});
  }
  if (to.offload_optimizer != from.offload_optimizer) {
    edits.push_back(
        {{"zero_optimization", "offload_optimizer"}, offload_block(to.offload_optimizer)});
  }
  if (to.offload_param != from.offload_param) {
    edits.push_back({{"zero_optimization", "offload_param"}, offload_block(to.offload_param)});
  }
  if (to.recompute && !from.recompute) {
    edits.push_back({{"activation_checkpointing", "number_checkpoints"}, shape.layers});
  } else if (from.recompute && !to.recompute) {
    edits.push_back({{"activation_checkpointing"}, Json()});
  }
  if (to.lean && !from.lean) {
    edits.push_back({{"zero_optimization", "stage3_prefetch_bucket_size"}, 0});
    edits.push_back({{"zero_optimization", "overlap_comm"}, false});
  }
  if (to.micro_batch != from.micro_batch) {
    edits.push_back({{kMicro}, to.micro_batch});
    if (to.accumulation != from.accumulation || find(document, {kSteps}) != nullptr) {
      edits.push_back({{kSteps}, to.accumulation});
    }
  }
  return edits;
}

struct Option {
  Estimate then;
  std::vector<Edit> edits;
};

/// Every set-up of the plan, with its own micro-batch and with the file's, with the file's limits
/// and with those that the plan would write.
std::vector<Option> options_of(const File& file, const Setup& now, const Evaluator& evaluator) {
  std::vector<Setup> targets;
  for (const Estimate& candidate : choose(evaluator).candidates) {
    if (candidate.setup.model_parallel()) {
      continue;
    }
    targets.push_back(candidate.setup);
    targets.push_back(candidate.setup);
    targets.back().micro_batch = now.micro_batch;
    targets.back().accumulation = now.accumulation;
  }
  std::vector<Option> all;
  for (const Setup& target : targets) {
    const std::vector<Edit> edits = edits_between(now, target, evaluator.shape(), file.document());
    std::vector<Edit> with_limits = edits;
    const Json limits =
        limits_of(config_of(target, evaluator.shape(), evaluator.workload()).zero_optimization);
    for (const auto& [key, value] : limits.items()) {
      const Json* there = find(file.document(), {"zero_optimization", key});
      if (there != nullptr && *there != value) {
        with_limits.push_back({{"zero_optimization", key}, value});
      }
    }
    for (const std::vector<Edit>& tried : {edits, with_limits}) {
      try {
        const auto [setup, config] = file.read(tried);
        all.push_back({evaluator.evaluate(setup, config), tried});
      } catch (const ConfigError&) {
        continue;  // the rest of the file does not go with this set-up
      }
    }
  }
  return all;
}

}  // namespace

config::Config config_of(const Setup& setup, const ModelShape& shape, const Workload& workload) {
  config::Config config;
  config.fp16.enabled = workload.precision == DType::kF16;
  config.bf16_enabled = workload.precision == DType::kBF16;
  config.train_micro_batch_size_per_gpu = setup.micro_batch;
  config.gradient_accumulation_steps = setup.accumulation;
  config.train_batch_size = setup.micro_batch * setup.accumulation * setup.data;
  config.optimizer.lr = 1e-4;  // as models of a few billion parameters were trained (Brown et al.
  config.optimizer.beta2 = 0.95;  // 2020, table 2.1 and appendix B)
  config.optimizer.weight_decay = 0.1;
  config::ZeroOptimization& zero = config.zero_optimization;
  zero.stage = setup.stage;
  const std::int64_t largest = std::max(shape.layer_params(), shape.vocabulary * shape.hidden);
  // One unit is fetched ahead; gathered at once are what two units and the head need.
  zero.stage3_prefetch_bucket_size = setup.lean ? 0 : shape.layer_params();
  zero.overlap_comm = !setup.lean;
  zero.stage3_max_live_parameters = std::max<std::int64_t>(1'000'000'000, 4 * largest);
  zero.stage3_max_reuse_distance = zero.stage3_max_live_parameters;
  constexpr std::int64_t kBucketElems = 50'000'000;
  zero.reduce_bucket_size = std::max(kBucketElems, shape.layer_params());
  zero.allgather_bucket_size = zero.reduce_bucket_size;
  config.activation_checkpointing.enabled = setup.recompute;
  config.activation_checkpointing.number_checkpoints = setup.recompute ? shape.layers : 0;
  const auto device = [](Offload offload) {
    return offload == Offload::kNone ? "none" : offload == Offload::kCpu ? "cpu" : "nvme";
  };
  config.offload_optimizer.device = device(setup.offload_optimizer);
  config.offload_param.device = device(setup.offload_param);
  return config;
}

std::string write_ds_config(const Estimate& estimate, const Evaluator& evaluator) {
  if (estimate.setup.model_parallel()) {
    throw InputError(estimate.setup.name() + " cannot be written as a ds_config",
                     "--write",
                     "give --zero-only for the best ZeRO set-up");
  }
  const std::string text =
      document_of(config_of(estimate.setup, evaluator.shape(), evaluator.workload())).dump(2) +
      "\n";
  config::LoadOptions options;
  options.world = static_cast<int>(evaluator.cluster().gpus());
  const config::Verdict verdict = config::validate(text, "the written ds_config", options);
  ZERO_CHECK(verdict.accepted, config::verdict_text(verdict));
  return text;
}

Fit fit_ds_config(const std::string& path, const Evaluator& evaluator) {
  const File file(path, evaluator);
  const auto [now, config] = file.read({});
  Workload workload = evaluator.workload();
  workload.precision = config.model_dtype();
  workload.batch = config.train_batch_size;
  workload.micro_batch = 0;
  workload.recompute.reset();
  workload.model_parallel = false;
  const Evaluator own(evaluator.shape(), evaluator.cluster(), workload);
  Fit fit;
  fit.now = own.evaluate(now, config);
  std::vector<Option> options = options_of(file, now, own);
  const double most = fit.now.fits() ? fit.now.seconds.total() * (1 - kWorthChanging) : 1e300;
  std::erase_if(options, [&](const Option& option) {
    return !option.then.fits() || option.edits.empty() || option.then.seconds.total() > most;
  });
  const bool comfortable =
      std::any_of(options.begin(), options.end(), [](const Option& o) { return !o.then.tight; });
  std::erase_if(options, [&](const Option& option) { return comfortable && option.then.tight; });
  const auto add = [&](const Option& option) {
    fit.changes.push_back({option.then, diff_of(file.document(), option.edits)});
  };
  if (options.empty()) {
    return fit;
  }
  const auto seconds = [](const Option& option) { return option.then.seconds.total(); };
  const Option& smallest =
      *std::min_element(options.begin(), options.end(), [&](const Option& a, const Option& b) {
        return a.edits.size() != b.edits.size() ? a.edits.size() < b.edits.size()
                                                : seconds(a) < seconds(b);
      });
  add(smallest);
  // Among those that are about as fast as the fastest: the fewest edits.
  double fastest = seconds(smallest);
  for (const Option& option : options) {
    fastest = std::min(fastest, seconds(option));
  }
  const Option* best = &smallest;
  for (const Option& option : options) {
    const bool fast = seconds(option) <= fastest * (1 + kWorthChanging);
    const bool best_is_fast = seconds(*best) <= fastest * (1 + kWorthChanging);
    if (fast && (!best_is_fast || option.edits.size() < best->edits.size())) {
      best = &option;
    }
  }
  if (best != &smallest) {
    add(*best);
  }
  return fit;
}

}  // namespace zero::planner
