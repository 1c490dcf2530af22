// The timeline: what the streams do when (see docs/FORMATS.md).
#include "engine/engine_run.h"
#include <support/catch.h>
#include <zero/core/error.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <set>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file
using Json = nlohmann::json;

RunSpec traced(const std::string& path) {
  RunSpec spec;
  spec.stage = 3;
  spec.zero_keys = R"("stage3_param_persistence_threshold": 0)";
  spec.trace = true;
  spec.each_step = [path, last = spec.steps - 1](Engine& engine, nn::Gpt& /*model*/, int step) {
    if (step == last) {
      engine.write_trace(path);
    }
  };
  return spec;
}

std::vector<Json> events_in(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file)["traceEvents"].get<std::vector<Json>>();
}

double end_of(const Json& span) {
  return span["ts"].get<double>() + span["dur"].get<double>();
}

std::vector<Json> spans_of(const std::vector<Json>& events, int rank, const std::string& activity) {
  std::vector<Json> spans;
  for (const Json& event : events) {
    if (event["ph"] == "X" && event["pid"] == rank && event["cat"] == activity) {
      spans.push_back(event);
    }
  }
  return spans;
}

}  // namespace

TEST_CASE("timeline: shows each gather once, with the bytes that moved, and changes no bit",
          "[engine][timeline]") {
  const std::string path = write_temporary("trace.json", "an older file");
  RunSpec plain = traced(path);
  plain.trace = false;
  plain.each_step = {};
  const RunResult untraced = run(plain);
  CHECK(same_bits(untraced, run(traced(path))));
  const std::vector<Json> events = events_in(path);
  std::set<std::pair<int, std::string>> tracks;
  std::set<std::string> counters;
  for (const Json& event : events) {
    if (event["name"] == "thread_name") {
      tracks.emplace(event["pid"], event["args"]["name"]);
    }
    if (event["ph"] == "C") {
      counters.insert(event["name"]);
    }
  }
  for (const int rank : {0, 1}) {
    for (const char* stream : {"compute", "communication", "reduction"}) {
      CHECK(tracks.count({rank, stream}) == 1);
    }
    std::int64_t bytes = 0;
    for (const char* activity : {"gather", "reduce"}) {
      for (const Json& span : spans_of(events, rank, activity)) {
        CHECK(end_of(span) >= span["ts"]);
        bytes += span["args"]["bytes"].get<std::int64_t>();
      }
    }
    CHECK(bytes == static_cast<std::int64_t>(untraced.traffic.front().bytes_in));
    CHECK(spans_of(events, rank, "forward").size() == 4);
    CHECK(spans_of(events, rank, "backward").size() == 4);
    CHECK(spans_of(events, rank, "step").size() == 4);
  }
  CHECK(counters == std::set<std::string>{"live parameters", "memory"});
}

TEST_CASE("timeline: reductions run beside the rest of backward", "[engine][timeline]") {
  const std::string path = write_temporary("overlap.json", "");
  RunSpec spec = traced(path);
  spec.network = {.link = {.bytes_per_s = 200e6}};
  (void)run(spec);
  const std::vector<Json> events = events_in(path);
  const Json backward = spans_of(events, 0, "backward").back();
  int inside = 0;
  for (const Json& reduce : spans_of(events, 0, "reduce")) {
    inside += reduce["ts"] >= backward["ts"] && end_of(reduce) <= end_of(backward) ? 1 : 0;
  }
  CHECK(inside > 0);
}

TEST_CASE("timeline: none was asked for, or it cannot be written", "[engine][timeline]") {
  RunSpec spec = traced("/no/such/folder/trace.json");
  CHECK_THROWS_AS(run(spec), IoError);
  spec.trace = false;
  CHECK_THROWS_AS(run(spec), InputError);
}
