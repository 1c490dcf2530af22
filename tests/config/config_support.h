#pragma once

#include <zero/config/report.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace zero::testing {

using Json = nlohmann::ordered_json;

inline std::string read_bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline config::Verdict judge(const std::string& text, const config::LoadOptions& options = {}) {
  return config::validate(text, "ds.json", options);
}

inline Json resolved_of(const std::string& text, const config::LoadOptions& options = {}) {
  return Json::parse(judge(text, options).resolved);
}

/// A file that only lacks `members` to be complete.
inline std::string with_batch(const std::string& members) {
  return R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"})" +
         (members.empty() ? "" : ", " + members) + "}";
}

inline std::string zero_block(const std::string& members) {
  return with_batch(R"("zero_optimization": {)" + members + "}");
}

/// All findings of one list, a line each.
inline std::string texts(const std::vector<config::Issue>& issues) {
  std::string text;
  for (const config::Issue& issue : issues) {
    text += config::issue_text(issue, "ds.json") + "\n";
  }
  return text;
}

/// The first finding about a path, or nullptr.
inline const config::Issue* find_issue(const std::vector<config::Issue>& issues,
                                       const std::string& path) {
  const auto found = std::find_if(
      issues.begin(), issues.end(), [&](const config::Issue& issue) { return issue.path == path; });
  return found == issues.end() ? nullptr : &*found;
}

}  // namespace zero::testing
