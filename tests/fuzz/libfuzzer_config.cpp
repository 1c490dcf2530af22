// Entry of libFuzzer: fuzz_config [options] CORPUS, seeded with tests/data/ds_configs/public.
#include "config_target.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::testing::exercise_config(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
