#pragma once

#include <zero/engine/engine.h>
#include <zero/nn/gpt.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace zero::testing {

/// One training run with ranks as threads, and what must not depend on how it is run.
struct RunSpec {
  int ranks = 2;
  int stage = 0;
  std::int64_t micro_batch = 2;
  std::int64_t accumulation = 1;
  int steps = 4;
  std::string
      zero_keys{};  ///< further members of zero_optimization, e.g. R"("reduce_bucket_size": 1000)"
  std::string top_keys{};  ///< further top-level members
  nn::GptConfig model = tiny_gpt();
  std::string precision{};  ///< "", "fp16" or "bf16"
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}})";
  PlanOptions plan{};
  std::int64_t memory_budget_bytes = 0;
  std::optional<comm::NetworkShape> network{};  ///< a network to imitate
  bool trace = false;
  std::function<void(nn::Gpt&)> prepare{};  ///< e.g. freezes parameters, before initialize
  std::function<void(Engine&, nn::Gpt&, int)> each_step{};  ///< runs after each step on every rank

  [[nodiscard]] static nn::GptConfig tiny_gpt();
};

struct RunResult {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<float>>
      parameters;  ///< of rank 0; equal on all ranks, which is checked
  std::vector<RankMemory> memory;
  std::vector<comm::Traffic> traffic;  ///< by rank, of the steps alone
  StatePlan plan;
};

/// Trains with spec.ranks threads of this process.
[[nodiscard]] RunResult run(const RunSpec& spec);
/// Trains on the ranks of a world; the result is complete on its rank 0 alone.
[[nodiscard]] RunResult run_on(World& world, const RunSpec& spec);

/// A file in a folder of this test process that is removed at exit.
[[nodiscard]] std::string write_temporary(const std::string& name, const std::string& text);
[[nodiscard]] std::string ds_config(const RunSpec& spec);

/// Deterministic tokens: sample g of a text that repeats with a long period.
[[nodiscard]] Batch make_batch(std::int64_t first_sample,
                               std::int64_t rows,
                               std::int64_t tokens,
                               std::int64_t vocabulary);

/// Equal bit for bit: losses, norms and parameters.
[[nodiscard]] bool same_bits(const RunResult& a, const RunResult& b);

}  // namespace zero::testing
