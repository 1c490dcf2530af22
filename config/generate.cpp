// Writes what is made from the key table: config/ds_config.schema.json, and the tables of
// docs/CONFIG.md between its two markers. Argument: the root of the repository.

#include <zero/config/report.h>
#include <zero/core/error.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace {

constexpr std::string_view kBegin = "<!-- tables: begin -->\n";
constexpr std::string_view kEnd = "<!-- tables: end -->\n";

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    throw zero::InputError("cannot read", path);
  }
  return text.str();
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    throw zero::InputError("cannot write", path);
  }
}

std::string with_tables(const std::string& page, const std::string& path) {
  const auto begin = page.find(kBegin);
  const auto end = page.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    throw zero::InputError("the markers of the tables are missing", path);
  }
  return page.substr(0, begin + kBegin.size()) + "\n" + zero::config::markdown_tables() +
         page.substr(end);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    (void)std::fprintf(stderr, "usage: zero_config_files REPOSITORY\n");
    return 2;
  }
  try {
    const std::string root = argv[1];
    const std::string page = root + "/docs/CONFIG.md";
    write(root + "/config/ds_config.schema.json", zero::config::schema());
    write(page, with_tables(read(page), page));
    return 0;
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
