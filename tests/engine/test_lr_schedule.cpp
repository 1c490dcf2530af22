// The recorded rates of DeepSpeed's schedules, see tests/data/parity/README.md.
#include <support/catch.h>
#include <zero/core/error.h>
#include <zero/engine/lr_schedule.h>

#include <nlohmann/json.hpp>

#include <fstream>

namespace {

using zero::make_lr_schedule;
using zero::config::SchedulerConfig;
using Json = nlohmann::json;

SchedulerConfig block(const Json& json) {
  SchedulerConfig config;
  config.type = json.at("type");
  for (const auto& [name, value] : json.at("params").items()) {
    SchedulerConfig::Param param{name, {}, {}};
    if (value.is_string()) {
      param.text = value;
    } else if (value.is_boolean()) {
      param.values = {value.get<bool>() ? 1.0 : 0.0};
    } else {
      param.values = {value.get<double>()};
    }
    config.params.push_back(param);
  }
  return config;
}

}  // namespace

TEST_CASE("schedules: rates and momenta equal the recorded ones to 1e-12", "[schedule]") {
  std::ifstream file(std::string(ZERO_TEST_DATA) + "/parity/lr_traces.json");
  REQUIRE(file.good());
  const Json traces = Json::parse(file);
  CHECK(traces.size() == 8);
  for (const auto& [name, trace] : traces.items()) {
    INFO(name);
    const auto schedule = make_lr_schedule(block(trace.at("scheduler")));
    for (std::size_t step = 0; step < trace.at("lr").size(); ++step) {
      const auto index = static_cast<std::int64_t>(step) - 1;
      const double expected = trace.at("lr").at(step);
      CHECK(schedule->lr(index, 0, trace.at("base_lr")) ==
            Approx(expected).epsilon(1e-12).margin(1e-18));
      if (trace.contains("mom")) {
        const auto betas = schedule->betas(index);
        REQUIRE(betas.has_value());
        CHECK(betas->beta1 == Approx(trace.at("mom").at(step).at(0).get<double>()).epsilon(1e-12));
        CHECK(betas->beta2 == Approx(trace.at("mom").at(step).at(1).get<double>()).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("schedules: without a block the rate is constant, and wrong blocks are named",
          "[schedule]") {
  CHECK(make_lr_schedule(std::nullopt) == nullptr);
  const auto make = [](const char* text) { return make_lr_schedule(block(Json::parse(text))); };
  CHECK_THROWS_WITH(make(R"({"type": "warmuplr", "params": {}})"), Catch::Contains("warmuplr"));
  CHECK_THROWS_WITH(make(R"({"type": "WarmupLR", "params": {"warmup_steps": 3}})"),
                    Catch::Contains("warmup_steps"));
  CHECK_THROWS_WITH(make(R"({"type": "WarmupLR", "params": {"warmup_num_steps": 0}})"),
                    Catch::Contains("warmup_num_steps"));
  CHECK_THROWS_WITH(make(R"({"type": "WarmupDecayLR", "params": {}})"),
                    Catch::Contains("total_num_steps"));
  CHECK_THROWS_WITH(make(R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1}})"),
                    Catch::Contains("cycle_max_lr"));
}
