#pragma once

#include <zero/core/file.h>
#include <zero/engine/loss_scaler.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

class PretrainedWeights;

/// Everything about a checkpoint but its values (manifest.json, docs/FORMATS.md). It says nothing
/// that a reader needs to know of the writer's ranks, stage or offload.
struct CheckpointManifest {
  struct Parameter {
    std::string name;
    std::vector<std::int64_t> shape;
    bool trainable = true;
    int group = 0;
    [[nodiscard]] std::int64_t elems() const noexcept;
  };
  struct Group {
    double lr = 0.0;
    double weight_decay = 0.0;
  };
  struct DataFile {
    std::string name;  ///< in the folder of the checkpoint
    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> block_sums;  ///< XXH64 of each kBlockBytes of the file
  };
  /// Elements [begin, end) of one state of a parameter lie as fp32 at byte `offset` of a file.
  struct Extent {
    std::size_t parameter = 0;
    std::size_t state = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::size_t file = 0;
    std::uint64_t offset = 0;
  };
  static constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;
  /// Name in its file of the extent that starts at element `begin`.
  [[nodiscard]] static std::string extent_name(std::string_view state,
                                               std::string_view parameter,
                                               std::int64_t begin);

  int ranks = 1;          ///< that wrote it
  int stage = 0;          ///< that wrote it
  std::string precision;  ///< dtype of the model: fp32, fp16 or bf16
  std::uint64_t seed = 0;
  std::string optimizer;            ///< empty: weights that no training has written
  std::vector<std::string> states;  ///< "master", then those of the optimizer
  std::vector<Parameter> parameters;
  std::vector<Group> groups;
  std::map<std::string, std::int64_t> counters;
  LossScaler::State loss_scaler;
  std::map<std::string, std::vector<float>> buffers;  ///< of the model, by name
  std::string client_state;                           ///< the caller's own text
  std::vector<DataFile> files;
  std::vector<Extent> extents;  ///< of each (parameter, state) in order and without gaps

  /// JSON text, and back. from_json checks everything that does not need the files: InputError,
  /// naming `where`.
  [[nodiscard]] std::string to_json() const;
  [[nodiscard]] static CheckpointManifest from_json(std::string_view text,
                                                    const std::string& where);
};

/// A checkpoint folder that is complete. Thread: one at a time.
class CheckpointReader {
 public:
  /// Opens DIR/TAG; without a tag the one that DIR/latest names. InputError if there is none, or
  /// if the manifest is damaged.
  explicit CheckpointReader(const std::string& dir, const std::string& tag = {});

  [[nodiscard]] const CheckpointManifest& manifest() const noexcept { return manifest_; }
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
  [[nodiscard]] const std::string& tag() const noexcept { return tag_; }
  /// Compares every block of files first, first + step, … with its sum. InputError naming file,
  /// block and the parameters in it.
  void verify(std::size_t first = 0, std::size_t step = 1) const;
  /// Elements [begin, begin + values.size()) of a state of a parameter.
  void read(std::size_t parameter,
            std::size_t state,
            std::int64_t begin,
            std::span<float> values) const;

 private:
  void verify_file(std::size_t index) const;
  [[nodiscard]] std::string parameters_at(std::size_t file,
                                          std::uint64_t begin,
                                          std::uint64_t end) const;

  std::string folder_;
  std::string tag_;
  CheckpointManifest manifest_;
  std::vector<File> files_;
};

/// A checkpoint that is being written: DIR/.TAG.partial, until it takes its name. One process calls
/// what changes the folder. Throws IoError.
class CheckpointFolder {
 public:
  CheckpointFolder(std::string dir, std::string tag);

  /// Where a file of it is written.
  [[nodiscard]] std::string file(const std::string& name) const;
  /// Makes the folder and gives what interrupted saves had left in DIR, which is removed.
  std::vector<std::string> prepare() const;
  /// All files are complete and on the disk: the folder takes its name, then `latest` names it.
  void publish() const;
  /// Removes what has been written.
  void discard() const noexcept;

 private:
  std::string dir_;
  std::string tag_;
  std::string partial_;
};

/// Writes a file that must not exist yet and brings it to the disk.
void write_new_file(const std::string& path, std::string_view text);

/// XXH64 of each block of a file, read once.
[[nodiscard]] std::vector<std::uint64_t> block_sums_of(const File& file);

/// Makes DIR/global_step0 of weights alone: loading it starts a training from them. InputError if
/// `dir` holds checkpoints already; IoError.
void write_weights_checkpoint(const PretrainedWeights& weights, const std::string& dir);

/// Names of complete checkpoints in a folder, oldest first.
[[nodiscard]] std::vector<std::string> checkpoint_tags(const std::string& dir);
/// Removes all complete checkpoints but the `keep` newest and the one that `latest` names. What
/// cannot be removed stays. One process calls it.
void remove_old_checkpoints(const std::string& dir, std::size_t keep);

}  // namespace zero
