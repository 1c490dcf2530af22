// Rules of the source tree itself: who includes whom, where third parties are named, formatting,
// and documents that quote files.
#include <support/catch.h>
#include <support/process.h>
#include <support/temporary_folder.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace zero::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

struct Include {
  std::string file;    ///< relative to the repository
  std::string target;  ///< as written between the quotes or brackets
  bool quoted = false;
};

const std::string& root() {
  static const std::string kRoot = ZERO_SOURCE_DIR;
  return kRoot;
}

/// C++ files of the repository, relative to its root, sorted.
std::vector<std::string> sources() {
  std::vector<std::string> files;
  for (const char* folder : {"include",
                             "config",
                             "engine",
                             "offload",
                             "nn",
                             "cli",
                             "examples",
                             "bench",
                             "python",
                             "tests"}) {
    const fs::path top = fs::path(root()) / folder;
    if (!fs::is_directory(top)) {
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(top)) {
      const std::string extension = entry.path().extension().string();
      if (Names{".h", ".cpp", ".cu", ".cuh"}.count(extension) == 1) {
        files.push_back(fs::relative(entry.path(), root()).string());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Include> includes_of(const std::string& file) {
  static const std::regex kLine(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  std::vector<Include> includes;
  for (const std::string& line : support::lines_of(support::read_bytes(root() + "/" + file))) {
    std::smatch match;
    if (std::regex_search(line, match, kLine)) {
      includes.push_back({file, match[2], match[1] == "\""});
    }
  }
  return includes;
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (const fs::path& part : fs::path(path)) {
    parts.push_back(part.string());
  }
  return parts;
}

/// Folders of engine/ that make one layer, each with its height: one may include what lies lower.
const std::map<std::string, int>& engine_heights() {
  static const std::map<std::string, int> kHeights = {{"schedule", 0},
                                                      {"plan", 0},
                                                      {"optim", 1},
                                                      {"precision", 1},
                                                      {"unit", 1},
                                                      {"checkpoint", 2},
                                                      {"parallel", 2},
                                                      {"runtime", 3}};
  return kHeights;
}

/// Layer of a file or of an include's target; nothing for the standard library and third parties.
std::optional<std::string> layer_of(const std::string& path) {
  std::vector<std::string> parts = parts_of(path);
  if (parts.front() == "include") {
    parts.erase(parts.begin());
  }
  if (parts.size() == 2 && parts[0] == "zero") {
    return "engine";  // zero.h, the whole
  }
  if (parts.front() == "zero") {
    parts.erase(parts.begin());
    return parts.front();
  }
  if (parts.front() == "engine") {
    return engine_heights().count(parts.at(1)) == 1 ? "engine" : parts.at(1);
  }
  if (Names{"config", "offload", "nn", "cli", "examples", "bench", "python", "tests"}.count(
          parts.front()) == 1) {
    return parts.front();
  }
  return std::nullopt;
}

const std::map<std::string, Names>& allowed() {
  static const std::map<std::string, Names> kAllowed = {
      {"core", {}},
      {"config", {"core"}},
      {"accel", {"core"}},
      {"comm", {"core", "accel"}},
      {"offload", {"core", "accel"}},
      {"nn", {"core", "accel"}},
      {"engine", {"core", "config", "accel", "comm", "offload"}},
      {"planner", {"core", "config", "engine"}},
  };
  return kAllowed;
}

bool obeys_the_arrows(const Include& include) {
  const std::optional<std::string> from = layer_of(include.file);
  const std::optional<std::string> to = layer_of(include.target);
  if (!from || !to || *from == *to || allowed().count(*from) == 0) {
    return true;
  }
  const bool parallel_layer = include.file.find("nn/parallel/") != std::string::npos;
  return allowed().at(*from).count(*to) == 1 || (parallel_layer && *to == "comm");
}

/// Inside engine/: lower folders only.
bool obeys_the_heights(const Include& include) {
  const std::vector<std::string> from = parts_of(include.file);
  const std::vector<std::string> to = parts_of(include.target);
  const auto& heights = engine_heights();
  if (from.front() != "engine" || to.front() != "engine" || heights.count(from.at(1)) == 0 ||
      heights.count(to.at(1)) == 0 || from[1] == to[1]) {
    return true;
  }
  return heights.at(to[1]) < heights.at(from[1]);
}

/// Programs and tests use public headers and their own folder's; tests also those of what they
/// test.
bool reaches_only_public_headers(const Include& include) {
  const std::string from = parts_of(include.file).front();
  const std::vector<std::string> to = parts_of(include.target);
  if (!include.quoted || to.size() == 1) {
    return true;
  }
  if (Names{"cli", "examples", "bench", "python"}.count(from) == 1) {
    return to.front() == from;
  }
  return true;
}

/// Includes that break a rule, one a line.
template <class Rule>
std::string violations(Rule obeys) {
  std::string text;
  for (const std::string& file : sources()) {
    for (const Include& include : includes_of(file)) {
      if (!obeys(include)) {
        text += file + " includes " + include.target + "\n";
      }
    }
  }
  return text;
}

bool starts_with(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

/// Names between commas in the Checks of .clang-tidy, without the leading "-*".
std::vector<std::string> tidy_checks() {
  const std::string text = support::read_bytes(root() + "/.clang-tidy");
  static const std::regex kName(R"re(^\s+(-?[a-z0-9][A-Za-z0-9.*-]+),?\s*$)re");
  std::vector<std::string> names;
  for (const std::string& line : support::lines_of(text)) {
    std::smatch match;
    if (std::regex_match(line, match, kName)) {
      names.push_back(match[1]);
    }
  }
  return names;
}

/// Checks that `pattern` switches on or off.
std::vector<std::string> matching_checks(const std::string& pattern, const std::string& available) {
  std::string expression = starts_with(pattern, "-") ? pattern.substr(1) : pattern;
  expression = std::regex_replace(expression, std::regex("[.]"), "[.]");
  expression = std::regex_replace(expression, std::regex("[*]"), ".*");
  std::vector<std::string> matching;
  for (const std::string& line : support::lines_of(available)) {
    const std::string name = line.substr(std::min(line.size(), line.find_first_not_of(' ')));
    if (std::regex_match(name, std::regex(expression))) {
      matching.push_back(name);
    }
  }
  return matching;
}

}  // namespace

TEST_CASE("repository: there is something to look at", "[repository]") {
  CHECK(sources().size() > 60);
  CHECK(includes_of("include/zero/zero.h").size() >= 3);
  CHECK(layer_of("engine/unit/reducer.cpp") == "engine");
  CHECK(layer_of("engine/comm/group.cpp") == "comm");
  CHECK(layer_of("zero/nn/gpt.h") == "nn");
  CHECK(layer_of("zero/zero.h") == "engine");
  CHECK_FALSE(layer_of("vector"));
}

TEST_CASE("repository: layers include along the arrows only", "[repository]") {
  CHECK(violations(obeys_the_arrows) == "");
  CHECK_FALSE(obeys_the_arrows({"engine/unit/x.cpp", "zero/nn/gpt.h", false}));
  CHECK_FALSE(obeys_the_arrows({"nn/gpt.cpp", "zero/comm/group.h", false}));
  CHECK(obeys_the_arrows({"nn/parallel/column.cpp", "zero/comm/group.h", false}));
  CHECK_FALSE(obeys_the_arrows({"config/load.cpp", "engine/plan/layout.h", true}));
}

TEST_CASE("repository: the engine's folders include lower ones only", "[repository]") {
  CHECK(violations(obeys_the_heights) == "");
  CHECK_FALSE(obeys_the_heights({"engine/plan/x.cpp", "engine/unit/reducer.h", true}));
  CHECK(obeys_the_heights({"engine/runtime/x.cpp", "engine/unit/reducer.h", true}));
}

TEST_CASE("repository: programs include public headers only", "[repository]") {
  CHECK(violations(reaches_only_public_headers) == "");
}

TEST_CASE("repository: third parties are named where they are used", "[repository]") {
  const std::string everywhere = violations([](const Include& include) {
    const std::string& file = include.file;
    const std::string& target = include.target;
    if (target == "mpi.h") {
      return starts_with(file, "engine/comm/mpi/");
    }
    if (starts_with(target, "catch2/")) {
      return file == "tests/support/catch.h";
    }
    if (starts_with(target, "nlohmann/")) {
      return !starts_with(file, "include/");
    }
    if (starts_with(target, "dnnl") || starts_with(target, "oneapi/")) {
      return starts_with(file, "engine/accel/cpu/") && fs::path(file).extension() == ".cpp";
    }
    return true;
  });
  CHECK(everywhere == "");

  Names with_dnnl;
  for (const std::string& file : sources()) {
    for (const Include& include : includes_of(file)) {
      if (starts_with(include.target, "dnnl") || starts_with(include.target, "oneapi/")) {
        with_dnnl.insert(file);
      }
    }
  }
  CHECK(with_dnnl.size() == 1);
}

TEST_CASE("repository: public headers guard themselves and include public ones", "[repository]") {
  for (const std::string& file : sources()) {
    if (!starts_with(file, "include/")) {
      continue;
    }
    INFO(file);
    CHECK_THAT(support::read_bytes(root() + "/" + file), Catch::StartsWith("#pragma once\n"));
    for (const Include& include : includes_of(file)) {
      CHECK_FALSE(include.quoted);
    }
  }
}

TEST_CASE("repository: README quotes examples/minimal.cpp as it is", "[repository]") {
  const std::string program = support::read_bytes(root() + "/examples/minimal.cpp");
  CHECK(support::lines_of(program).size() < 60);
  CHECK_THAT(support::read_bytes(root() + "/README.md"),
             Catch::Contains("```cpp\n" + program + "```\n"));
}

TEST_CASE("repository: every check of .clang-tidy exists", "[tidy]") {
  const std::string available =
      support::run_command({ZERO_CLANG_TIDY, "--list-checks", "--checks=*"}).out;
  const std::vector<std::string> names = tidy_checks();
  CHECK(names.size() >= 20);
  CHECK(matching_checks("bugprone-*", available).size() > 30);
  CHECK(matching_checks("no-such-check", available).empty());
  for (const std::string& name : names) {
    INFO(name);
    CHECK_FALSE(matching_checks(name, available).empty());
  }
}

TEST_CASE("repository: clang-format has nothing to change", "[format]") {
  std::vector<std::string> words = {
      ZERO_CLANG_FORMAT, "--dry-run", "-Werror", "--ferror-limit=1", "--style=file"};
  for (const std::string& file : sources()) {
    words.push_back(root() + "/" + file);
  }
  const support::CommandResult result = support::run_command(words, {.timeout_s = 100.0});
  INFO(result.err.substr(0, 4000));
  CHECK(result.exit_code == 0);
}

}  // namespace zero::testing
