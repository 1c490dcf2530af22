#pragma once

#include <cstdint>
#include <string_view>

namespace zero {

/// FNV-1a, 64 bit: the hash that turns a parameter's name into a random stream.
[[nodiscard]] constexpr std::uint64_t fnv1a64(std::string_view text) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

/// Output `index` (from 0) of the splitmix64 generator with state `state`, without running the ones
/// before it.
[[nodiscard]] constexpr std::uint64_t splitmix64_at(std::uint64_t state,
                                                    std::uint64_t index) noexcept {
  std::uint64_t z = state + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

/// Element `index` of tensor `name_hash ^ seed`: a bell-shaped number with mean 0 and standard
/// deviation `std`.
///
/// The sum of the four 16-bit pieces of one splitmix64 output, centred and scaled: the same bits on
/// every machine, whatever the world size (each element is computed by itself).
[[nodiscard]] float normal_at(std::uint64_t state, std::uint64_t index, double std) noexcept;

}  // namespace zero
