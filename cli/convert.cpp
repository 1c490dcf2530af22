#include "cli/commands.h"
#include <zero/config/report.h>

#include <iostream>
#include <memory>

namespace zero::cli {

void add_convert(CLI::App& app, int& status) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "convert", "Writes a ds_config with its deprecated keys replaced, to standard output");
  command->add_option("file", *file, "ds_config file")->required();
  command->callback([file, &status] {
    std::vector<std::string> notes;
    const std::string text = config::convert(config::read_text(*file), *file, notes);
    for (const std::string& note : notes) {
      std::cerr << note << "\n";
    }
    std::cout << text;
    status = 0;
  });
}

}  // namespace zero::cli
