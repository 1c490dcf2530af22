// The batch triple against the rules of docs/CONFIG.md, in every combination.
#include "config_support.h"
#include <support/catch.h>

#include <array>
#include <optional>

namespace zero::testing {
namespace {

using Value = std::optional<int>;

struct Outcome {
  bool accepted = false;
  std::array<int, 3> triple{};
};

int floor_divide(int a, int b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

/// The rules, written as the table of the document reads.
Outcome oracle(Value total, Value micro, Value steps, int ranks) {
  if (!total && !micro) {
    return {};
  }
  if (total && micro && !steps) {
    if (*micro == 0) {
      return {};
    }
    steps = floor_divide(floor_divide(*total, *micro), ranks);
  } else if (total && !micro && steps) {
    if (*steps == 0) {
      return {};
    }
    micro = floor_divide(floor_divide(*total, ranks), *steps);
  } else if (total && !micro) {
    steps = 1;
    micro = floor_divide(*total, ranks);
  } else if (!total) {
    steps = steps.value_or(1);
    total = *micro * *steps * ranks;
  }
  Outcome outcome{true, {*total, *micro, *steps}};
  outcome.accepted = *total > 0 && *micro > 0 && *steps > 0 && *total == *micro * *steps * ranks;
  return outcome;
}

std::string member(const char* name, Value value) {
  return value ? std::string("\"") + name + "\": " + std::to_string(*value) + ", " : "";
}

std::string file(Value total, Value micro, Value steps) {
  return "{" + member("train_batch_size", total) + member("train_micro_batch_size_per_gpu", micro) +
         member("gradient_accumulation_steps", steps) + "\"dump_state\": false}";
}

void check_outcome(const Outcome& wanted, const config::Verdict& got) {
  CHECK(got.accepted == wanted.accepted);
  if (!got.accepted || !wanted.accepted) {
    return;
  }
  const Json resolved = Json::parse(got.resolved);
  CHECK(resolved["train_batch_size"] == wanted.triple[0]);
  CHECK(resolved["train_micro_batch_size_per_gpu"] == wanted.triple[1]);
  CHECK(resolved["gradient_accumulation_steps"] == wanted.triple[2]);
}

const std::array<Value, 10> kGrid = {{{}, -2, 0, 1, 2, 3, 4, 8, 33, 64}};

}  // namespace

TEST_CASE("batch: all combinations of given and missing on 1 to 16 ranks", "[config][batch]") {
  int accepted = 0;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const Value total : kGrid) {
      for (const Value micro : kGrid) {
        for (const Value steps : kGrid) {
          const std::string text = file(total, micro, steps);
          const Outcome wanted = oracle(total, micro, steps, ranks);
          INFO(text << " on " << ranks);
          check_outcome(wanted, judge(text, {.world = ranks}));
          accepted += wanted.accepted ? 1 : 0;
        }
      }
    }
  }
  CHECK(accepted > 1000);
}

TEST_CASE("batch: the worked cases of the reference on 4 ranks", "[config][batch]") {
  const auto judged = [](Value total, Value micro, Value steps) {
    return judge(file(total, micro, steps), {.world = 4});
  };
  check_outcome({true, {32, 4, 2}}, judged(32, 4, {}));
  check_outcome({true, {32, 4, 2}}, judged(32, {}, 2));
  check_outcome({true, {32, 4, 2}}, judged({}, 4, 2));
  check_outcome({true, {32, 8, 1}}, judged(32, {}, {}));
  check_outcome({true, {16, 4, 1}}, judged({}, 4, {}));
  CHECK_THAT(texts(judged(33, 4, {}).errors), Catch::Contains("33 is not 4 x 2 x 4"));
  CHECK_THAT(texts(judged(32, 5, {}).errors), Catch::Contains("32 is not 5 x 1 x 4"));
  CHECK_THAT(texts(judged(4, 4, {}).errors),
             Catch::Contains("gradient_accumulation_steps: comes out as 0"));
  CHECK_THAT(texts(judged(2, {}, 1).errors),
             Catch::Contains("train_micro_batch_size_per_gpu: comes out as 0"));
  CHECK_THAT(texts(judged({}, 4, 0).errors), Catch::Contains("train_batch_size: comes out as 0"));
  CHECK_THAT(texts(judged({}, {}, 2).errors), Catch::Contains("neither"));
  CHECK_THAT(texts(judged(32, 0, {}).errors),
             Catch::Contains("train_micro_batch_size_per_gpu: is 0"));
  CHECK_THAT(texts(judged(32, {}, 0).errors), Catch::Contains("gradient_accumulation_steps: is 0"));
}

TEST_CASE("batch: odd values", "[config][batch]") {
  CHECK(judge(R"({"train_batch_size": 32.0})").accepted);
  CHECK(judge(R"({"train_batch_size": true})").accepted);
  CHECK(judge(R"({"train_batch_size": null, "train_micro_batch_size_per_gpu": 1})").accepted);
  for (const char* value : {"\"auto\"", "\"4\"", "[4]", "{}", "\"\""}) {
    const auto verdict = judge(std::string(R"({"train_batch_size": )") + value + "}");
    INFO(value);
    REQUIRE_FALSE(verdict.accepted);
    CHECK(verdict.errors.front().kind == "batch_not_a_number");
  }
  const auto fractions =
      judge(R"({"train_micro_batch_size_per_gpu": 2.5, "optimizer": {"type": "SGD"}})");
  CHECK(fractions.accepted);
  CHECK_FALSE(fractions.runs_here);
  CHECK_FALSE(
      judge(
          R"({"train_batch_size": 9223372036854775807, "train_micro_batch_size_per_gpu": 9223372036854775807,
                        "gradient_accumulation_steps": 9223372036854775807})")
          .accepted);
}

TEST_CASE("batch: the command line supplies and overrides", "[config][batch]") {
  const std::string autos =
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"})";
  config::LoadOptions micro{.world = 2};
  micro.train_micro_batch_size_per_gpu = 3;
  check_outcome({true, {6, 3, 1}}, judge(autos, micro));
  check_outcome({true, {24, 3, 4}}, judge(file({}, 8, 4), micro));
  check_outcome({true, {24, 3, 4}}, judge(file(24, {}, {}), micro));
  CHECK_FALSE(judge(file(25, {}, {}), micro).accepted);
  config::LoadOptions both = micro;
  both.gradient_accumulation_steps = 5;
  check_outcome({true, {30, 3, 5}}, judge(file(7, 7, 7), both));
  config::LoadOptions total{.world = 2};
  total.train_batch_size = 12;
  check_outcome({true, {12, 6, 1}}, judge(autos, total));
  check_outcome({true, {12, 2, 3}}, judge(file({}, 2, {}), total));
}

TEST_CASE("batch: sequence_parallel_size divides the ranks as DeepSpeed does", "[config][batch]") {
  const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 2})";
  CHECK(resolved_of(text, {.world = 8})["train_batch_size"] == 8);
  config::LoadOptions given{.world = 8};
  given.train_micro_batch_size_per_gpu = 1;
  CHECK(resolved_of(text, given)["train_batch_size"] == 4);
  CHECK_FALSE(judge(text, given).runs_here);
}

}  // namespace zero::testing
