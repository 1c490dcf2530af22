#include "cli/batch_options.h"
#include "cli/commands.h"
#include <zero/config/report.h>
#include <zero/core/error.h>

#include <iostream>
#include <memory>

namespace zero::cli {
namespace {

struct Options {
  std::vector<std::string> files;
  config::LoadOptions load;
  bool json = false;
};

/// A file that cannot be read is a verdict too, so that the others are still judged.
config::Verdict judge(const std::string& file, const config::LoadOptions& options) {
  try {
    return config::validate(config::read_text(file), file, options);
  } catch (const InputError& error) {
    config::Verdict verdict;
    verdict.name = file;
    verdict.reason = "the file cannot be read";
    verdict.errors.push_back({.kind = "unreadable", .message = error.what()});
    return verdict;
  }
}

int run(const Options& options) {
  bool all_accepted = true;
  for (const std::string& file : options.files) {
    const config::Verdict verdict = judge(file, options.load);
    all_accepted = all_accepted && verdict.accepted;
    std::cout << (options.json ? config::verdict_json(verdict) + "\n"
                               : config::verdict_text(verdict));
  }
  return all_accepted ? 0 : static_cast<int>(ExitCode::kBadInput);
}

}  // namespace

void add_validate(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("validate", "Says whether DeepSpeed accepts a ds_config, and why not");
  command->add_option("files", options->files, "ds_config files")->required();
  command->add_flag("--strict", options->load.strict, "Unknown names at the top level are errors");
  command->add_flag("--json", options->json, "One JSON object a file");
  add_batch_options(*command, options->load);
  command->callback([options, &status] { status = run(*options); });
}

}  // namespace zero::cli
