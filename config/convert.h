#pragma once

// Private to config/: from a value in the file to the value of a key.

#include "config/document.h"
#include "config/keys.h"

#include <optional>

namespace zero::config {

/// The value of `key` that `value` stands for by DeepSpeed's lenient conversions, or nothing if it
/// is refused (wrong type, or outside Key::allowed).
[[nodiscard]] std::optional<Json> convert_value(const Key& key, const Json& value);

/// What the key accepts, in words: "true or false", "a whole number of at least 0".
[[nodiscard]] std::string allowed_text(const Key& key);

/// The default of the key.
[[nodiscard]] Json fallback_value(const Key& key);

/// Whether Python takes the value for true.
[[nodiscard]] bool truthy(const Json& value);

/// The value as JSON on one line, shortened for a message.
[[nodiscard]] std::string value_text(const Json& value);

}  // namespace zero::config
