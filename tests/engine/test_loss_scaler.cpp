// The recorded behaviour of DeepSpeed's scaler, see tests/data/parity/README.md.
#include <support/catch.h>
#include <zero/engine/loss_scaler.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace {

using zero::LossScaler;
using Json = nlohmann::json;

Json read(const char* name) {
  std::ifstream file(std::string(ZERO_TEST_DATA) + "/parity/" + name);
  REQUIRE(file.good());
  return Json::parse(file);
}

}  // namespace

TEST_CASE("loss scaler: every recorded overflow sequence gives the recorded scales and hysteresis",
          "[precision]") {
  const Json traces = read("loss_scaler_traces.json");
  CHECK(traces.size() == 24);
  for (const auto& [name, trace] : traces.items()) {
    INFO(name);
    const Json& args = trace.at("args");
    zero::config::Fp16Config config;
    config.enabled = true;
    config.initial_scale_power = static_cast<int>(std::log2(args.at("init_scale").get<double>()));
    config.loss_scale_window = args.at("scale_window");
    config.min_loss_scale = args.at("min_scale");
    config.hysteresis = args.at("delayed_shift");
    config.consecutive_hysteresis = args.at("consecutive_hysteresis");
    LossScaler scaler(config);
    for (std::size_t step = 0; step < trace.at("overflow").size(); ++step) {
      (void)scaler.update(trace.at("overflow").at(step).get<int>() != 0);
      CHECK(scaler.scale() == trace.at("scale").at(step).get<double>());
      CHECK(scaler.state().hysteresis_left == trace.at("hysteresis").at(step).get<std::int64_t>());
    }
  }
}

TEST_CASE("loss scaler: the skipped pattern of a recorded fp16 run gives its scales",
          "[precision]") {
  const Json runs = read("expected_fp16.json");
  for (const auto& [name, run] : runs.items()) {
    if (!run.is_object() || !run.contains("scale_after")) {
      continue;
    }
    INFO(name);
    zero::config::Fp16Config config;
    config.enabled = true;
    config.loss_scale_window = 5;
    LossScaler scaler(config);
    CHECK(run.at("skipped").size() == 60);
    for (std::size_t step = 0; step < run.at("skipped").size(); ++step) {
      CHECK(scaler.scale() == run.at("scale_before").at(step).get<double>());
      (void)scaler.update(run.at("skipped").at(step).get<double>() != 0.0);
      CHECK(scaler.scale() == run.at("scale_after").at(step).get<double>());
    }
  }
}

TEST_CASE("loss scaler: a static scale never moves, and without fp16 the scale is 1",
          "[precision]") {
  zero::config::Fp16Config config;
  CHECK(LossScaler(config).scale() == 1.0);
  config.enabled = true;
  config.loss_scale = 128.0;
  LossScaler scaler(config);
  for (int step = 0; step < 10; ++step) {
    CHECK(scaler.update(step % 2 == 0) == LossScaler::Change::kNone);
    CHECK(scaler.scale() == 128.0);
  }
}

TEST_CASE("loss scaler: an overflow at the minimum is reported and lowers nothing", "[precision]") {
  zero::config::Fp16Config config;
  config.enabled = true;
  config.initial_scale_power = 4;
  LossScaler scaler(config);
  using Change = LossScaler::Change;
  const Change expected[] = {Change::kHysteresis,
                             Change::kHalved,
                             Change::kHalved,
                             Change::kHalved,
                             Change::kHalved,
                             Change::kAtMinimum};
  for (const Change change : expected) {
    CHECK(scaler.update(true) == change);
  }
  CHECK(scaler.scale() == 1.0);
}
