#pragma once

// Private to config/: small helpers on text.

#include <string>
#include <string_view>
#include <vector>

namespace zero::config {

/// Without white space at both ends (ASCII).
[[nodiscard]] std::string_view trim(std::string_view text);

/// At most `limit` bytes of the text, not cut inside a character; "…" stands for the rest.
[[nodiscard]] std::string shortened(std::string_view text, std::size_t limit);

/// In double quotes, shortened to 60 bytes, control characters escaped: safe inside a message.
[[nodiscard]] std::string in_quotes(std::string_view text);

[[nodiscard]] std::string lower(std::string_view text);

/// Parts between `separator`; none for an empty text.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char separator);

/// The nearest of `names` by edit distance (case and `-` against `_` ignored), or empty if none is
/// near enough to be a plausible misspelling.
[[nodiscard]] std::string nearest(std::string_view name,
                                  const std::vector<std::string_view>& names);

/// Offset of the first byte that does not belong to valid UTF-8; size() if all do.
[[nodiscard]] std::size_t find_invalid_utf8(std::string_view text);

}  // namespace zero::config
