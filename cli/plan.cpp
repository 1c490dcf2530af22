#include "cli/commands.h"
#include <zero/core/error.h>
#include <zero/core/file.h>
#include <zero/engine/planner.h>

#include <fmt/format.h>

#include <iostream>
#include <memory>

namespace zero::cli {
namespace {

struct Options {
  std::string model;
  std::string gpu = "a100-80gb";
  std::int64_t nodes = 1;
  std::int64_t gpus_per_node = 1;
  std::string cpu_memory;
  std::string nvme;
  std::string inter_node;
  std::optional<std::int64_t> batch;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::int64_t> sequence;
  std::int64_t lora_rank = 0;
  std::string precision = "bf16";
  std::string recompute = "auto";
  std::string attention = "flash";
  bool zero_only = false;
  bool json = false;
  std::string fit;
  std::string write;
  std::string plot;
};

planner::ModelShape shape_of(const Options& options) {
  planner::ModelShape shape = planner::parse_model(options.model);
  if (options.sequence) {
    constexpr std::int64_t kLongest = std::int64_t{1} << 24;
    if (*options.sequence < 1 || *options.sequence > kLongest) {
      throw InputError(fmt::format("{} tokens", *options.sequence),
                       "--seq",
                       fmt::format("give 1 to {}", kLongest));
    }
    shape.sequence = *options.sequence;
  }
  shape.lora_rank = options.lora_rank;
  return shape;
}

planner::Cluster cluster_of(const Options& options) {
  planner::Cluster cluster;
  cluster.gpu = planner::parse_gpu(options.gpu);
  cluster.nodes = options.nodes;
  cluster.gpus_per_node = options.gpus_per_node;
  cluster.inter_bytes_s = options.inter_node.empty()
                              ? cluster.gpu.inter_bytes_s
                              : planner::parse_bytes(options.inter_node, "--inter-node");
  if (!options.cpu_memory.empty()) {
    cluster.host_bytes = planner::parse_bytes(options.cpu_memory, "--cpu-memory");
  }
  if (!options.nvme.empty()) {
    const std::size_t comma = options.nvme.find(',');
    if (comma == std::string::npos) {
      throw InputError(
          "\"" + options.nvme + "\" has no bandwidth", "--nvme", "write SIZE,BANDWIDTH: 28TB,25GB");
    }
    cluster.nvme_bytes = planner::parse_bytes(options.nvme.substr(0, comma), "--nvme");
    cluster.nvme_bytes_s = planner::parse_bytes(options.nvme.substr(comma + 1), "--nvme");
  }
  return cluster;
}

planner::Workload workload_of(const Options& options) {
  const auto positive = [](std::optional<std::int64_t> value, const char* option) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    if (value && (*value < 1 || *value > kMost)) {
      throw InputError(
          fmt::format("{} samples", *value), option, fmt::format("give 1 to {}", kMost));
    }
    return value.value_or(0);
  };
  planner::Workload workload;
  workload.batch = positive(options.batch, "--batch");
  workload.micro_batch = positive(options.micro_batch, "--micro-batch");
  workload.precision = options.precision == "fp32"   ? DType::kF32
                       : options.precision == "fp16" ? DType::kF16
                                                     : DType::kBF16;
  if (options.recompute != "auto") {
    workload.recompute = options.recompute == "on";
  }
  workload.attention_matrix = options.attention == "matrix";
  workload.model_parallel = !options.zero_only;
  return workload;
}

planner::Evaluator evaluator_of(const Options& options) {
  return {shape_of(options), cluster_of(options), workload_of(options)};
}

int run_fit(const Options& options, const planner::Evaluator& evaluator) {
  const planner::Fit fit = planner::fit_ds_config(options.fit, evaluator);
  std::cout << (options.json ? planner::fit_json(fit, evaluator)
                             : planner::fit_text(fit, evaluator));
  return fit.now.fits() ? 0 : static_cast<int>(ExitCode::kBadInput);
}

int run(const Options& options) {
  for (const auto& [path, option] :
       {std::pair{options.write, "--write"}, std::pair{options.plot, "--plot"}}) {
    if (!path.empty()) {
      check_output_path(path, option);
    }
  }
  const planner::Evaluator evaluator = evaluator_of(options);
  if (!options.fit.empty()) {
    return run_fit(options, evaluator);
  }
  const planner::Plan plan = planner::choose(evaluator);
  std::cout << (options.json ? planner::plan_json(plan, evaluator)
                             : planner::plan_text(plan, evaluator));
  if (!options.plot.empty()) {
    write_file(options.plot, planner::plan_svg(plan, evaluator));
  }
  if (plan.recommended < 0) {
    return static_cast<int>(ExitCode::kBadInput);
  }
  if (!options.write.empty()) {
    write_file(options.write,
               planner::write_ds_config(plan.candidates[static_cast<std::size_t>(plan.recommended)],
                                        evaluator));
    std::cerr << options.write
              << ": written; learning rate and betas are GPT-3's, put in your own\n";
  }
  return 0;
}

void add_cluster_options(CLI::App& command, Options& options) {
  command
      .add_option("--model",
                  options.model,
                  "Known name, HuggingFace config.json, layers=N,hidden=N[,heads=N,seq=N,vocab=N] "
                  "or a number of parameters such as 20B")
      ->required();
  command.add_option("--nodes", options.nodes, "Nodes")->capture_default_str();
  command.add_option("--gpus-per-node", options.gpus_per_node, "GPUs of a node")
      ->capture_default_str();
  command
      .add_option("--gpu",
                  options.gpu,
                  "Known name, or memory=80GB,flops=312T[,hbm,link,host,inter=BANDWIDTH]")
      ->capture_default_str();
  command.add_option("--cpu-memory", options.cpu_memory, "Host memory of a node, such as 1TB");
  command.add_option("--nvme", options.nvme, "NVMe of a node: SIZE,BANDWIDTH such as 28TB,25GB");
  command.add_option("--inter-node", options.inter_node, "Bandwidth of a GPU between nodes, 200Gb");
  command.add_option("--micro-batch", options.micro_batch, "Samples a GPU at a time");
  command.add_option("--seq", options.sequence, "Tokens of a sample");
  command.add_option(
      "--lora", options.lora_rank, "Freeze the weights, train adapters of this rank");
  command.add_option("--precision", options.precision, "Model dtype")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
}

}  // namespace

void add_plan(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "plan", "What fits, how long a step takes and what to write into the ds_config");
  add_cluster_options(*command, *options);
  command->add_option("--batch", options->batch, "Samples a step; default: one a GPU");
  command->add_option("--recompute", options->recompute, "Recompute activations")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  command->add_option("--attention", options->attention, "Whether attention keeps its matrix")
      ->check(CLI::IsMember({"flash", "matrix"}))
      ->capture_default_str();
  command->add_flag("--zero-only", options->zero_only, "No tensor x pipeline set-ups");
  command->add_flag("--json", options->json, "JSON instead of tables");
  command->add_option("--plot", options->plot, "Draw memory of each set-up into this SVG file");
  CLI::Option* write =
      command->add_option("--write", options->write, "Write the recommended ds_config");
  command->add_option("--fit", options->fit, "Judge this ds_config and say what to change")
      ->excludes(write);
  command->callback([options, &status] { status = run(*options); });
}

void add_estimate(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "estimate", "DeepSpeed's memory estimates for ZeRO-2 and ZeRO-3, and this engine's bytes");
  add_cluster_options(*command, *options);
  command->callback([options, &status] {
    std::cout << planner::estimate_text(evaluator_of(*options));
    status = 0;
  });
}

}  // namespace zero::cli
