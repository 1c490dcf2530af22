#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

namespace zero {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestManifest = std::uint64_t{4} << 30;

std::string read_text(const std::string& path) {
  const File file = File::open_to_read(path);
  const std::uint64_t bytes = file.size_bytes();
  if (bytes > kLargestManifest) {
    throw InputError(fmt::format("it has {} bytes", bytes), path, "this is no checkpoint");
  }
  std::string text(bytes, '\0');
  file.read_at(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

std::string latest_tag(const std::string& dir) {
  const std::string path = (fs::path(dir) / "latest").string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    const std::vector<std::string> tags = checkpoint_tags(dir);  // killed before the first `latest`
    if (tags.empty()) {
      throw InputError("there is no checkpoint", dir, "give a folder that one was saved to");
    }
    return tags.back();
  }
  std::string tag = read_text(path);
  while (!tag.empty() && tag.back() == '\n') {
    tag.pop_back();
  }
  return tag;
}

}  // namespace

std::vector<std::uint64_t> block_sums_of(const File& file) {
  std::vector<std::uint64_t> sums;
  std::vector<std::byte> block(CheckpointManifest::kBlockBytes);
  const std::uint64_t bytes = file.size_bytes();
  for (std::uint64_t at = 0; at < bytes; at += block.size()) {
    const std::span<std::byte> piece(block.data(),
                                     std::min<std::uint64_t>(block.size(), bytes - at));
    file.read_at(piece, at);
    sums.push_back(XXH64(piece.data(), piece.size(), 0));
  }
  return sums;
}

CheckpointReader::CheckpointReader(const std::string& dir, const std::string& tag)
    : tag_(tag.empty() ? latest_tag(dir) : tag) {
  folder_ = (fs::path(dir) / tag_).string();
  const std::string path = (fs::path(folder_) / "manifest.json").string();
  std::error_code ignored;
  if (tag_.empty() || tag_.find('/') != std::string::npos || !fs::exists(path, ignored)) {
    throw InputError(fmt::format("there is no checkpoint \"{}\"", tag_),
                     dir,
                     fmt::format("there are: {}", fmt::join(checkpoint_tags(dir), ", ")));
  }
  manifest_ = CheckpointManifest::from_json(read_text(path), path);
  for (const CheckpointManifest::DataFile& file : manifest_.files) {
    files_.push_back(File::open_to_read((fs::path(folder_) / file.name).string()));
    if (files_.back().size_bytes() != file.bytes) {
      throw InputError(fmt::format("it has {} bytes, the checkpoint was written with {}",
                                   files_.back().size_bytes(),
                                   file.bytes),
                       files_.back().path(),
                       "use another checkpoint");
    }
  }
}

void CheckpointReader::verify(std::size_t first, std::size_t step) const {
  for (std::size_t index = first; index < files_.size(); index += step) {
    verify_file(index);
  }
}

void CheckpointReader::verify_file(std::size_t index) const {
  const std::vector<std::uint64_t> found = block_sums_of(files_[index]);
  const std::vector<std::uint64_t>& expected = manifest_.files[index].block_sums;
  const auto [bad, unused] = std::mismatch(found.begin(), found.end(), expected.begin());
  if (bad != found.end()) {
    const std::uint64_t begin =
        static_cast<std::uint64_t>(bad - found.begin()) * CheckpointManifest::kBlockBytes;
    const std::uint64_t end = begin + CheckpointManifest::kBlockBytes;
    throw InputError(fmt::format("damaged: bytes {} to {} have another checksum; they hold {}",
                                 begin,
                                 std::min(end, manifest_.files[index].bytes),
                                 parameters_at(index, begin, end)),
                     files_[index].path(),
                     "use another checkpoint");
  }
}

std::string CheckpointReader::parameters_at(std::size_t file,
                                            std::uint64_t begin,
                                            std::uint64_t end) const {
  std::vector<std::string> names;
  for (const CheckpointManifest::Extent& extent : manifest_.extents) {
    const std::uint64_t last =
        extent.offset + static_cast<std::uint64_t>(extent.end - extent.begin) * sizeof(float);
    if (extent.file == file && extent.offset < end && last > begin) {
      names.push_back(fmt::format(
          "{} of {}", manifest_.states[extent.state], manifest_.parameters[extent.parameter].name));
    }
  }
  if (names.size() > 4) {
    names[3] = fmt::format("{} more", names.size() - 3);
    names.resize(4);
  }
  return names.empty() ? "the header" : fmt::format("{}", fmt::join(names, ", "));
}

void CheckpointReader::read(std::size_t parameter,
                            std::size_t state,
                            std::int64_t begin,
                            std::span<float> values) const {
  const auto& extents = manifest_.extents;
  const std::int64_t end = begin + static_cast<std::int64_t>(values.size());
  auto extent = std::partition_point(extents.begin(), extents.end(), [&](const auto& other) {
    return std::tie(other.parameter, other.state, other.end) <
           std::make_tuple(parameter, state, begin + 1);
  });
  for (std::int64_t at = begin; at < end; ++extent) {
    ZERO_CHECK(extent != extents.end() && extent->parameter == parameter &&
                   extent->state == state && extent->begin <= at && at < extent->end,
               "a checkpoint is read outside its parameters");
    const std::int64_t count = std::min(end, extent->end) - at;
    const std::span<float> piece =
        values.subspan(static_cast<std::size_t>(at - begin), static_cast<std::size_t>(count));
    files_[extent->file].read_at(
        std::as_writable_bytes(piece),
        extent->offset + static_cast<std::uint64_t>(at - extent->begin) * sizeof(float));
    at += count;
  }
}

std::vector<std::string> checkpoint_tags(const std::string& dir) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name[0] != '.' && fs::exists(entry.path() / "manifest.json", ignored)) {
      found.emplace_back(fs::last_write_time(entry.path() / "manifest.json", ignored), name);
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> tags;
  for (auto& [time, name] : found) {
    tags.push_back(std::move(name));
  }
  return tags;
}

void remove_old_checkpoints(const std::string& dir, std::size_t keep) {
  const std::vector<std::string> tags = checkpoint_tags(dir);
  const std::string latest = tags.empty() ? "" : latest_tag(dir);
  std::error_code ignored;
  for (std::size_t i = 0; i + keep < tags.size(); ++i) {
    if (tags[i] != latest) {
      fs::remove_all(fs::path(dir) / tags[i], ignored);
    }
  }
}

}  // namespace zero
