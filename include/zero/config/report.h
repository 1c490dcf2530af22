#pragma once

#include <zero/config/config.h>

#include <string>
#include <vector>

namespace zero::config {

/// One finding about a file.
struct Issue {
  std::string kind =
      {};  ///< parse_error, duplicate_key, unknown_key, bad_value, … (docs/CONFIG.md)
  std::string path = {};     ///< full path of the key, "zero_optimization.stage"; empty: the file
  std::string value = {};    ///< what stands there, as JSON, shortened
  std::string message = {};  ///< what is wrong
  std::string todo = {};     ///< what to write instead; may be empty
  int line = 0;              ///< from 1; 0: no place in the file
  int column = 0;            ///< from 1, in characters
};

/// What DeepSpeed says of a file, and whether this engine can train with it.
struct Verdict {
  std::string name;
  bool accepted = false;
  std::string resolved = "null";  ///< JSON object of the values as DeepSpeed has them, if accepted
  std::vector<Issue> errors;      ///< why it is rejected; all of them, in the order of the file
  std::vector<Issue> warnings;
  std::vector<Issue> blockers;  ///< accepted, but this engine refuses to train so
  bool runs_here = false;       ///< accepted and no blockers
  std::string reason;           ///< of not running here, one line
};

/// Judges JSON or Hjson text. Never throws for bad text. Thread: any.
[[nodiscard]] Verdict validate(const std::string& text,
                               const std::string& name,
                               const LoadOptions& options);

/// The verdict as one line of JSON: file, verdict, resolved, error, warnings, runs_here, reason.
[[nodiscard]] std::string verdict_json(const Verdict& verdict);

/// The verdict for people: a line for each finding, then one with the outcome.
[[nodiscard]] std::string verdict_text(const Verdict& verdict);

/// "FILE:LINE:COLUMN: PATH: MESSAGE; TODO", as editors understand it.
[[nodiscard]] std::string issue_text(const Issue& issue, const std::string& name);

/// Reads a file whole, up to just above the reader's limit of 1 MiB (the rest cannot change the
/// verdict). Throws InputError if it cannot be read.
[[nodiscard]] std::string read_text(const std::string& path);

/// Every key in force for a file, a line each: value, origin, meaning, cost. Empty text explains
/// the defaults. Throws ConfigError if the file is rejected.
[[nodiscard]] std::string explain_file(const std::string& text,
                                       const std::string& name,
                                       const LoadOptions& options);

/// One key (full path, or its last part when that is unique enough) in some lines. Throws
/// InputError with the nearest name for an unknown key.
[[nodiscard]] std::string explain_key(const std::string& wanted);

/// The same configuration with deprecated keys replaced and nothing else changed. Strict JSON
/// keeps its formatting; what only the relaxed reader accepts becomes plain JSON. `notes` gets a
/// line for each change. Throws ConfigError if the text cannot be read or a deprecated key stands
/// beside its replacement.
[[nodiscard]] std::string convert(const std::string& text,
                                  const std::string& name,
                                  std::vector<std::string>& notes);

/// JSON Schema (draft 7) of the format, made from the key table.
[[nodiscard]] std::string schema();

/// The tables of docs/CONFIG.md, made from the key table.
[[nodiscard]] std::string markdown_tables();

}  // namespace zero::config
