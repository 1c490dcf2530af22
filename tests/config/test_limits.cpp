// Texts made to hurt: an error in bounded time and memory, never a crash.
#include "config/document.h"
#include "config_support.h"
#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>

namespace zero::testing {
namespace {

std::string repeat(const std::string& part, std::size_t times) {
  std::string text;
  text.reserve(part.size() * times);
  for (std::size_t i = 0; i < times; ++i) {
    text += part;
  }
  return text;
}

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

double seconds_since(std::clock_t start) {
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

/// Judged in at most a second, and in at most 10 times `bytes` more memory (plus 4 MiB of slack for
/// the allocator). Sanitizers change what memory costs, so it is not judged then.
config::Verdict judge_bounded(const std::string& text, std::size_t bytes) {
  const long before = peak_kilobytes();
  const std::clock_t start =
      std::clock();  // of this process, so that a busy machine does not count
  config::Verdict verdict = judge(text);
  CHECK(seconds_since(start) < 1.0);
#if !defined(__SANITIZE_ADDRESS__)
  CHECK(peak_kilobytes() - before <= static_cast<long>(10 * bytes / 1024) + 4096);
#endif
  return verdict;
}

config::Verdict judge_bounded(const std::string& text) {
  return judge_bounded(text, text.size());
}

/// Path of a file that is gone afterwards.
class ScratchFile {
 public:
  [[nodiscard]] std::string path() const { return folder_ / "ds_config.json"; }

 private:
  support::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("limits: deep nesting is refused", "[config][limits]") {
  for (const char* open : {"[", "{\"a\":", "{a:[", "{'':"}) {
    const auto verdict = judge_bounded("{\"x\": " + repeat(open, 100'000));
    INFO(open);
    REQUIRE(verdict.errors.size() == 1);
    CHECK_THAT(verdict.errors.front().message, Catch::Contains("nesting"));
  }
  CHECK_FALSE(judge_bounded(repeat("[", 100'000)).accepted);
}

TEST_CASE("limits: a file of 100 MB is refused without being read whole", "[config][limits]") {
  const ScratchFile scratch;
  {
    std::ofstream file(scratch.path(), std::ios::binary);
    const std::string part = repeat("\"key\": [1, 2, 3],\n", 58'255);
    file << "{\n";
    for (int i = 0; i < 100; ++i) {
      file << part;
    }
  }
  REQUIRE(std::filesystem::file_size(scratch.path()) > 100'000'000);
  const std::clock_t start = std::clock();
  const std::string text = config::read_text(scratch.path());
  const auto verdict = judge_bounded(text);
  CHECK(seconds_since(start) < 1.0);
  REQUIRE_FALSE(verdict.accepted);
  CHECK_THAT(verdict.errors.front().message, Catch::Contains("larger than"));
  CHECK_THROWS_AS(config::load(scratch.path(), {}), ConfigError);
}

TEST_CASE("limits: a file that cannot be read is an error of the user", "[config][limits]") {
  CHECK_THROWS_AS(config::read_text("/nonexistent/ds.json"), InputError);
  CHECK_THROWS_AS(config::read_text("/"), InputError);
}

TEST_CASE("limits: texts that could take quadratic time", "[config][limits]") {
  const std::size_t half = config::kMaxTextBytes / 2 - 100;
  const std::string long_texts[] = {
      "{\"a\": 1 x" + repeat(",", 2 * half) + "\n}",
      "{\"a\": " + std::string(half, '7') + "x" + std::string(half, ',') + "\n}",
      "{\"a\": nul" + repeat("}", 2 * half) + "\n}",
      "{\"a\": " + std::string(2 * half, '9') + "}",
      "{\"a\": \"" + repeat("\\u00e9", half / 4) + "\"}",
      "{" + std::string(2 * half, ' ') + "}",
      repeat("/*", half),
      repeat("#\n", half),
      "{\"a\": [" + repeat("1,", half) + "]}",
      "{" + repeat("a:1\n", half / 3) + "}",
      std::string(2 * half, '\''),
      "'''" + std::string(2 * half, '\''),
      "{a" + std::string(2 * half, ' ') + "b: 1}",
      "{\"a\": " + std::string(2 * half, 'x') + "}",
  };
  for (const std::string& text : long_texts) {
    INFO(text.substr(0, 40));
    const auto verdict = judge_bounded(text);
    CHECK_FALSE(verdict.accepted);
  }
}

TEST_CASE("limits: many unknown, long or repeated names", "[config][limits]") {
  std::string unknown = "{";
  std::string inside = "{\"zero_optimization\": {";
  for (int i = 0; i < 15'000; ++i) {
    unknown += "\"stage_unknown_key_" + std::to_string(i) + "\": 1,\n";
    inside += "\"stage_unknown_key_" + std::to_string(i) + "\": 1,";
  }
  CHECK(judge_bounded(unknown + "\"train_batch_size\": 1}").warnings.size() == 200);
  CHECK(judge_bounded(inside + "}}").errors.size() == 200);
  CHECK(judge_bounded("{" + repeat("\"train_batch_size\": 1,", 15'000) + "}").errors.size() == 200);
  const std::string name(500'000, 'k');
  const auto verdict =
      judge_bounded("{\"" + name + "\": \"" + name + "\", \"train_batch_size\": 1}");
  REQUIRE(verdict.warnings.size() == 1);
  CHECK(config::issue_text(verdict.warnings.front(), "f").size() < 1000);
}

TEST_CASE("limits: huge numbers", "[config][limits]") {
  CHECK_FALSE(judge_bounded("{\"train_batch_size\": 1e400}").accepted);
  CHECK_FALSE(
      judge_bounded(
          "{\"train_batch_size\": 18446744073709551616, \"gradient_accumulation_steps\": 3}")
          .accepted);
  CHECK_FALSE(
      judge_bounded(
          "{\"train_batch_size\": -9223372036854775808, \"train_micro_batch_size_per_gpu\": -1}")
          .accepted);
  CHECK_FALSE(judge_bounded("{\"train_micro_batch_size_per_gpu\": 9223372036854775807, "
                            "\"gradient_accumulation_steps\": 9223372036854775807, "
                            "\"train_batch_size\": 1}")
                  .accepted);
  CHECK(judge_bounded(with_batch(R"("fp16": {"initial_scale_power": 9223372036854775807})"))
            .accepted);
  CHECK(judge_bounded(with_batch(R"("fp16": {"initial_scale_power": -9223372036854775807})"))
            .accepted);
  CHECK_FALSE(judge_bounded(with_batch(R"("fp16": {"loss_scale": "nan"})")).accepted);
  CHECK_FALSE(judge_bounded(with_batch(R"("fp16": {"loss_scale": "1e999"})")).accepted);
}

TEST_CASE("limits: bytes that are no text", "[config][limits]") {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text =
        "{\"train_batch_size\": 1, \"a\": \"" + std::string(1, static_cast<char>(byte)) + "\"}";
    const auto verdict = judge_bounded(text);
    CHECK(verdict.accepted == (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\'));
    CHECK(Json::accept(config::verdict_json(verdict)));
  }
  CHECK_FALSE(judge_bounded(std::string("\xFF\xFE{\0}\0", 7)).accepted);
  CHECK_FALSE(judge_bounded("{\"a\": \"\xed\xa0\x80\"}").accepted);
  CHECK_FALSE(judge_bounded("{\"a\": \"\xf4\x90\x80\x80\"}").accepted);
  CHECK(Json::accept(config::verdict_json(config::validate("{", "\xff name", {}))));
}

}  // namespace zero::testing
