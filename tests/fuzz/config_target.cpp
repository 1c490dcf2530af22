#include "target.h"
#include <zero/config/report.h>
#include <zero/core/error.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>

namespace zero::testing {
namespace {

std::string text_at_work;  // shown when an answer is wrong

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "contradiction: %s, in the text\n%s\n", what, text_at_work.c_str());
    std::abort();
  }
}

void check_load(const std::string& text,
                const config::Verdict& verdict,
                const config::LoadOptions& options) {
  try {
    const config::Config loaded = config::parse(text, "fuzz", options);
    require(verdict.runs_here, "a file that does not run here was loaded");
    require(loaded.train_batch_size == loaded.train_micro_batch_size_per_gpu *
                                           loaded.gradient_accumulation_steps * options.world,
            "the batch of a loaded file is inconsistent");
  } catch (const ConfigError&) {
    require(!verdict.runs_here, "a file that runs here was refused");
  }
}

void check_convert(const std::string& text) {
  try {
    std::vector<std::string> notes;
    const std::string once = config::convert(text, "fuzz", notes);
    require(nlohmann::json::accept(once), "a converted file is not JSON");
    std::vector<std::string> none;
    require(config::convert(once, "fuzz", none) == once, "a converted file changes again");
  } catch (const ConfigError&) {  // broken texts are not converted
  }
}

}  // namespace

void exercise(const std::string& text) {
  text_at_work = text;
  config::LoadOptions options;
  options.world = text.size() % 2 == 0 ? 1 : 4;
  const config::Verdict verdict = config::validate(text, "fuzz", options);
  require(verdict.accepted == verdict.errors.empty(), "accepted with errors");
  require(nlohmann::json::accept(config::verdict_json(verdict)), "the verdict is not JSON");
  require(!config::verdict_text(verdict).empty(), "the verdict has no text");
  check_load(text, verdict, options);
  check_convert(text);
  try {
    (void)config::explain_file(text, "fuzz", options);
  } catch (const ConfigError&) {
    require(!verdict.accepted, "an accepted file is not explained");
  }
}

const std::vector<std::string>& pieces() {
  static const std::vector<std::string> kPieces = {
      "{",
      "}",
      "[",
      "]",
      ",",
      ":",
      "\"",
      "'",
      "'''",
      "\\",
      "\n",
      "#",
      "//",
      "/*",
      "*/",
      "null",
      "true",
      "\"auto\"",
      "1e400",
      "-1",
      "18446744073709551616",
      "0.5",
      "\"zero_optimization\": true,",
      "\"cpu_offload\": true,",
      "\"stage\": 3,",
      "\"offload_optimizer\": {\"device\": \"nvme\"},",
      "\xEF\xBB\xBF",
      "\xFF",
      "\"thread_count\": 2,",
      "\\ud83d",
      "\"max_live_parameters\": \"1_0\",",
      "\"bf16\": null,",
  };
  return kPieces;
}

}  // namespace zero::testing
