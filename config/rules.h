#pragma once

// Private to config/: the table of rules that involve several keys.

#include "config/check.h"

#include <span>
#include <string>
#include <string_view>

namespace zero::config {

/// When DeepSpeed finds the conflict. Only what it finds while it reads the file rejects the file;
/// what it finds later is refused here up front all the same.
enum class When { kParse, kBuild, kStep, kWarn };

struct Rule {
  std::string_view number;  ///< of the list in docs/CONFIG.md
  When when;
  bool (*broken)(const Checked&);
  std::string_view path;  ///< the key to point at
  std::string_view message;
  std::string_view todo;
};

[[nodiscard]] std::span<const Rule> rules();

// Facts about a configuration that rules ask for.
[[nodiscard]] std::int64_t stage(const Checked& c);
/// Device of zero_optimization.offload_optimizer or offload_param.
[[nodiscard]] std::string home(const Checked& c, std::string_view block);
/// A flag of bf16 or bfloat16, whichever is read.
[[nodiscard]] bool bf16(const Checked& c, std::string_view key);
[[nodiscard]] bool zenflow(const Checked& c);
/// Whether a dtype is given by any of its names and is not that of the model.
[[nodiscard]] bool other_dtype(const Checked& c, std::string_view path);

}  // namespace zero::config
