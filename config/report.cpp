#include "config/check.h"
#include <zero/config/report.h>
#include <zero/core/error.h>

#include <fstream>

namespace zero::config {
namespace {

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sentence(const Issue& issue) {
  std::string text = issue.path;
  if (!issue.value.empty()) {
    text += (text.empty() ? "" : " = ") + issue.value;
  }
  text += (text.empty() ? "" : ": ") + issue.message;
  return issue.todo.empty() ? text : text + "; " + issue.todo;
}

Json issue_json(const Issue& issue) {
  Json json;
  json["kind"] = issue.kind;
  json["key"] = issue.path;
  json["value"] = issue.value;
  json["line"] = issue.line > 0 ? Json(issue.line) : Json(nullptr);
  json["column"] = issue.column > 0 ? Json(issue.column) : Json(nullptr);
  json["message"] = sentence(issue);
  return json;
}

Json list_json(const std::vector<Issue>& issues) {
  Json list = Json::array();
  for (const Issue& issue : issues) {
    list.push_back(issue_json(issue));
  }
  return list;
}

std::string joined(const std::vector<Issue>& issues) {
  std::string text;
  for (const Issue& issue : issues) {
    text += (text.empty() ? "" : " | ") + sentence(issue);
  }
  return text;
}

}  // namespace

std::string issue_text(const Issue& issue, const std::string& name) {
  std::string place = name;
  if (issue.line > 0) {
    place += ":" + std::to_string(issue.line) + ":" + std::to_string(issue.column);
  }
  return place + ": " + sentence(issue);
}

Verdict validate(const std::string& text, const std::string& name, const LoadOptions& options) {
  const Checked checked = check(text, options);
  Verdict verdict;
  verdict.name = name;
  verdict.accepted = checked.errors.empty();
  verdict.errors = checked.errors;
  verdict.warnings = checked.warnings;
  if (verdict.accepted) {
    verdict.resolved = dump(resolved_json(checked));
    verdict.blockers = checked.blockers;
  }
  verdict.runs_here = verdict.accepted && verdict.blockers.empty();
  if (!verdict.accepted) {
    verdict.reason = "the file is rejected";
  } else if (!verdict.runs_here) {
    verdict.reason = joined(verdict.blockers);
  }
  return verdict;
}

std::string verdict_json(const Verdict& verdict) {
  Json json;
  json["file"] = verdict.name;
  json["verdict"] = verdict.accepted ? "accept" : "reject";
  json["resolved"] = Json::parse(verdict.resolved);
  json["error"] = verdict.accepted ? Json(nullptr) : Json(joined(verdict.errors));
  json["errors"] = list_json(verdict.errors);
  json["warnings"] = list_json(verdict.warnings);
  json["runs_here"] = verdict.runs_here;
  json["reason"] = verdict.reason.empty() ? Json(nullptr) : Json(verdict.reason);
  return dump(json);
}

std::string verdict_text(const Verdict& verdict) {
  std::string text;
  const auto lines = [&](const char* word, const std::vector<Issue>& issues) {
    for (const Issue& issue : issues) {
      text += std::string(word) + ": " + issue_text(issue, verdict.name) + "\n";
    }
  };
  lines("error", verdict.errors);
  lines("refused here", verdict.blockers);
  lines("warning", verdict.warnings);
  text += verdict.name + ": " + (verdict.accepted ? "accept" : "reject");
  if (verdict.accepted) {
    const Json resolved = Json::parse(verdict.resolved);
    text += ", batch " + resolved["train_batch_size"].dump() + " = micro-batch " +
            resolved["train_micro_batch_size_per_gpu"].dump() + " x accumulation " +
            resolved["gradient_accumulation_steps"].dump() + " x ranks, stage " +
            resolved["zero_stage"].dump() +
            (verdict.runs_here ? ", runs here" : ", does not run here");
  }
  return text + "\n";
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxTextBytes + 1, '\0');
  if (file) {
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
  }
  if (!file && !file.eof()) {
    throw InputError("cannot read the configuration", path, "check the path and its permissions");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  text.shrink_to_fit();
  return text;
}

}  // namespace zero::config
