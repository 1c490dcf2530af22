#include "examples/options.h"

#include <zero/core/error.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace zero::examples {
namespace {

/// More ranks than this on one machine are a typing error.
constexpr int kMaxRanks = 1024;

constexpr std::string_view kAbout =
    "Trains a GPT language model under ZeRO as a ds_config.json says.\n"
    "Under mpirun it uses the ranks it was given; otherwise it starts --ranks ranks itself.\n";

/// CLI11 would wrap a negative number into a large one.
std::string not_negative(const std::string& text) {
  return text.find('-') == std::string::npos ? "" : text + " is negative";
}

void add_input_options(CLI::App& app, Options& options) {
  app.add_option("--config", options.config, "ds_config.json to train by (required)")
      ->type_name("FILE");
  app.add_option("--data", options.data, "text or token file, or a folder of them (required)")
      ->type_name("FILE|DIR");
  app.add_option("--tokens", options.tokens, "what the data holds: byte, u16 or u32")
      ->capture_default_str();
  app.add_option("--model",
                 options.model,
                 "a name (byte-3m, byte-25m, byte-85m, gpt2, …), a HuggingFace config.json or a "
                 "folder with one")
      ->type_name("NAME|FILE|DIR")
      ->capture_default_str();
  app.add_option("--init", options.init, "initial weights; default: made from --seed")
      ->type_name("FILE.safetensors");
  app.add_option("--shuffle", options.shuffle, "visit the windows in an order made from this seed")
      ->type_name("SEED")
      ->check(not_negative);
  app.add_option("--seed", options.seed, "seed of the initial weights and of --sample")
      ->capture_default_str()
      ->check(not_negative);
}

/// What the command line says of a network, as text.
struct NetworkText {
  std::string link;
  std::string inter_link;
  int ranks_per_node = 0;
};

void add_network_options(CLI::App& app, NetworkText& network) {
  app.add_option("--link", network.link, "imitate a network, such as 1GB/s,50us; inf: no limit")
      ->type_name("BANDWIDTH,LATENCY");
  app.add_option("--ranks-per-node",
                 network.ranks_per_node,
                 "imitate nodes of so many ranks; --link is then the one within a node")
      ->type_name("K");
  app.add_option("--inter-link", network.inter_link, "and the one between nodes")
      ->type_name("BANDWIDTH,LATENCY");
}

void add_run_options(CLI::App& app, Options& options, std::string& budget) {
  app.add_option("--steps", options.steps, "optimizer steps; default: one pass over the data");
  app.add_option("--micro-batch",
                 options.batch.train_micro_batch_size_per_gpu,
                 "sequences a rank and micro-step; overrides the config");
  app.add_option("--accumulation",
                 options.batch.gradient_accumulation_steps,
                 "micro-steps a step; overrides the config");
  app.add_option("--train-batch",
                 options.batch.train_batch_size,
                 "sequences a step over all ranks; overrides the config");
  app.add_option("--ranks", options.ranks, "ranks to start; default 1, or mpirun's");
  app.add_option("--comm",
                 options.comm,
                 "local: ranks are threads; mpi: processes (starts mpirun if it is not under it); "
                 "auto: mpi under mpirun, else local")
      ->capture_default_str();
  app.add_option("--device", options.device, "where to compute: cpu")->capture_default_str();
  app.add_option("--threads", options.threads, "threads a rank; default: cores ÷ ranks");
  app.add_option("--memory-budget",
                 budget,
                 "stay below this a rank, such as 24GiB: raises the stage, recomputes, or refuses")
      ->type_name("SIZE");
}

void add_output_options(CLI::App& app, Options& options) {
  app.add_option("--metrics", options.metrics, "write one JSON line a step")
      ->type_name("FILE.jsonl");
  app.add_option("--eval-data", options.eval_data, "validation text; its loss is measured")
      ->type_name("FILE|DIR");
  app.add_option(
      "--eval-every", options.eval_every, "measure it every K steps; default: at the end only");
  app.add_option("--sample", options.sample, "write N tokens of text from the trained model");
  app.add_option("--export", options.export_path, "write the trained weights, fp32")
      ->type_name("FILE.safetensors");
  app.add_option("--save", options.save, "write a checkpoint at the end, also after a signal")
      ->type_name("DIR");
  app.add_option("--save-every", options.save_every, "and every K steps")->type_name("K");
  app.add_option("--keep", options.keep, "remove all but the K newest; default: keep all")
      ->type_name("K");
  app.add_option(
         "--load", options.load, "go on from the latest checkpoint there; --steps is the total")
      ->type_name("DIR");
  app.add_option("--trace", options.trace, "write a timeline of all streams for Perfetto")
      ->type_name("FILE.json");
  app.add_option("--plan", options.plan, "write what each rank would keep, and stop")
      ->type_name("FILE.json");
}

void require(bool condition, const std::string& what, const std::string& todo) {
  if (!condition) {
    throw InputError(what, "command line", todo);
  }
}

void require_one_of(const std::string& option,
                    const std::string& value,
                    std::initializer_list<std::string_view> allowed) {
  require(std::find(allowed.begin(), allowed.end(), value) != allowed.end(),
          fmt::format("{} \"{}\" is unknown", option, value),
          fmt::format("use {}", fmt::join(allowed, ", ")));
}

void require_positive(const std::string& option, const std::optional<std::int64_t>& value) {
  require(!value || *value >= 1,
          fmt::format("{} is {}", option, value.value_or(0)),
          "give a number of at least 1");
}

void check(const CLI::App& app, const Options& options) {
  require(!options.config.empty(), "--config is missing", "give a ds_config.json");
  require(!options.data.empty() || !options.plan.empty(),
          "--data is missing",
          "give a text file or a folder");
  require_one_of("--tokens", options.tokens, {"byte", "u16", "u32"});
  require_one_of("--comm", options.comm, {"auto", "local", "mpi"});
  require_one_of("--device", options.device, {"cpu"});
  require_positive("--steps", options.steps);
  require_positive("--micro-batch", options.batch.train_micro_batch_size_per_gpu);
  require_positive("--accumulation", options.batch.gradient_accumulation_steps);
  require_positive("--train-batch", options.batch.train_batch_size);
  require(app.count("--ranks") == 0 || (options.ranks >= 1 && options.ranks <= kMaxRanks),
          fmt::format("--ranks is {}", options.ranks),
          fmt::format("give a number from 1 to {}", kMaxRanks));
  require(app.count("--threads") == 0 || (options.threads >= 1 && options.threads <= kMaxRanks),
          fmt::format("--threads is {}", options.threads),
          fmt::format("give a number from 1 to {}", kMaxRanks));
  require(options.eval_every >= 0 && options.sample >= 0,
          "--eval-every or --sample is negative",
          "give 0 or more");
  require(options.save_every >= 0 && options.keep >= 0,
          "--save-every or --keep is negative",
          "give 0 or more");
  require(!options.save.empty() || (options.save_every == 0 && options.keep == 0),
          "--save-every or --keep without --save",
          "give the folder too");
  require(options.eval_every == 0 || !options.eval_data.empty(),
          "--eval-every without --eval-data",
          "give the validation text too");
}

}  // namespace

std::int64_t parse_size(const std::string& text, const std::string& option) {
  struct Suffix {
    std::string_view name;
    double factor;
  };
  static constexpr std::array<Suffix, 14> kSuffixes = {{{"", 1.0},
                                                        {"B", 1.0},
                                                        {"kB", 1e3},
                                                        {"MB", 1e6},
                                                        {"GB", 1e9},
                                                        {"TB", 1e12},
                                                        {"KiB", 0x1p10},
                                                        {"MiB", 0x1p20},
                                                        {"GiB", 0x1p30},
                                                        {"TiB", 0x1p40},
                                                        {"K", 0x1p10},
                                                        {"M", 0x1p20},
                                                        {"G", 0x1p30},
                                                        {"T", 0x1p40}}};
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string_view unit = end;
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  for (const Suffix& suffix : kSuffixes) {
    const double bytes = number * suffix.factor;
    if (end != text.c_str() && unit == suffix.name && bytes >= 1.0 && bytes <= 0x1p60) {
      return static_cast<std::int64_t>(bytes);
    }
  }
  throw InputError(fmt::format("{} \"{}\" is not a size", option, text),
                   "command line",
                   "write it like 24GiB, 512MiB or 1e9");
}

comm::LinkShape parse_link(const std::string& text, const std::string& option) {
  const std::size_t comma = text.find(',');
  const std::string bandwidth = text.substr(0, comma);
  const std::string latency = comma == std::string::npos ? "0us" : text.substr(comma + 1);
  comm::LinkShape shape;
  if (bandwidth != "inf") {
    const bool per_second = bandwidth.ends_with("/s");
    shape.bytes_per_s = static_cast<double>(
        parse_size(bandwidth.substr(0, bandwidth.size() - (per_second ? 2 : 0)), option));
  }
  char* unit = nullptr;
  const double number = std::strtod(latency.c_str(), &unit);
  const std::string_view name = unit;
  const double factor = name == "us" ? 1e-6 : name == "ms" ? 1e-3 : name == "s" ? 1.0 : -1.0;
  if (unit == latency.c_str() || factor < 0.0 || !(number >= 0.0 && number * factor <= 60.0)) {
    throw InputError(fmt::format("{} latency \"{}\" is not a time", option, latency),
                     "command line",
                     "write it like 50us or 1ms");
  }
  shape.latency_s = number * factor;
  return shape;
}

namespace {

std::optional<comm::NetworkShape> parse_network(const CLI::App& app, const NetworkText& text) {
  const bool nodes = app.count("--ranks-per-node") > 0;
  require(nodes == !text.inter_link.empty(),
          "--ranks-per-node and --inter-link go together",
          "give both or neither");
  require(!nodes || (text.ranks_per_node >= 1 && text.ranks_per_node <= kMaxRanks),
          fmt::format("--ranks-per-node is {}", text.ranks_per_node),
          fmt::format("give a number from 1 to {}", kMaxRanks));
  if (text.link.empty() && !nodes) {
    return std::nullopt;
  }
  comm::NetworkShape network{.ranks_per_node = text.ranks_per_node};
  if (!text.link.empty()) {
    network.link = parse_link(text.link, "--link");
  }
  if (nodes) {
    network.inter_link = parse_link(text.inter_link, "--inter-link");
  }
  return network;
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  std::string budget;
  NetworkText network;
  CLI::App app{std::string(kAbout), "train_lm"};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_input_options(app, options);
  add_run_options(app, options, budget);
  add_network_options(app, network);
  add_output_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw InputError(error.what(), "command line", "--help lists the options");
  }
  if (!budget.empty()) {
    options.memory_budget_bytes = parse_size(budget, "--memory-budget");
  }
  options.network = parse_network(app, network);
  check(app, options);
  return options;
}

}  // namespace zero::examples
