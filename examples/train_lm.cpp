#include "examples/control.h"
#include "examples/data.h"
#include "examples/mpirun.h"
#include "examples/options.h"
#include "examples/plan_file.h"
#include "examples/recorder.h"
#include "examples/report.h"
#include "examples/sampling.h"
#include "examples/speed.h"
#include <zero/engine/checkpoint.h>
#include <zero/engine/safetensors.h>
#include <zero/nn/gpt.h>
#include <zero/zero.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <numeric>

namespace zero::examples {
namespace {

/// What a training run works with on one rank.
struct Run {
  Engine& engine;
  const Corpus& corpus;
  const Corpus* validation;  ///< nullptr: none
  SampleOrder order;
  std::int64_t steps;
  std::int64_t eval_every;
  const Options& options;
  int rank;
};

/// At most this many micro-batches a rank make a validation loss.
constexpr std::int64_t kValidationBatches = 8;
constexpr std::int64_t kPromptTokens = 32;

Corpus open_corpus(const Options& options, const nn::GptConfig& model, const std::string& path) {
  return Corpus({.path = path,
                 .type = parse_token_type(options.tokens),
                 .sequence = model.positions,
                 .vocabulary = model.vocabulary,
                 .shuffle_seed = path == options.data ? options.shuffle : std::nullopt});
}

/// Mean over ranks and micro-batches of the same validation windows each time.
double validation_loss(const Run& run, Control& control) {
  const std::int64_t batch = run.order.ranks * run.order.micro_batch;
  const std::int64_t batches =
      std::clamp<std::int64_t>(run.validation->windows() / batch, 1, kValidationBatches);
  double sum = 0.0;
  for (std::int64_t i = 0; i < batches; ++i) {
    const std::int64_t first = i * batch + run.rank * run.order.micro_batch;
    const Loss loss = run.engine.evaluate(run.validation->batch(first, run.order.micro_batch));
    sum += loss.value();
  }
  return control.mean(sum / static_cast<double>(batches));
}

/// A save in the middle that fails is no reason to stop: the checkpoint before it stands.
template <class Body>
void try_to_save(Recorder& recorder, bool last, const Body& body) {
  try {
    body();
  } catch (const IoError& error) {
    if (last) {
      throw;
    }
    recorder.note(fmt::format("not saved: {}", error.what()));
  }
}

void save(const Run& run, Recorder& recorder, bool last) {
  // The background save before this one, if it has not ended.
  try_to_save(recorder, /*last=*/false, [&] { run.engine.finish_checkpoint(); });
  try_to_save(recorder, last, [&] {
    const std::string tag = run.engine.save_checkpoint(run.options.save);
    const bool background = run.engine.config().checkpoint_async_save && !last;
    if (!background) {
      run.engine.finish_checkpoint();
    }
    if (run.rank == 0) {
      recorder.note(
          fmt::format("{} {}/{}", background ? "saving" : "saved", run.options.save, tag));
      if (run.options.keep > 0) {
        remove_old_checkpoints(run.options.save, static_cast<std::size_t>(run.options.keep));
      }
    }
  });
}

void train_loop(const Run& run, Control& control, StopVote& vote, Recorder& recorder) {
  std::int64_t step = run.engine.global_steps();
  std::int64_t saved = -1;
  for (; step < run.steps && !vote.stop_now(); ++step) {
    for (std::int64_t micro = 0; micro < run.order.accumulation; ++micro) {
      const std::int64_t first = run.order.first(step, micro, run.rank);
      const Loss loss = run.engine.forward(run.corpus.batch(first, run.order.micro_batch));
      run.engine.backward(loss);
      run.engine.step();
    }
    const bool measures = run.validation != nullptr && run.eval_every > 0 &&
                          (step + 1) % run.eval_every == 0 && step + 1 < run.steps;
    recorder.steps(run.engine.take_results(/*wait=*/measures));
    if (measures) {
      recorder.evaluation(step + 1, validation_loss(run, control));
    }
    if (run.options.save_every > 0 && (step + 1) % run.options.save_every == 0) {
      save(run, recorder, /*last=*/false);
      saved = step + 1;
    }
  }
  recorder.steps(run.engine.take_results(/*wait=*/true));
  if (run.validation != nullptr) {
    recorder.evaluation(run.engine.global_steps(), validation_loss(run, control));
  }
  if (!run.options.save.empty() && saved != step) {
    save(run, recorder, /*last=*/true);
  }
  run.engine.finish_checkpoint();
}

/// The results on standard output, by rank 0.
void report(const Run& run,
            const Recorder& recorder,
            const StatePlan& stage0,
            const std::vector<RankMemory>& memory) {
  if (run.rank == 0) {
    fmt::print("loss={:.4f}\n\n{}",
               recorder.final_loss(),
               memory_table(run.engine.plan(), stage0, memory));
    std::fflush(stdout);
  }
}

/// A sample that goes on from some tokens in the middle of the text.
void write_sample(const Run& run, nn::Gpt& model, const Options& options) {
  const HostTensor inputs = run.corpus.batch(run.corpus.windows() / 2, 1).inputs;
  const auto window = inputs.view().as<std::int32_t>();
  const auto prompt =
      window.first(std::min<std::size_t>(window.size(), static_cast<std::size_t>(kPromptTokens)));
  const std::vector<std::int32_t> tokens =
      sample(run.engine, model, prompt, {.count = options.sample, .seed = options.seed});
  if (run.rank == 0) {
    fmt::print("\nsample, of which the first {} tokens are from the text:\n{}{}\n",
               prompt.size(),
               printable(prompt),
               printable(tokens));
  }
}

Progress::Facts facts_of(const Run& run, const nn::GptConfig& model, double machine_flops) {
  const std::int64_t tokens =
      run.order.accumulation * run.order.ranks * run.order.micro_batch * model.positions;
  return {.steps = run.steps,
          .tokens_per_step = static_cast<double>(tokens),
          .flops_per_token = training_flops_per_token(model),
          .machine_flops = machine_flops};
}

InitialValues initial_values(const Options& options, Module& model) {
  if (options.init.empty()) {
    return {};
  }
  PretrainedWeights weights(options.init);
  std::vector<ParamInfo> infos;
  for (const auto& parameter : parameters_of(model)) {
    infos.push_back(parameter->info);
  }
  weights.check(infos);
  return weights;
}

/// The order of samples; after a load it goes on behind those that were seen, whatever the batch
/// size was then.
SampleOrder order_of(const Engine& engine, int ranks) {
  const config::Config& config = engine.config();
  return {.accumulation = config.gradient_accumulation_steps,
          .ranks = ranks,
          .micro_batch = config.train_micro_batch_size_per_gpu,
          .start = engine.training_samples() - engine.global_steps() * config.train_batch_size};
}

/// Goes on from a checkpoint, if there is one to go on from.
void load(Engine& engine, const Options& options, std::int64_t steps) {
  if (options.load.empty()) {
    return;
  }
  const LoadedCheckpoint loaded = engine.load_checkpoint(options.load);
  if (loaded.global_steps >= steps) {
    throw InputError(fmt::format("the checkpoint has {} steps already", loaded.global_steps),
                     fmt::format("--load {} --steps {}", options.load, steps),
                     "--steps is the total: give a larger one");
  }
}

/// One rank from start to end; returns the exit status.
int train(World& world, const Options& options, const nn::GptConfig& model_config) {
  const Corpus corpus = open_corpus(options, model_config, options.data);
  std::optional<Corpus> validation;
  if (!options.eval_data.empty()) {
    validation.emplace(open_corpus(options, model_config, options.eval_data));
  }
  nn::Gpt model(model_config);
  Control control(world);
  (void)control.gather(0.0);  // the ranks measure at the same time
  const std::vector<double> speeds = control.gather(measure_gemm_flops(world));
  const StatePlan stage0 = plan_of(options, model, world.group.size(), /*stage=*/0);
  const auto engine = initialize({.world = world,
                                  .model = model,
                                  .config = options.config,
                                  .batch = options.batch,
                                  .seed = options.seed,
                                  .initial_values = initial_values(options, model),
                                  .memory_budget_bytes = options.memory_budget_bytes,
                                  .trace = !options.trace.empty()});
  const config::Config& config = engine->config();
  const std::int64_t pass = std::max<std::int64_t>(1, corpus.windows() / config.train_batch_size);
  const std::int64_t steps = options.steps.value_or(pass);
  load(*engine, options, steps);
  const Run run{.engine = *engine,
                .corpus = corpus,
                .validation = validation ? &*validation : nullptr,
                .order = order_of(*engine, world.group.size()),
                .steps = steps,
                .eval_every = options.eval_every,
                .options = options,
                .rank = world.group.rank()};
  const double machine_flops = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  Recorder recorder(world, options.metrics, facts_of(run, model_config, machine_flops));
  StopVote vote(control);
  catch_stop_signals();
  train_loop(run, control, vote, recorder);

  const std::vector<RankMemory> memory = engine->memory_of_all_ranks();
  recorder.summary(*engine, memory, vote.signal());
  if (!options.export_path.empty()) {
    engine->export_weights(options.export_path);
  }
  if (!options.trace.empty()) {
    engine->write_trace(options.trace);
  }
  report(run, recorder, stage0, memory);
  if (options.sample > 0 && vote.signal() == 0) {
    write_sample(run, model, options);
  }
  return vote.signal() == 0 ? 0 : 128 + vote.signal();
}

}  // namespace

int run_program(int argc, char** argv) {
  std::optional<Options> options = parse_options(argc, argv);
  if (!options) {
    return 0;
  }
  const nn::GptConfig model_config = nn::load_gpt_config(options->model);
  options->batch.hidden_size = model_config.hidden;  // what "auto" bucket sizes are made from
  if (!options->plan.empty()) {
    write_plan(*options, model_config);
    return 0;
  }
  check_before_start(*options, model_config);
  if (options->comm == "mpi" && !comm::under_mpirun()) {
    return run_under_mpirun(std::max(1, options->ranks), argv);
  }
  ignore_file_size_signal();
  return launch({.ranks = options->ranks,
                 .comm = options->comm,
                 .device = options->device,
                 .threads = options->threads,
                 .network = options->network},
                [&](World& world) { return train(world, *options, model_config); });
}

}  // namespace zero::examples

int main(int argc, char** argv) {
  try {
    return zero::examples::run_program(argc, argv);
  } catch (const std::exception& error) {
    return zero::examples::report_once(error);
  }
}
