// Entry of libFuzzer: fuzz_NAME [options] CORPUS SEEDS.
#include "target.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::testing::exercise(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
