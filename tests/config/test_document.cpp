// The relaxed reader: what it accepts beyond JSON, what it refuses, and the tree it yields.
#include "config/document.h"
#include "config_support.h"
#include <support/catch.h>

namespace zero::testing {
namespace {

using config::Document;
using config::read_document;

Json tree(const std::string& text) {
  const Document document = read_document(text);
  INFO(text);
  REQUIRE(document.faults.empty());
  return document.root;
}

std::string fault(const std::string& text) {
  const Document document = read_document(text);
  return document.faults.empty() ? "" : document.faults.front().message;
}

struct Case {
  std::string text;
  std::string json;
};

}  // namespace

TEST_CASE("document: everything that Hjson adds to JSON is read", "[config][document]") {
  const Case cases[] = {
      {"", "{}"},
      {" # nothing\n", "{}"},
      {"// a\n{ \"a\": 1 /* b */ } // c", R"({"a": 1})"},
      {"{\"a\": 1, # c\n \"b\": 2}", R"({"a": 1, "b": 2})"},
      {"{\"a\": [1, 2,], \"b\": {\"c\": 3,},}", R"({"a": [1, 2], "b": {"c": 3}})"},
      {"{\"a\": 1\n\"b\": 2}", R"({"a": 1, "b": 2})"},
      {"{\"a\": \"x\" \"b\": 2}", R"({"a": "x", "b": 2})"},
      {"{a: 1\n b_c : 2}", R"({"a": 1, "b_c": 2})"},
      {"a: 1\n\"b\": {c: 2}", R"({"a": 1, "b": {"c": 2}})"},
      {"\"a\": 1,\n", R"({"a": 1})"},
      {"{'a': 'it''s', }", ""},
      {"{'a': 'say \"x\"'}", R"({"a": "say \"x\""})"},
      {"{\"a\": True\n}", R"({"a": "True"})"},
      {"{\"a\": $STAGE,\n}", R"({"a": "$STAGE,"})"},
      {"{\"a\": one two } # three\n}", R"({"a": "one two } # three"})"},
      {"{\"a\": true # yes\n}", R"({"a": true})"},
      {"{\"a\": 1 // one\n}", R"({"a": 1})"},
      {"{\"a\": null}", R"({"a": null})"},
      {"{\"a\": NaN\n}", R"({"a": "NaN"})"},
      {"{\"a\": 0x10\n}", R"({"a": "0x10"})"},
      {"{\"a\": +1\n}", R"({"a": "+1"})"},
      {"{\"a\": 01\n}", R"({"a": "01"})"},
      {"{\"a\": [1 2]\n}", ""},
      {"{\"a\": '''one'''}", R"({"a": "one"})"},
      {"{\n  \"a\": '''\n  one\n  two\n  '''}", ""},
      {"\xEF\xBB\xBF{\"a\": 1}", R"({"a": 1})"},
      {"{\"a \": 1}", R"({"a ": 1})"},
      {R"({"a": "\u00e9\n\ud83d\ude00\/"})", R"({"a": "é\n😀/"})"},
      {"{\"a\": 1}\r\n", R"({"a": 1})"},
  };
  for (const Case& one : cases) {
    if (!one.json.empty()) {
      INFO(one.text);
      CHECK(tree(one.text) == Json::parse(one.json));
    }
  }
  CHECK(tree("{\"a\": '''\n      one\n        two\n      '''}") == Json{{"a", "one\n  two"}});
}

TEST_CASE("document: numbers become integers as in Hjson", "[config][document]") {
  const Json root = tree(
      "{\"a\": 5e8, \"b\": 16.0, \"c\": 1e9, \"d\": 1e12, \"e\": 0.5, \"f\": -0.0, \"g\": "
      "9223372036854775807,"
      "\"h\": 18446744073709551615, \"i\": 18446744073709551616, \"j\": -9223372036854775808, "
      "\"k\": 1e-400, \"l\": 9999999999.0}");
  CHECK((root["a"].is_number_integer() && root["a"] == 500000000));
  CHECK((root["b"].is_number_integer() && root["b"] == 16));
  CHECK((root["c"].is_number_integer() && root["c"] == 1000000000));
  CHECK((root["d"].is_number_float() && root["d"] == 1e12));
  CHECK(root["e"] == 0.5);
  CHECK((root["f"].is_number_integer() && root["f"] == 0));
  CHECK(root["g"].get<std::int64_t>() == INT64_MAX);
  CHECK(root["h"].get<std::uint64_t>() == UINT64_MAX);
  CHECK((root["i"].is_number_float() && root["i"] == 18446744073709551616.0));
  CHECK(root["j"].get<std::int64_t>() == INT64_MIN);
  CHECK((root["k"].is_number_integer() && root["k"] == 0));
  CHECK(root["l"].is_number_integer());
}

TEST_CASE("document: broken texts are refused with the reason", "[config][document]") {
  const Case cases[] = {
      {"{\"a\": 1", "key or a closing brace is missing"},
      {"{\"a\": [1", "not closed"},
      {"{\"a\": \"x", "not closed"},
      {"{\"a\": '''x", "not closed"},
      {"{\"a\": \"x\ny\"}", "control character"},
      {"{\"a\": }", "found '}'"},
      {"{\"a\": ]}", "found ']'"},
      {"{\"a\" 1}", "expected ':'"},
      {"{,}", "found ','"},
      {"{\"a\": 1,,}", "found ','"},
      {"{{}}", "found '{'"},
      {"{a b: 1}", "white space inside a key"},
      {"{: 1}", "without a key"},
      {"{\"a\": 1} x", "after the end"},
      {"[1]", "one object"},
      {"{\"a\": \"\\x\"}", "escape"},
      {"{\"a\": \"\\u12\"}", "hexadecimal"},
      {"{\"a\": 1e400}", "larger than any double"},
      {"{\"a\": \"\xff\"}", "UTF-8"},
      {"{\"a\": \"\xc0\xaf\"}", "UTF-8"},
      {"{\"a\": NaN}", "key or a closing brace is missing"},
      {"true", "missing"},
      {"{\"a\": 1, \"a\": 1}", "twice"},
      {"{\"x\": {\"a\": 1, \"b\": 2, \"a\": 3}}", "twice"},
  };
  for (const Case& one : cases) {
    INFO(one.text);
    CHECK_THAT(fault(one.text), Catch::Contains(one.json));
  }
}

TEST_CASE("document: places count lines and characters from 1", "[config][document]") {
  const Document document = read_document("{\n  // é\n  \"é\": [1,\n 2], x: y\n}");
  REQUIRE(document.faults.empty());
  const auto& spot = document.spot.children.at(0);
  CHECK(document.place(spot.key_begin).line == 3);
  CHECK(document.place(spot.key_begin).column == 3);
  CHECK(document.place(spot.begin).column == 8);
  CHECK(document.place(spot.children.at(1).begin).line == 4);
  CHECK(document.place(spot.children.at(1).begin).column == 2);
  CHECK(document.text.substr(document.spot.children.at(1).begin, 1) == "y");
}

TEST_CASE("document: of a key that stands twice the first value is kept", "[config][document]") {
  const Document document = read_document(R"({"a": {"x": 1, "y": 2}, "b": 3, "a": 4, "a": 5})");
  CHECK(document.faults.size() == 2);
  CHECK(document.root == Json::parse(R"({"a": {"x": 1, "y": 2}, "b": 3})"));
  CHECK(document.spot.children.size() == 2);
  const std::string schedules =
      R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}, "scheduler": {"type": "WarmupLR",
         "params": {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}})";
  CHECK(judge(with_batch(schedules)).errors.size() == 1);
}

TEST_CASE("document: what plain JSON lacks is noted once", "[config][document]") {
  CHECK(read_document("{\"a\": [1, \"x\", true, null, -1.5e3]}").strict_json);
  const Document document = read_document("# a\n# b\n'x': [1,],");
  CHECK_FALSE(document.strict_json);
  CHECK(document.notes.size() == 4);
}

}  // namespace zero::testing
