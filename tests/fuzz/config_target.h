#pragma once

#include <string>

namespace zero::testing {

/// Everything that takes the text of a ds_config, on one text, whatever it holds. Aborts if an
/// answer contradicts another one.
void exercise_config(const std::string& text);

}  // namespace zero::testing
