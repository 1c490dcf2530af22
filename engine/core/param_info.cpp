#include <zero/core/param_info.h>
#include <zero/core/rng.h>

#include <algorithm>

namespace zero {

Init Init::constant(float value) {
  return {[value](const std::string&, std::uint64_t, std::int64_t, std::span<float> values) {
    std::fill(values.begin(), values.end(), value);
  }};
}

Init Init::normal(double std) {
  return {[std](const std::string& name,
                std::uint64_t seed,
                std::int64_t begin,
                std::span<float> values) {
    const std::uint64_t state = fnv1a64(name) ^ seed;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = normal_at(state, static_cast<std::uint64_t>(begin) + i, std);
    }
  }};
}

}  // namespace zero
