#include "engine/checkpoint/streamed_file.h"
#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>

#include <algorithm>
#include <random>

namespace zero {
namespace {

using support::TemporaryFolder;

std::string random_bytes(std::size_t bytes) {
  std::mt19937 random(3);
  std::string text(bytes, '\0');
  std::ranges::generate(text, [&] { return static_cast<char>(random()); });
  return text;
}

/// Writes `text` in the given pieces [begin, end).
std::optional<std::vector<std::uint64_t>> write_pieces(
    const std::string& path,
    const std::string& text,
    const std::vector<std::pair<std::size_t, std::size_t>>& pieces) {
  StreamedFile file(path, text.size());
  for (const auto& [begin, end] : pieces) {
    file.write_at(std::as_bytes(std::span(text).subspan(begin, end - begin)), begin);
  }
  file.finish();
  return file.block_sums();
}

std::vector<std::pair<std::size_t, std::size_t>> cut(std::size_t bytes,
                                                     std::size_t longest,
                                                     unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t end = std::min(bytes, at + 1 + random() % longest);
    pieces.emplace_back(at, end);
    at = end;
  }
  return pieces;
}

TEST_CASE("streamed file: pieces in order give the bytes and the sum of each block",
          "[checkpoint][streamed]") {
  const TemporaryFolder folder;
  const auto bytes = GENERATE(as<std::size_t>(), 0, 1, 4095, 4096, 1 << 20, 20'000'001);
  const std::string text = random_bytes(bytes);
  const auto sums = write_pieces(folder / "x", text, cut(bytes, 3'000'000, 1));
  CHECK(support::read_bytes(folder / "x") == text);
  REQUIRE(sums.has_value());
  CHECK(*sums == block_sums_of(File::open_to_read(folder / "x")));
}

TEST_CASE("streamed file: pieces in any order give the bytes, and no sums",
          "[checkpoint][streamed]") {
  const TemporaryFolder folder;
  const std::string text = random_bytes(9'000'003);
  const auto longest = GENERATE(as<std::size_t>(), 5'000, 9'000, 2'000'000);
  auto pieces = cut(text.size(), longest, 2);
  std::ranges::shuffle(pieces, std::mt19937(4));
  CHECK_FALSE(write_pieces(folder / "x", text, pieces).has_value());
  CHECK(support::read_bytes(folder / "x") == text);
}

TEST_CASE("streamed file: what it is given is on the disk under its size from the start",
          "[checkpoint][streamed]") {
  const TemporaryFolder folder;
  StreamedFile file(folder / "x", 123'456);
  CHECK(std::filesystem::file_size(folder / "x") == 123'456);
  const auto again = [&] { const StreamedFile other(folder / "x", 1); };
  CHECK_THROWS_AS(again(), IoError);
}

}  // namespace
}  // namespace zero
