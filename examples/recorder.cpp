#include "examples/recorder.h"

#include <fmt/format.h>

#include <numeric>

namespace zero::examples {
namespace {

constexpr std::size_t kLastSteps = 20;

RankMemory memory_of(const World& world) {
  const Ledger& ledger = world.context.ledger;
  return {ledger.use(MemorySpace::kDevice), ledger.use(MemorySpace::kHost)};
}

}  // namespace

Recorder::Recorder(World& world, const std::string& metrics_path, const Progress::Facts& facts)
    : world_(world), facts_(facts) {
  if (world.context.rank == 0) {
    progress_.emplace(facts);
    if (!metrics_path.empty()) {
      metrics_ = std::make_unique<MetricsFile>(metrics_path);
    }
  }
  last_ = Clock::now();
}

void Recorder::steps(const std::vector<StepResult>& results) {
  if (results.empty()) {
    return;
  }
  const auto now = Clock::now();
  const double each_s =
      std::chrono::duration<double>(now - last_).count() / static_cast<double>(results.size());
  last_ = now;
  for (const StepResult& result : results) {
    record(result, each_s);
  }
}

void Recorder::record(const StepResult& result, double step_s) {
  ++steps_;
  train_s_ += step_s;
  last_losses_.push_back(result.loss);
  if (last_losses_.size() > kLastSteps) {
    last_losses_.pop_front();
  }
  if (!progress_) {
    return;
  }
  const double tokens_per_s = facts_.tokens_per_step / step_s;
  const RankMemory memory = memory_of(world_);
  if (metrics_) {
    metrics_->step({result, step_s, tokens_per_s}, memory);
  }
  progress_->show({result.step,
                   result.loss,
                   result.lr,
                   tokens_per_s,
                   memory.device.total_bytes + memory.host.total_bytes});
}

void Recorder::evaluation(std::int64_t step, double loss) {
  last_ = Clock::now();
  if (metrics_) {
    metrics_->evaluation(step, loss);
  }
  if (progress_) {
    progress_->say(fmt::format("step {}/{}  validation loss {:.4f}", step, facts_.steps, loss));
  }
}

void Recorder::note(const std::string& text) {
  last_ = Clock::now();
  if (progress_) {
    progress_->say(text);
  }
}

void Recorder::summary(const Engine& engine, const std::vector<RankMemory>& memory, int signal) {
  if (progress_) {
    progress_->finish();
  }
  if (metrics_) {
    metrics_->summary(
        {.steps = steps_,
         .loss = final_loss(),
         .train_s = train_s_,
         .tokens_per_s = static_cast<double>(steps_) * facts_.tokens_per_step / train_s_,
         .signal = signal,
         .traffic = engine.traffic(),
         .memory = memory});
  }
}

double Recorder::final_loss() const {
  return std::accumulate(last_losses_.begin(), last_losses_.end(), 0.0) /
         static_cast<double>(last_losses_.size());
}

}  // namespace zero::examples
