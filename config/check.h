#pragma once

// Private to config/: a document checked against the key table.

#include "config/document.h"
#include "config/keys.h"
#include <zero/config/report.h>

#include <map>
#include <string>
#include <vector>

namespace zero::config {

/// More findings than this of one sort are left out.
inline constexpr std::size_t kMaxIssues = 200;

enum class Origin { kDefault, kFile, kDerived, kAuto };

/// A key's value as it is in force.
struct Value {
  Json value = {};  ///< converted
  Json raw = {};    ///< as in the file
  Origin origin = Origin::kFile;
  std::size_t offset = 0;  ///< of the value in the text
};

/// A number as Python has it in the batch arithmetic: whole or not.
struct Number {
  bool whole = true;
  std::int64_t integer = 0;
  double real = 0.0;

  [[nodiscard]] double as_double() const { return whole ? static_cast<double>(integer) : real; }
  [[nodiscard]] Json json() const { return whole ? Json(integer) : Json(real); }
};

/// The batch triple after derivation; `known` only if it is consistent.
struct Batch {
  bool known = false;
  Number total, micro, steps;
};

/// The outcome of all checks. Values are found by full path ("zero_optimization.stage").
struct Checked {
  Document document;
  std::map<std::string, Value, std::less<>> values;
  std::vector<Issue> errors, warnings, blockers;
  Batch batch;
  std::int64_t world = 1;  ///< ranks

  /// The value in force: that of the file, or the table's default.
  [[nodiscard]] const Json& at(std::string_view path) const;
  /// As at(), but as the file has it.
  [[nodiscard]] const Json& raw(std::string_view path) const;
  [[nodiscard]] bool given(std::string_view path) const;
  [[nodiscard]] bool is_true(std::string_view path) const;
  /// Where the key stands in the text; 0 if the file lacks it.
  [[nodiscard]] std::size_t offset(std::string_view path) const;
  /// "bf16" or "bfloat16", whichever DeepSpeed reads; "bf16" if there is neither.
  [[nodiscard]] std::string bf16_block() const;

  void error(std::string kind, Issue issue, std::size_t offset);
  void warn(std::string kind, Issue issue, std::size_t offset);
  void block(std::string kind, Issue issue, std::size_t offset);
};

/// Reads and checks a text: syntax, keys, conversions, ranges, batch, rules across keys.
[[nodiscard]] Checked check(std::string text, const LoadOptions& options);

/// Checks every key of the document against the table; fills in Checked::values.
void walk(Checked& out, const LoadOptions& options);

/// Checks optimizer.params or scheduler.params against the arguments of the type.
void check_params(Checked& out,
                  std::string_view owner,
                  const Spot* params_spot,
                  const std::map<std::string, Json, std::less<>>& fills);

/// What "auto" stands for by the caller's options, by path.
[[nodiscard]] std::map<std::string, Json, std::less<>> auto_fills(const LoadOptions& options);

/// Derives and checks the batch triple; errors and Checked::batch.
void check_batch(Checked& out, const LoadOptions& options);

/// The rules that involve several keys.
void check_rules(Checked& out);

/// The values as DeepSpeed has them after reading the file, with the names of its attributes.
[[nodiscard]] Json resolved_json(const Checked& checked);

}  // namespace zero::config
