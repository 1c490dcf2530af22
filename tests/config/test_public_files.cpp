// The figure of this layer: on how many published files the verdict and every resolved value agree
// with DeepSpeed.
#include "config_support.h"
#include <support/catch.h>

namespace zero::testing {
namespace {

const std::string kFolder = std::string(ZERO_TEST_DATA) + "/ds_configs/";

/// Equal as numbers, but true is not 1.
bool same(const Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    return a.size() == b.size() &&
           std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
             return b.contains(item.key()) && same(item.value(), b[item.key()]);
           });
  }
  return a == b;
}

/// What differs, or nothing.
std::string difference(const Json& wanted, const std::string& verdict, const config::Verdict& got) {
  if ((verdict == "accept") != got.accepted) {
    return "DeepSpeed: " + verdict + "; here: " + texts(got.errors);
  }
  if (!got.accepted || wanted.is_null()) {
    return {};
  }
  const Json resolved = Json::parse(got.resolved);
  std::string text;
  for (const auto& [name, value] : wanted.items()) {
    if (!resolved.contains(name) || !same(value, resolved[name])) {
      text += name + " should be " + value.dump() + "; ";
    }
  }
  return text + (resolved.size() == wanted.size() ? "" : "other names");
}

Json at(const Json& row, const char* name) {
  return row.contains(name) ? row[name] : Json(nullptr);
}

std::string differences(const Json& row) {
  const std::string text = read_bytes_of(kFolder + "public/" + row["file"].get<std::string>());
  const config::LoadOptions eight{.world = 8};
  std::string all = difference(at(row, "resolved_w8"), row["verdict_w8"], judge(text, eight));
  all += difference(nullptr, row["verdict_w1"], judge(text));
  if (row.contains("with_batch_1x1")) {
    config::LoadOptions given = eight;
    given.train_micro_batch_size_per_gpu = 1;
    given.gradient_accumulation_steps = 1;
    const Json& wanted = row["with_batch_1x1"];
    all += difference(wanted["resolved"], wanted["verdict"], judge(text, given));
  }
  return all;
}

}  // namespace

TEST_CASE("public files: verdicts and resolved values are DeepSpeed's", "[config][public]") {
  std::istringstream lines(read_bytes_of(kFolder + "expected.jsonl"));
  int files = 0;
  int agreeing = 0;
  for (std::string line; std::getline(lines, line); ++files) {
    const Json row = Json::parse(line);
    const std::string text = differences(row);
    INFO(row["file"] << ": " << text);
    CHECK(text.empty());
    agreeing += text.empty() ? 1 : 0;
  }
  WARN("files agreeing: " << agreeing << " of " << files);
  CHECK(files == 122);
}

TEST_CASE("public files: the first error is of DeepSpeed's class", "[config][public]") {
  std::istringstream lines(read_bytes_of(kFolder + "expected.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    if (!row.contains("class")) {
      continue;
    }
    const auto verdict =
        judge(read_bytes_of(kFolder + "public/" + row["file"].get<std::string>()), {.world = 8});
    const bool named = std::any_of(verdict.errors.begin(),
                                   verdict.errors.end(),
                                   [&](const auto& issue) { return issue.kind == row["class"]; });
    INFO(row["file"] << " " << row["class"] << "\n" << texts(verdict.errors));
    CHECK(named);
  }
}

TEST_CASE("public files: a converted file means the same", "[config][public]") {
  std::istringstream lines(read_bytes_of(kFolder + "expected.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    if (row["verdict_w8"] != "accept" && !row.contains("with_batch_1x1")) {
      continue;
    }
    config::LoadOptions options{.world = 8};
    options.train_micro_batch_size_per_gpu = 1;
    options.gradient_accumulation_steps = 1;
    const std::string text = read_bytes_of(kFolder + "public/" + row["file"].get<std::string>());
    std::vector<std::string> notes;
    const std::string converted = config::convert(text, "ds.json", notes);
    INFO(row["file"]);
    const auto before = judge(text, options);
    const auto after = judge(converted, options);
    Json old_values = Json::parse(before.resolved);
    Json new_values = Json::parse(after.resolved);
    const bool threads = text.find("thread_count") != std::string::npos;
    if (threads) {  // DeepSpeed ignores that name, the converted file says what was meant
      old_values.erase("aio");
      new_values.erase("aio");
    }
    CHECK(old_values == new_values);
    CHECK(after.accepted);
    CHECK(Json::accept(converted));
    CHECK(texts(after.warnings).find("deprecated") == std::string::npos);
    CHECK((notes.empty() ? converted == text : converted != text));
  }
}

}  // namespace zero::testing
