// zero validate, explain and convert as a user runs them.
#include "config_support.h"
#include <support/catch.h>
#include <support/process.h>
#include <support/temporary_folder.h>

namespace zero::testing {
namespace {

support::CommandResult zero(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), std::string(ZERO_BIN_DIR) + "/zero");
  return support::run_command(arguments);
}

/// A file that is gone afterwards.
class File {
 public:
  explicit File(const std::string& text) { support::write_bytes(path(), text); }
  [[nodiscard]] std::string path() const { return folder_ / "ds_config.json"; }

 private:
  support::TemporaryFolder folder_;
};

const std::string kSample = std::string(ZERO_SOURCE_DIR) + "/ds_config_samples/zero3.json";

}  // namespace

TEST_CASE("zero validate: exit 0 if all are accepted, 2 if any is not", "[config][cli]") {
  const File bad("{\"train_batch_size\": 7}");
  CHECK(zero({"validate", kSample}).exit_code == 0);
  CHECK(zero({"validate", kSample, bad.path(), "--world", "2"}).exit_code == 2);
  CHECK(zero({"validate", bad.path(), "--world", "7"}).exit_code == 0);
  CHECK(zero({"validate", kSample, "/nonexistent/ds.json"}).exit_code == 2);
}

TEST_CASE("zero validate --json: one object a file", "[config][cli]") {
  const File bad("{\"train_batch_size\": 7}");
  const auto result =
      zero({"validate", kSample, bad.path(), "/nonexistent/ds.json", "--json", "--world", "2"});
  const auto lines = support::lines_of(result.out);
  REQUIRE(lines.size() == 3);
  CHECK(Json::parse(lines[0])["verdict"] == "accept");
  CHECK(Json::parse(lines[0])["resolved"]["zero_stage"] == 3);
  CHECK(Json::parse(lines[1])["verdict"] == "reject");
  CHECK(Json::parse(lines[1])["error"].get<std::string>().find("train_batch_size") !=
        std::string::npos);
  CHECK(Json::parse(lines[2])["errors"][0]["kind"] == "unreadable");
  CHECK(result.err.empty());
}

TEST_CASE("zero validate: batch options and --strict", "[config][cli]") {
  const File autos("{\"train_batch_size\": \"auto\", \"qwertyuiop\": 1}");
  CHECK(zero({"validate", autos.path()}).exit_code == 2);
  const auto result = zero({"validate",
                            autos.path(),
                            "--micro-batch",
                            "3",
                            "--accumulation",
                            "2",
                            "--world",
                            "4",
                            "--json"});
  CHECK(Json::parse(result.out)["resolved"]["train_batch_size"] == 24);
  CHECK(zero({"validate", autos.path(), "--train-batch", "8"}).exit_code == 0);
  CHECK(zero({"validate", autos.path(), "--train-batch", "8", "--strict"}).exit_code == 2);
}

TEST_CASE("zero explain and convert: results on standard output, changes on standard error",
          "[config][cli]") {
  CHECK_THAT(zero({"explain", "stage"}).out, Catch::Contains("zero_optimization.stage"));
  CHECK_THAT(zero({"explain", kSample}).out, Catch::Contains("zero_optimization.stage = 3"));
  CHECK_THAT(zero({"explain"}).out, Catch::Contains("zero_optimization.stage = 0"));
  const File old("{\"zero_optimization\": {\"cpu_offload\": true}}\n");
  const auto result = zero({"convert", old.path()});
  CHECK(result.exit_code == 0);
  CHECK(result.out == "{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}}\n");
  CHECK_THAT(result.err, Catch::Contains("cpu_offload"));
}

TEST_CASE("zero: bad use ends with one line and exit 2", "[config][cli]") {
  const std::vector<std::vector<std::string>> uses = {
      {},
      {"nonsense"},
      {"validate"},
      {"validate", kSample, "--world", "0"},
      {"validate", kSample, "--micro-batch", "many"},
      {"explain", "reduce_buket_size"},
      {"explain", "/nonexistent/ds.json"},
      {"convert", "/nonexistent/ds.json"},
  };
  for (const auto& arguments : uses) {
    const auto result = zero(arguments);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(support::lines_of(result.err).size() == 1);
    CHECK(result.err.rfind("error: ", 0) == 0);
  }
}

}  // namespace zero::testing
