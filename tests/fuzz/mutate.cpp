// Mutates the files of a folder with a fixed seed, for compilers without libFuzzer.
// Arguments: folder of seeds, seconds.
#include "target.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

namespace {

using Rng = std::mt19937_64;

std::size_t below(Rng& rng, std::size_t limit) {
  return limit == 0 ? 0 : rng() % limit;
}

/// One change: insert a piece, take bytes out, change a byte, double a part, or splice another
/// seed.
void mutate(std::string& text, const std::vector<std::string>& seeds, Rng& rng) {
  const std::size_t at = below(rng, text.size() + 1);
  const std::size_t length = below(rng, 1 + std::min<std::size_t>(text.size() - at, 40));
  switch (below(rng, 5)) {
    case 0:
      text.insert(at, zero::testing::pieces()[below(rng, zero::testing::pieces().size())]);
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      if (at < text.size()) {
        text[at] = static_cast<char>(below(rng, 256));
      }
      break;
    case 3:
      text.insert(below(rng, text.size() + 1), text.substr(at, length));
      break;
    default: {
      const std::string& other = seeds[below(rng, seeds.size())];
      text.insert(at, other.substr(below(rng, other.size() + 1), below(rng, 200)));
    }
  }
}

std::vector<std::string> read_seeds(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fuzz_NAME SEEDS SECONDS\n");
    return 2;
  }
  const std::vector<std::string> seeds = read_seeds(argv[1]);
  if (seeds.empty()) {
    std::fprintf(stderr, "error: no seeds in %s\n", argv[1]);
    return 2;
  }
  Rng rng(20260101);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[2]));
  long texts = 0;
  for (; std::chrono::steady_clock::now() < end; ++texts) {
    std::string text = seeds[below(rng, seeds.size())];
    for (std::size_t changes = 1 + below(rng, 6); changes > 0; --changes) {
      mutate(text, seeds, rng);
    }
    zero::testing::exercise(text);
  }
  std::printf("%ld texts without a contradiction\n", texts);
  return 0;
}
