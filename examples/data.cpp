#include "examples/data.h"

#include <zero/core/error.h>
#include <zero/core/rng.h>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>

namespace zero::examples {
namespace {

std::int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::kU16:
      return 2;
    case TokenType::kU32:
      return 4;
    case TokenType::kByte:
      break;
  }
  return 1;
}

/// Token `index` of little-endian bytes.
std::uint32_t token_at(std::span<const std::byte> bytes, std::size_t index, std::size_t width) {
  std::uint32_t token = 0;
  for (std::size_t byte = 0; byte < width; ++byte) {
    token |= std::to_integer<std::uint32_t>(bytes[index * width + byte]) << (8 * byte);
  }
  return token;
}

std::vector<std::string> files_of_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const bool hidden = entry->path().filename().string().front() == '.';
    if (!hidden && entry->symlink_status(error).type() == fs::file_type::regular) {
      files.push_back(entry->path().string());
    }
  }
  if (error) {
    throw IoError("cannot list the folder: " + error.message(), folder);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TokenType parse_token_type(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, TokenType>, 3> kTypes = {
      {{"byte", TokenType::kByte}, {"u16", TokenType::kU16}, {"u32", TokenType::kU32}}};
  for (const auto& [name, type] : kTypes) {
    if (name == text) {
      return type;
    }
  }
  throw InputError(fmt::format("unknown token type \"{}\"", text), "--tokens", "byte, u16 or u32");
}

Corpus::Corpus(const Options& options) : options_(options) {
  ZERO_CHECK(options.sequence > 0 && options.vocabulary > 0,
             "a corpus needs sequence and vocabulary");
  std::error_code ignored;
  if (std::filesystem::is_directory(options.path, ignored)) {
    for (const std::string& file : files_of_folder(options.path)) {
      add_file(file);
    }
  } else {
    add_file(options.path);
  }
  windows_ = tokens_ > 0 ? (tokens_ - 1) / options.sequence : 0;
  if (windows_ == 0) {
    throw InputError(fmt::format("the text has {} tokens in {} files", tokens_, segments_.size()),
                     options.path,
                     fmt::format("give at least {}: one window of {} and the token after it",
                                 options.sequence + 1,
                                 options.sequence));
  }
}

void Corpus::add_file(const std::string& path) {
  const File file = File::open_to_read(path);
  const auto bytes = static_cast<std::int64_t>(file.size_bytes());
  const std::int64_t width = token_bytes(options_.type);
  if (bytes % width != 0) {
    throw InputError(fmt::format("{} bytes are not a whole number of {}-byte tokens", bytes, width),
                     path,
                     "choose --tokens as the file was written");
  }
  segments_.push_back({path, tokens_, bytes / width});
  tokens_ += bytes / width;
}

std::int64_t Corpus::window_of(std::int64_t sample) const {
  const std::int64_t index = sample % windows_;
  if (!options_.shuffle_seed) {
    return index;
  }
  const auto epoch = static_cast<std::uint64_t>(sample / windows_);
  return permuted(
      index, windows_, splitmix64_at(fnv1a64("shuffle") ^ *options_.shuffle_seed, epoch));
}

Batch Corpus::batch(std::int64_t first, std::int64_t rows) const {
  const std::int64_t sequence = options_.sequence;
  const auto length = static_cast<std::size_t>(sequence);
  std::vector<std::int32_t> window(length + 1);
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < rows; ++row) {
    read(window_of(first + row) * sequence, window);
    inputs.insert(inputs.end(), window.begin(), window.end() - 1);
    targets.insert(targets.end(), window.begin() + 1, window.end());
  }
  const Shape shape{rows, sequence};
  return {HostTensor::copy_of(std::span<const std::int32_t>(inputs), shape),
          HostTensor::copy_of(std::span<const std::int32_t>(targets), shape)};
}

void Corpus::read(std::int64_t begin, std::span<std::int32_t> into) const {
  auto segment = std::upper_bound(
      segments_.begin(), segments_.end(), begin, [](std::int64_t at, const Segment& s) {
        return at < s.begin;
      });
  for (--segment; !into.empty(); ++segment) {
    const std::int64_t left = segment->begin + segment->tokens - begin;
    const auto count = std::min(into.size(), static_cast<std::size_t>(left));
    read_from(*segment, begin - segment->begin, into.first(count));
    into = into.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
}

void Corpus::read_from(const Segment& segment,
                       std::int64_t begin,
                       std::span<std::int32_t> into) const {
  if (into.empty()) {
    return;
  }
  if (open_path_ != segment.path) {
    open_file_ = File::open_to_read(segment.path);
    open_path_ = segment.path;
  }
  const std::int64_t width = token_bytes(options_.type);
  std::vector<std::byte> bytes(into.size() * static_cast<std::size_t>(width));
  open_file_.read_at(bytes, static_cast<std::uint64_t>(begin * width));
  for (std::size_t i = 0; i < into.size(); ++i) {
    const std::uint32_t token = token_at(bytes, i, static_cast<std::size_t>(width));
    if (token >= options_.vocabulary) {
      throw InputError(fmt::format("token {} at position {} is not in the vocabulary of {}",
                                   token,
                                   begin + static_cast<std::int64_t>(i),
                                   options_.vocabulary),
                       segment.path,
                       "choose --tokens as the file was written, or another model");
    }
    into[i] = static_cast<std::int32_t>(token);
  }
}

std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key) {
  ZERO_CHECK(index >= 0 && index < count, "index outside the permutation");
  const auto size = static_cast<std::uint64_t>(count);
  const auto half = static_cast<unsigned>((std::bit_width(size - 1) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {  // the domain is below 4 · count, so few steps lead back inside
    std::uint64_t left = value >> half;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t next = left ^ (splitmix64_at(key ^ (right << 2U), round) & mask);
      left = right;
      right = next;
    }
    value = (left << half) | right;
  } while (value >= size);
  return static_cast<std::int64_t>(value);
}

}  // namespace zero::examples
