#pragma once

#include <zero/core/file.h>
#include <zero/core/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zero::examples {

/// How tokens lie in a file: each byte one, or headerless little-endian integers.
enum class TokenType : std::uint8_t { kByte, kU16, kU32 };
/// "byte", "u16" or "u32"; InputError otherwise.
[[nodiscard]] TokenType parse_token_type(std::string_view text);

/// A text as training samples: windows of `sequence` tokens and the same shifted by one.
///
/// Reads from its files whatever a batch needs, nothing else: memory does not grow with the text.
/// Thread: one at a time.
class Corpus {
 public:
  struct Options {
    /// A file, or a folder: its regular files (no links, no hidden files) in name order, joined.
    std::string path;
    TokenType type = TokenType::kByte;
    std::int64_t sequence = 0;    ///< S
    std::int64_t vocabulary = 0;  ///< V: tokens must be below
    /// Order of windows within each epoch: nullopt as they lie, else mixed anew each epoch.
    std::optional<std::uint64_t> shuffle_seed{};
  };
  /// InputError if there is no such text, if a file is cut in the middle of a token, or if the text
  /// is shorter than S + 1 tokens.
  explicit Corpus(const Options& options);

  /// Number of tokens, L.
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  /// Number of windows in an epoch, (L − 1) div S.
  [[nodiscard]] std::int64_t windows() const noexcept { return windows_; }
  /// Samples first … first + rows − 1, counted from the start of training, as int32 [rows, S]
  /// inputs and targets. InputError naming position and value of a token that is not in the
  /// vocabulary.
  [[nodiscard]] Batch batch(std::int64_t first, std::int64_t rows) const;
  /// The window that sample g shows.
  [[nodiscard]] std::int64_t window_of(std::int64_t sample) const;

 private:
  struct Segment {
    std::string path;
    std::int64_t begin = 0;  ///< its first token in the joined text
    std::int64_t tokens = 0;
  };

  void add_file(const std::string& path);
  /// Tokens [begin, begin + into.size()) of the joined text.
  void read(std::int64_t begin, std::span<std::int32_t> into) const;
  void read_from(const Segment& segment, std::int64_t begin, std::span<std::int32_t> into) const;

  Options options_;
  std::vector<Segment> segments_;
  std::int64_t tokens_ = 0;
  std::int64_t windows_ = 0;
  mutable std::string open_path_;  // the file read last stays open
  mutable File open_file_;
};

/// How samples are dealt to ranks and micro-steps, so that a step sees the same ones however W, B
/// and A divide it.
struct SampleOrder {
  std::int64_t accumulation = 1;  ///< A
  std::int64_t ranks = 1;         ///< W
  std::int64_t micro_batch = 1;   ///< B
  std::int64_t start = 0;         ///< sample that step 0 would begin with

  /// First sample of micro-step `micro` (from 0) of step `step` (from 0) on `rank`; its B rows
  /// follow each other.
  [[nodiscard]] std::int64_t first(std::int64_t step, std::int64_t micro, std::int64_t rank) const {
    return start + ((step * accumulation + micro) * ranks + rank) * micro_batch;
  }
};

/// Element `index` of a permutation of [0, count) that `key` chooses, without a table.
///
/// A four-round Feistel network over the next even number of bits, walked until it lands inside.
/// Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains".
[[nodiscard]] std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key);

}  // namespace zero::examples
