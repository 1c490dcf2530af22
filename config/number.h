#pragma once

// Private to config/: JSON numbers as Hjson reads them.

#include "config/document.h"

#include <optional>
#include <string_view>

namespace zero::config {

/// End of the JSON number that begins at `at`, blanks after it included; 0 if there is none.
[[nodiscard]] std::size_t scan_number(std::string_view text, std::size_t at);

/// The value of a JSON number: an integer of 64 bits if it has neither point nor exponent, or if
/// it is integral and below 1e10; else a double. Nothing if it is larger than any double.
[[nodiscard]] std::optional<Json> read_number(std::string_view word);

}  // namespace zero::config
