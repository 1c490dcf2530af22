#include "examples/data.h"
#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace zero::examples {
namespace {

using support::TemporaryFolder;
using support::write_bytes;

Corpus::Options options_for(const std::string& path, TokenType type = TokenType::kByte) {
  return {.path = path, .type = type, .sequence = 4, .vocabulary = 256};
}

std::vector<std::int32_t> inputs(const Batch& batch) {
  const auto values = batch.inputs.view().as<std::int32_t>();
  return {values.begin(), values.end()};
}
std::vector<std::int32_t> targets(const Batch& batch) {
  const auto values = batch.targets.view().as<std::int32_t>();
  return {values.begin(), values.end()};
}

TEST_CASE("corpus: samples are the windows of the text, round and round", "[examples][data]") {
  const TemporaryFolder folder;
  write_bytes(folder / "text", "abcdefghijklm");  // 13 tokens: 3 windows
  const Corpus corpus(options_for(folder / "text"));
  CHECK(corpus.tokens() == 13);
  CHECK(corpus.windows() == 3);
  const Batch batch = corpus.batch(2, 2);  // windows 2 and 0
  CHECK(batch.inputs.shape == Shape{2, 4});
  CHECK(inputs(batch) == std::vector<std::int32_t>{'i', 'j', 'k', 'l', 'a', 'b', 'c', 'd'});
  CHECK(targets(batch) == std::vector<std::int32_t>{'j', 'k', 'l', 'm', 'b', 'c', 'd', 'e'});
}

TEST_CASE("corpus: a folder is its regular files in name order, joined", "[examples][data]") {
  const TemporaryFolder folder;
  write_bytes(folder / "b", "fg");
  write_bytes(folder / "a", "abcde");
  write_bytes(folder / "aa", "");
  write_bytes(folder / "c", "hijklm");
  write_bytes(folder / ".hidden", "zzzz");
  std::filesystem::create_directory(folder / "d");
  std::filesystem::create_symlink(folder / "a", folder / "ab");
  const Corpus corpus(options_for(folder.path().string()));
  CHECK(corpus.tokens() == 13);
  CHECK(inputs(corpus.batch(0, 3)) ==
        std::vector<std::int32_t>{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l'});
  CHECK(targets(corpus.batch(1, 1)) == std::vector<std::int32_t>{'f', 'g', 'h', 'i'});
}

TEST_CASE("corpus: u16 and u32 tokens are little-endian", "[examples][data]") {
  const TemporaryFolder folder;
  write_bytes(folder / "two", std::string("\1\2\3\0\4\0\5\0\6\0", 10));
  Corpus::Options options = options_for(folder / "two", TokenType::kU16);
  options.vocabulary = 1024;
  CHECK(inputs(Corpus(options).batch(0, 1)) == std::vector<std::int32_t>{513, 3, 4, 5});
  write_bytes(folder / "four", std::string("\1\2\1\0\4\0\0\0\5\0\0\0\6\0\0\0\7\0\0\0", 20));
  options = options_for(folder / "four", TokenType::kU32);
  options.vocabulary = 100'000;
  CHECK(inputs(Corpus(options).batch(0, 1)) == std::vector<std::int32_t>{66049, 4, 5, 6});
}

TEST_CASE("corpus: a token outside the vocabulary is named with its position", "[examples][data]") {
  const TemporaryFolder folder;
  write_bytes(folder / "text", "abcdefgh~jkl");
  Corpus::Options options = options_for(folder / "text");
  options.vocabulary = 'z';
  const Corpus corpus(options);
  CHECK_NOTHROW(corpus.batch(0, 1));
  CHECK_THROWS_AS(corpus.batch(1, 1), InputError);
  CHECK_THROWS_WITH(corpus.batch(1, 1), Catch::Contains("token 126 at position 8"));
  write_bytes(folder / "u32", std::string("\0\0\0\xFF\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20));
  CHECK_THROWS_WITH(Corpus(options_for(folder / "u32", TokenType::kU32)).batch(0, 1),
                    Catch::Contains("token 4278190080 at position 0"));
}

TEST_CASE("corpus: texts that cannot be used are refused with what is needed", "[examples][data]") {
  const TemporaryFolder folder;
  write_bytes(folder / "short", "abcd");
  CHECK_THROWS_AS(Corpus(options_for(folder / "short")), InputError);
  CHECK_THROWS_WITH(Corpus(options_for(folder / "short")),
                    Catch::Contains("has 4 tokens") && Catch::Contains("at least 5"));
  write_bytes(folder / "enough", "abcde");
  CHECK_NOTHROW(Corpus(options_for(folder / "enough")));
  CHECK_THROWS_WITH(Corpus(options_for(folder / "enough", TokenType::kU16)),
                    Catch::Contains("5 bytes are not a whole number of 2-byte tokens"));
  CHECK_THROWS_AS(Corpus(options_for(folder / "none")), InputError);
  std::filesystem::create_directory(folder / "empty");
  CHECK_THROWS_WITH(Corpus(options_for(folder / "empty")), Catch::Contains("has 0 tokens"));
  CHECK(parse_token_type("u16") == TokenType::kU16);
  CHECK_THROWS_AS(parse_token_type("u64"), InputError);
}

TEST_CASE("permuted: visits every element once, for every size", "[examples][data]") {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000}) {
    for (const std::uint64_t key : {0U, 1U, 99U}) {
      INFO(count << " elements, key " << key);
      std::set<std::int64_t> seen;
      for (std::int64_t i = 0; i < count; ++i) {
        seen.insert(permuted(i, count, key));
      }
      CHECK(std::ssize(seen) == count);
      CHECK(*seen.begin() == 0);
      CHECK(*seen.rbegin() == count - 1);
    }
  }
  CHECK(permuted((std::int64_t{1} << 40) - 1, std::int64_t{1} << 40, 3) < std::int64_t{1} << 40);
}

TEST_CASE("corpus: shuffling mixes each epoch anew and depends on the seed", "[examples][data]") {
  const TemporaryFolder folder;
  write_bytes(folder / "text", std::string(401, 'x'));
  const auto order = [&](std::optional<std::uint64_t> seed, std::int64_t epoch) {
    Corpus::Options options = options_for(folder / "text");
    options.shuffle_seed = seed;
    const Corpus corpus(options);
    std::vector<std::int64_t> windows;
    for (std::int64_t g = 0; g < 100; ++g) {
      windows.push_back(corpus.window_of(epoch * 100 + g));
    }
    return windows;
  };
  std::vector<std::int64_t> plain(100);
  std::iota(plain.begin(), plain.end(), 0);
  CHECK(order(std::nullopt, 3) == plain);
  CHECK(order(1, 0) != plain);
  CHECK(order(1, 0) == order(1, 0));
  CHECK(order(1, 0) != order(1, 1));
  CHECK(order(1, 0) != order(2, 0));
  std::vector<std::int64_t> sorted = order(1, 5);
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == plain);
}

TEST_CASE("sample order: a step sees the same samples however it is divided", "[examples][data]") {
  const auto samples_of_step = [](std::int64_t step, const SampleOrder& order) {
    std::vector<std::int64_t> samples;
    for (std::int64_t micro = 0; micro < order.accumulation; ++micro) {
      for (std::int64_t rank = 0; rank < order.ranks; ++rank) {
        for (std::int64_t row = 0; row < order.micro_batch; ++row) {
          samples.push_back(order.first(step, micro, rank) + row);
        }
      }
    }
    return samples;
  };
  const std::vector<std::int64_t> expected = {24, 25, 26, 27, 28, 29, 30, 31};
  CHECK(samples_of_step(3, {.accumulation = 1, .ranks = 1, .micro_batch = 8}) == expected);
  CHECK(samples_of_step(3, {.accumulation = 2, .ranks = 2, .micro_batch = 2}) == expected);
  CHECK(samples_of_step(3, {.accumulation = 4, .ranks = 2, .micro_batch = 1}) == expected);
}

}  // namespace
}  // namespace zero::examples
