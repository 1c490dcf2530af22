#include "cli/batch_options.h"
#include "cli/commands.h"
#include <zero/config/report.h>

#include <filesystem>
#include <iostream>
#include <memory>

namespace zero::cli {
namespace {

struct Options {
  std::string subject;
  config::LoadOptions load;
};

bool is_file(const std::string& subject) {
  std::error_code ignored;
  return std::filesystem::exists(subject, ignored) || subject.find('/') != std::string::npos ||
         std::filesystem::path(subject).extension() == ".json";
}

void run(const Options& options) {
  if (options.subject.empty()) {
    std::cout << config::explain_file({}, {}, options.load);
  } else if (is_file(options.subject)) {
    std::cout << config::explain_file(
        config::read_text(options.subject), options.subject, options.load);
  } else {
    std::cout << config::explain_key(options.subject);
  }
}

}  // namespace

void add_explain(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "explain", "Every key in force with its value, origin, meaning and cost; or one key");
  command->add_option("subject", options->subject, "ds_config file or key; none: the defaults");
  add_batch_options(*command, options->load);
  command->callback([options, &status] {
    run(*options);
    status = 0;
  });
}

}  // namespace zero::cli
