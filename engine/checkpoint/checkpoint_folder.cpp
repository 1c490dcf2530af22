#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>

#include <filesystem>

namespace zero {
namespace fs = std::filesystem;

void write_new_file(const std::string& path, std::string_view text) {
  File file = File::create(path);
  file.write_at(std::as_bytes(std::span(text)), 0);
  file.sync();
  file.close();
}

CheckpointFolder::CheckpointFolder(std::string dir, std::string tag)
    : dir_(std::move(dir)),
      tag_(std::move(tag)),
      partial_((fs::path(dir_) / ("." + tag_ + ".partial")).string()) {}

std::string CheckpointFolder::file(const std::string& name) const {
  return (fs::path(partial_) / name).string();
}

std::vector<std::string> CheckpointFolder::prepare() const {
  std::vector<std::string> removed;
  std::error_code error;
  fs::create_directories(dir_, error);
  if (!error) {
    for (const fs::directory_entry& entry : fs::directory_iterator(dir_, error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".") && name.ends_with(".partial")) {
        fs::remove_all(entry.path(), error);
        removed.push_back(entry.path().string());
      }
    }
  }
  if (!error) {
    fs::create_directory(partial_, error);
  }
  if (error) {
    throw IoError("cannot make the folder of the checkpoint: " + error.message(),
                  partial_,
                  "choose another folder or change its rights");
  }
  return removed;
}

void CheckpointFolder::publish() const {
  replace_folder(partial_, (fs::path(dir_) / tag_).string());
  const std::string beside = (fs::path(dir_) / ".latest.partial").string();
  std::error_code ignored;
  fs::remove(beside, ignored);
  write_new_file(beside, tag_ + "\n");
  replace_file(beside, (fs::path(dir_) / "latest").string());
}

void CheckpointFolder::discard() const noexcept {
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

}  // namespace zero
