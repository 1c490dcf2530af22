#pragma once

// Private to config/: the one table of every key. Parser, schema, docs/CONFIG.md and
// `zero explain` read it; nothing else lists keys.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::config {

/// How a value is converted and checked (docs/CONFIG.md, conversions).
enum class Kind {
  kBool,
  kInt,
  kIntNotBool,  ///< as kInt, true and false refused
  kFloat,
  kScale,  ///< finite number or numeric text, true and false refused
  kString,
  kPath,
  kWord,         ///< one of Key::allowed, exactly
  kWordAnyCase,  ///< one of Key::allowed, in any case
  kStage,        ///< 0–3
  kList,
  kStrings,    ///< list of strings, or one string
  kIntOrAuto,  ///< integer or the word auto
  kObject,
  kAny,
  kNever,    ///< no value is accepted
  kNumbers,  ///< number, or a list of numbers
};

/// How much of DeepSpeed's key an engine must honour (docs/CONFIG.md).
enum class Level { kCore, kShould, kForeign };

/// What decides whether a key is in force here. kNow: it is. kIdle: it has no effect and the
/// numbers of a training do not depend on it. The others stand for features that the engine may
/// or may not have: features.cpp says which.
enum class Feature {
  kNow,
  kIdle,
  kFp16,
  kBf16,
  kScheduler,
  kOffloadOptimizer,
  kOffloadParam,
  kOffloadNvme,
  kOffloadVariant,
  kPrescale,
  kReduceOp,
  kCommunicationDtype,
  kAccumulationDtype,
  kManualAccumulation,
  kLowPrecisionMasters,
  kLegacyStage1,
  kMics,
  kHpz,
  kQuantized,
  kZenflow,
  kTensorParallel,
  kSequenceParallel,
  kExpertParallel,
  kAutocast,
  kDataEfficiency,
  kDeepCompile,
  kOptimizerFlags,
  kCount,
};

struct FeatureState {
  Feature feature;
  bool available;
  std::string_view what;  ///< completes "… is not supported yet"
};
[[nodiscard]] const FeatureState& feature_state(Feature feature);

struct KeyExtras {
  std::string_view other_name = {};   ///< accepted in the file as well (not both)
  std::string_view replaced_by = {};  ///< this key is deprecated; what to write instead
  bool gate = false;                  ///< a value other than the default switches the feature on
  bool checked = false;  ///< in a loose block: DeepSpeed refuses a wrong value while it parses
  bool required = false;
};

struct Key {
  std::string_view name;
  Kind kind;
  std::string_view fallback;  ///< default as JSON text; "null" also means that null is accepted
  Level level;
  Feature feature;
  std::string_view meaning;       ///< one line
  std::string_view cost = {};     ///< memory or traffic it costs, or the consequence of no effect
  std::string_view allowed = {};  ///< "a|b|c", ">=0", ">0", "0..1"; empty: no limit
  KeyExtras extras = {};
};

struct Block {
  std::string_view path;     ///< "" is the top level
  std::string_view variant;  ///< for params: the types that have these keys ("adam|adamw")
  bool strict;               ///< an unknown key is an error
  bool nullable;             ///< null means absent
  std::string_view meaning;
  std::span<const Key> keys;
  bool open = false;  ///< keys are free
};

[[nodiscard]] std::span<const Block> blocks();

/// Blocks that DeepSpeed has removed: refused wherever they stand.
struct Removed {
  std::string_view name;
  std::string_view what;
  std::string_view instead;
};
[[nodiscard]] std::span<const Removed> removed_blocks();

/// Block by path; with a variant the one that lists it. nullptr if there is none.
[[nodiscard]] const Block* find_block(std::string_view path, std::string_view variant = {});
/// Key by either of its names; nullptr if there is none.
[[nodiscard]] const Key* find_key(const Block& block, std::string_view name);
/// Names of the keys and the blocks directly below `path`.
[[nodiscard]] std::vector<std::string_view> names_below(const Block& block);
[[nodiscard]] std::string join_path(std::string_view block, std::string_view name);

// The tables, one a file.
[[nodiscard]] std::span<const Block> root_blocks();
[[nodiscard]] std::span<const Block> zero_blocks();
[[nodiscard]] std::span<const Block> offload_blocks();
[[nodiscard]] std::span<const Block> training_blocks();
[[nodiscard]] std::span<const Block> params_blocks();
[[nodiscard]] std::span<const Block> foreign_blocks();

}  // namespace zero::config
