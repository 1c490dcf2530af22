#pragma once

#include <string>
#include <vector>

namespace zero::testing {

/// What one fuzzing program does with one text, whatever it holds: config_target.cpp gives it to
/// everything that takes a ds_config, checkpoint_target.cpp to what takes a manifest or the header
/// of a safetensors file. Aborts if an answer contradicts another one.
void exercise(const std::string& text);

/// Pieces that mutate.cpp puts into texts.
[[nodiscard]] const std::vector<std::string>& pieces();

}  // namespace zero::testing
