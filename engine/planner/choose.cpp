#include "engine/planner/text.h"
#include <zero/core/error.h>
#include <zero/engine/planner.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace zero::planner {
namespace {

/// Set-ups whose step times differ by less are equally fast: the simpler one is better.
constexpr double kSameTime = 0.05;
/// What tensor × pipeline parallelism must save of the step to be worth writing the model for it.
constexpr double kWorthRewriting = 0.25;
/// What leaving plain data parallelism must save where it fits.
constexpr double kWorthPartitioning = 0.20;
constexpr std::int64_t kMostVirtualStages = 4;

const char* home_name(Offload offload) {
  return offload == Offload::kCpu ? "cpu" : "nvme";
}

std::vector<std::int64_t> divisors(std::int64_t of) {
  std::vector<std::int64_t> all;
  for (std::int64_t value = 1; value <= of; value *= 2) {
    if (of % value == 0) {
      all.push_back(value);
    }
  }
  if (all.back() != of) {
    all.push_back(of);
  }
  return all;
}

bool better(const Estimate& a, const Estimate& b) {
  const auto rank = [](const Estimate& e) { return e.fits() ? (e.tight ? 1 : 0) : 2; };
  if (rank(a) != rank(b)) {
    return rank(a) < rank(b);
  }
  if (!a.fits()) {
    return a.shortfall_bytes < b.shortfall_bytes;
  }
  const double ta = a.seconds.total();
  const double tb = b.seconds.total();
  // Equal times: the larger micro-batch, which keeps the device busier than the model says.
  return std::abs(ta - tb) > 1e-6 * tb ? ta < tb : a.setup.micro_batch > b.setup.micro_batch;
}

/// The set-up with the micro-batch that suits it best; nothing if the batch cannot be cut for it.
std::optional<Estimate> with_best_micro_batch(const Evaluator& evaluator, Setup setup) {
  const std::int64_t batch = evaluator.batch();
  const std::int64_t fixed = evaluator.workload().micro_batch;
  if (batch % setup.data != 0) {
    return {};
  }
  const std::int64_t share = batch / setup.data;
  std::optional<Estimate> best;
  for (const std::int64_t micro : divisors(share)) {
    // A pipeline needs many micro-batches, and so small ones.
    if ((fixed > 0 && !setup.model_parallel() && micro != fixed) ||
        (setup.model_parallel() && micro > std::max<std::int64_t>(1, fixed))) {
      continue;
    }
    setup.micro_batch = micro;
    setup.accumulation = share / micro;
    Estimate estimate = evaluator.evaluate(setup);
    const bool grows_further = estimate.fits();
    if (!best || better(estimate, *best)) {
      best = std::move(estimate);
    }
    if (!grows_further) {
      break;
    }
  }
  if (best && !best->fits() && setup.stage == 3 && !setup.lean) {
    setup.lean = true;
    if (auto lean = with_best_micro_batch(evaluator, setup); lean->fits()) {
      return lean;
    }
  }
  return best;
}

std::vector<bool> recomputations(const Workload& workload) {
  return workload.recompute ? std::vector<bool>{*workload.recompute}
                            : std::vector<bool>{false, true};
}

std::vector<Setup> data_parallel_setups(const Evaluator& evaluator) {
  const Cluster& cluster = evaluator.cluster();
  std::vector<Setup> setups;
  const auto there = [&](Offload offload) {
    return offload == Offload::kNone ||
           (cluster.host_bytes > 0 && (offload == Offload::kCpu || cluster.nvme_bytes > 0));
  };
  for (const int stage : {0, 1, 2, 3}) {
    for (const Offload optimizer : {Offload::kNone, Offload::kCpu, Offload::kNvme}) {
      for (const Offload param : {Offload::kNone, Offload::kCpu, Offload::kNvme}) {
        const bool makes_sense = (stage > 0 || optimizer == Offload::kNone) &&
                                 (param == Offload::kNone || stage == 3) && param <= optimizer;
        if (!makes_sense || !there(optimizer) || !there(param)) {
          continue;
        }
        for (const bool recompute : recomputations(evaluator.workload())) {
          Setup setup;
          setup.stage = stage;
          setup.offload_optimizer = optimizer;
          setup.offload_param = param;
          setup.recompute = recompute;
          setup.data = cluster.gpus();
          setups.push_back(setup);
        }
      }
    }
  }
  return setups;
}

/// Tensor × pipeline cuts that divide heads and GPUs; tensor parallelism stays within a node.
std::vector<Setup> model_parallel_setups(const Evaluator& evaluator) {
  const Cluster& cluster = evaluator.cluster();
  const ModelShape& shape = evaluator.shape();
  std::vector<Setup> setups;
  for (std::int64_t tensor = 1; tensor <= cluster.gpus_per_node; ++tensor) {
    if (cluster.gpus_per_node % tensor != 0 || shape.heads % tensor != 0) {
      continue;
    }
    for (std::int64_t pipeline = 1; pipeline <= shape.layers; ++pipeline) {
      if (tensor * pipeline == 1 || cluster.gpus() % (tensor * pipeline) != 0) {
        continue;
      }
      Setup setup;
      setup.tensor = tensor;
      setup.pipeline = pipeline;
      setup.data = cluster.gpus() / (tensor * pipeline);
      const std::int64_t micro_batches = evaluator.batch() / setup.data;
      for (std::int64_t chunks = kMostVirtualStages; chunks > 1; --chunks) {
        if (pipeline > 1 && shape.layers % (pipeline * chunks) == 0 &&
            micro_batches % pipeline == 0) {
          setup.virtual_stages = chunks;
          break;
        }
      }
      setups.push_back(setup);
    }
  }
  return setups;
}

/// Of all cuts, the fastest that fit and are about equally fast; of those the one that cuts least.
std::optional<Estimate> best_model_parallel(const Evaluator& evaluator) {
  std::vector<Estimate> all;
  for (const Setup& setup : model_parallel_setups(evaluator)) {
    if (auto estimate = with_best_micro_batch(evaluator, setup)) {
      all.push_back(std::move(*estimate));
    }
  }
  if (all.empty()) {
    return {};
  }
  const Estimate fastest = *std::min_element(all.begin(), all.end(), better);
  const auto equal = [&](const Estimate& e) {
    return e.fits() == fastest.fits() && e.tight == fastest.tight && e.fits() &&
           e.seconds.total() <= fastest.seconds.total() * (1 + kSameTime / 2);
  };
  const Estimate* best = &fastest;
  for (const Estimate& estimate : all) {
    if (equal(estimate) && estimate.setup.tensor * estimate.setup.pipeline <
                               best->setup.tensor * best->setup.pipeline) {
      best = &estimate;
    }
  }
  return *best;
}

/// Of the candidates that fit (comfortably, if any does) the simplest that is about as fast as the
/// fastest.
int recommend(const std::vector<Estimate>& candidates) {
  const bool comfortable = std::any_of(
      candidates.begin(), candidates.end(), [](const Estimate& e) { return e.fits() && !e.tight; });
  int best = -1;
  double fastest = INFINITY;
  const auto plain = [](const Estimate& e) {
    return e.setup.stage == 0 && !e.setup.model_parallel();
  };
  const bool plain_fits = std::any_of(candidates.begin(), candidates.end(), [&](const Estimate& e) {
    return plain(e) && e.fits() && !e.tight;
  });
  // Where a device holds the whole model, cutting it buys no memory, and accumulation relieves the
  // links without rewriting it.
  const auto eligible = [&](const Estimate& e) {
    return e.fits() && (!comfortable || !e.tight) && !(plain_fits && e.setup.model_parallel());
  };
  // Seconds as they count: what is less simple must earn it.
  const auto counted = [&](const Estimate& e) {
    const double must_save = e.setup.model_parallel()  ? kWorthRewriting
                             : plain_fits && !plain(e) ? kWorthPartitioning
                                                       : 0.0;
    return e.seconds.total() / (1 - must_save);
  };
  for (const Estimate& estimate : candidates) {
    fastest = eligible(estimate) ? std::min(fastest, counted(estimate)) : fastest;
  }
  for (int index = 0; index < static_cast<int>(candidates.size()); ++index) {
    const Estimate& estimate = candidates[static_cast<std::size_t>(index)];
    if (!eligible(estimate) || counted(estimate) > fastest * (1 + kSameTime)) {
      continue;
    }
    if (best < 0 || estimate.setup.complexity() <
                        candidates[static_cast<std::size_t>(best)].setup.complexity()) {
      best = index;
    }
  }
  return best;
}

std::string missing(const Estimate& estimate) {
  return fmt::format("{} misses by {:.1f} GiB of {} memory",
                     estimate.setup.name(),
                     estimate.shortfall_bytes / kGiB,
                     estimate.scarce);
}

/// The rule of thumb of practitioners, for comparison only.
std::string rule_of_thumb(const Evaluator& evaluator, const Plan& plan) {
  const double params = static_cast<double>(evaluator.shape().params());
  const auto fits_alone =
      std::any_of(plan.candidates.begin(), plan.candidates.end(), [](const Estimate& e) {
        return e.setup.stage == 0 && !e.setup.model_parallel() && e.fits();
      });
  constexpr double kLarge = 10e9;
  const std::string rule = fits_alone         ? "DDP"
                           : params <= kLarge ? "ZeRO-2 or ZeRO-3"
                                              : "tensor x pipeline x data parallelism";
  const Setup& chosen = plan.candidates.at(static_cast<std::size_t>(plan.recommended)).setup;
  const bool agrees = fits_alone         ? chosen.stage == 0 && !chosen.model_parallel()
                      : params <= kLarge ? chosen.stage >= 2 && !chosen.model_parallel()
                                         : chosen.model_parallel();
  return fmt::format(
      "rule of thumb (fits one device: DDP; up to 10 billion: ZeRO-2/3; beyond: "
      "tensor x pipeline x data): {}; the numbers {}",
      rule,
      agrees ? "agree" : "say otherwise");
}

void explain(const Evaluator& evaluator, Plan& plan) {
  const Cluster& cluster = evaluator.cluster();
  // Simpler set-ups without offload that miss, once for each stage: the better of with and without
  // recomputation.
  for (const int stage : {0, 1, 2, 3}) {
    const Estimate* nearest = nullptr;
    for (const Estimate& e : plan.candidates) {
      if (e.setup.stage == stage && !e.setup.model_parallel() &&
          e.setup.offload_optimizer == Offload::kNone &&
          (nearest == nullptr || e.shortfall_bytes < nearest->shortfall_bytes)) {
        nearest = &e;
      }
    }
    const bool simpler =
        nearest != nullptr &&
        (plan.recommended < 0 ||
         nearest->setup.complexity() <
             plan.candidates[static_cast<std::size_t>(plan.recommended)].setup.complexity());
    if (simpler && !nearest->fits()) {
      plan.reasons.push_back(missing(*nearest));
    } else if (simpler && nearest->tight) {
      plan.reasons.push_back(fmt::format("{} fits, but takes {:.1f} % of the device: tight",
                                         nearest->setup.name(),
                                         100 * nearest->device_bytes() / cluster.gpu.memory_bytes));
    }
  }
  if (plan.recommended < 0) {
    const auto nearest = std::min_element(
        plan.candidates.begin(), plan.candidates.end(), [](const Estimate& a, const Estimate& b) {
          return a.shortfall_bytes < b.shortfall_bytes;
        });
    plan.reasons.push_back("nothing fits; nearest: " + missing(*nearest));
    return;
  }
  const Estimate& chosen = plan.candidates[static_cast<std::size_t>(plan.recommended)];
  plan.reasons.push_back(rule_of_thumb(evaluator, plan));
  if (chosen.setup.stage == 0 && !chosen.setup.model_parallel() && cluster.gpus() > 1) {
    for (const Estimate& e : plan.candidates) {
      if (e.setup.stage == 1 && e.setup.recompute == chosen.setup.recompute &&
          e.setup.offload_optimizer == Offload::kNone) {
        plan.reasons.push_back(
            fmt::format("ZeRO-1 would save {:.1f} GiB a rank at equal traffic: \"stage\": 1",
                        (chosen.device_bytes() - e.device_bytes()) / kGiB));
      }
    }
  }
  if (evaluator.shape().layers % chosen.setup.pipeline != 0) {
    plan.reasons.push_back(fmt::format(
        "{} layers cannot be cut evenly into {} pipeline stages: the largest has {}",
        evaluator.shape().layers,
        chosen.setup.pipeline,
        (evaluator.shape().layers + chosen.setup.pipeline - 1) / chosen.setup.pipeline));
  }
  // The next better one: faster, and nearest to fitting.
  const Estimate* next = nullptr;
  for (const Estimate& e : plan.candidates) {
    const bool faster = e.seconds.total() < chosen.seconds.total() * (1 - kSameTime);
    const bool out_of_reach = e.fits() && !e.tight;
    if (faster && !out_of_reach && (next == nullptr || e.shortfall_bytes < next->shortfall_bytes)) {
      next = &e;
    }
  }
  if (next != nullptr) {
    const double device = next->device_bytes();
    plan.reasons.push_back(
        next->fits()
            ? fmt::format("next better: {} ({:.3g} s a step), tight at {:.1f} of {:.1f} GiB",
                          next->setup.name(),
                          next->seconds.total(),
                          device / kGiB,
                          cluster.gpu.memory_bytes / kGiB)
            : fmt::format("next better: {} ({:.3g} s a step) would need {:.1f} GiB more {} memory",
                          next->setup.name(),
                          next->seconds.total(),
                          next->shortfall_bytes / kGiB,
                          next->scarce));
  }
  if (chosen.setup.model_parallel()) {
    plan.reasons.emplace_back(
        "this engine does not cut tensors or pipelines; Megatron-LM does. The best ZeRO set-up is "
        "in "
        "the table");
  }
  if (chosen.setup.offload_optimizer == Offload::kNvme) {
    plan.reasons.emplace_back("this engine refuses nvme so far; DeepSpeed runs it");
  }
}

}  // namespace

std::string Setup::name() const {
  if (model_parallel()) {
    return fmt::format("t{} p{} d{}{}",
                       tensor,
                       pipeline,
                       data,
                       virtual_stages > 1 ? fmt::format(" v{}", virtual_stages) : "");
  }
  std::string name = stage == 0 ? "DDP" : fmt::format("ZeRO-{}{}", stage, lean ? " lean" : "");
  if (offload_optimizer != Offload::kNone && offload_optimizer == offload_param) {
    name += fmt::format(" + all on {}", home_name(offload_optimizer));
  } else if (offload_optimizer != Offload::kNone) {
    name += fmt::format(" + optimizer on {}", home_name(offload_optimizer));
    if (offload_param != Offload::kNone) {
      name += fmt::format(", parameters on {}", home_name(offload_param));
    }
  }
  return name;
}

std::int64_t Setup::complexity() const {
  if (model_parallel()) {
    return 2000 + tensor * pipeline;
  }
  // With offload on several devices the most partitioned comes first: it takes as long where links
  // hide its gathers, and leaves the most memory for a larger micro-batch.
  const bool most_first = offload_optimizer != Offload::kNone && data > 1;
  return 200 * static_cast<std::int64_t>(offload_optimizer) +
         60 * static_cast<std::int64_t>(offload_param) + 4 * (most_first ? 3 - stage : stage) +
         (recompute ? 2 : 0) + (lean ? 1 : 0);
}

Plan choose(const Evaluator& evaluator) {
  Plan plan;
  for (const Setup& setup : data_parallel_setups(evaluator)) {
    if (auto estimate = with_best_micro_batch(evaluator, setup)) {
      plan.candidates.push_back(std::move(*estimate));
    }
  }
  if (evaluator.workload().model_parallel && evaluator.cluster().gpus() > 1 &&
      evaluator.shape().lora_rank == 0) {
    if (auto estimate = best_model_parallel(evaluator)) {
      plan.candidates.push_back(std::move(*estimate));
    }
  }
  if (plan.candidates.empty()) {
    throw InputError(
        fmt::format("a batch of {} cannot be cut over {} GPUs{}",
                    evaluator.batch(),
                    evaluator.cluster().gpus(),
                    evaluator.workload().micro_batch > 0
                        ? fmt::format(" in micro-batches of {}", evaluator.workload().micro_batch)
                        : ""),
        "--batch",
        "give a multiple");
  }
  std::stable_sort(
      plan.candidates.begin(), plan.candidates.end(), [](const Estimate& a, const Estimate& b) {
        return a.setup.complexity() < b.setup.complexity();
      });
  plan.recommended = recommend(plan.candidates);
  explain(evaluator, plan);
  return plan;
}

}  // namespace zero::planner
