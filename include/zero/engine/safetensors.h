#pragma once

#include <zero/core/dtype.h>
#include <zero/core/file.h>
#include <zero/core/param_info.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

/// One tensor as the header of a safetensors file describes it.
struct SafetensorsEntry {
  std::string dtype;                ///< code of the format: "F32", "F16", "BF16", "I64", …
  std::vector<std::int64_t> shape;  ///< row-major; empty: a scalar
  std::int64_t elems = 0;
  std::uint64_t begin = 0;  ///< byte offset in the file
  std::uint64_t end = 0;
};

/// An open safetensors file. The header is taken as hostile: every rule of the format
/// (docs/FORMATS.md) is checked when it is opened, so that reads need no further check. Thread:
/// reads may run at the same time.
class SafetensorsReader {
 public:
  /// InputError, with one reason, if the file does not obey the format; IoError if it cannot be
  /// read.
  explicit SafetensorsReader(const std::string& path);

  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }
  [[nodiscard]] const std::map<std::string, SafetensorsEntry, std::less<>>& entries()
      const noexcept {
    return entries_;
  }
  /// InputError if there is none.
  [[nodiscard]] const SafetensorsEntry& entry(std::string_view name) const;
  /// Elements [begin, begin + values.size()) of F32, F16 or BF16 as fp32, exactly. InputError for
  /// another dtype.
  void read(std::string_view name, std::int64_t begin, std::span<float> values) const;

 private:
  File file_;
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
};

class StreamedFile;

/// Writes a safetensors file in pieces of any order, without ever holding a tensor; fastest, around
/// the page cache, where they come in the order of the file.
///
/// Everything goes into a temporary file beside the target; finish() makes it durable and gives it
/// its name, so the target is old or new, never half. The destructor removes what was not finished.
/// Equal tensors give equal bytes. Thread: one at a time.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;  ///< fp32, fp16 or bf16
    Shape shape;
  };
  /// Order of tensors in the file: that of the format's own writers (wide elements first, then by
  /// name), or as given, which must then be aligned.
  enum class Order { kFormat, kGiven };
  /// Writes the header and reserves the space. IoError naming path and bytes if there is too
  /// little.
  SafetensorsWriter(std::string path, std::vector<Tensor> tensors, Order order = Order::kFormat);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  SafetensorsWriter(SafetensorsWriter&&) = delete;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  /// Elements [begin, begin + values.size()) of a tensor, rounded once to its dtype. Each element
  /// once.
  void write(std::string_view name, std::int64_t begin, std::span<const float> values);
  /// Closes the file under its own name. InternalError if elements are missing.
  void finish();
  /// XXH64 of each CheckpointManifest::kBlockBytes of the file, if everything was written in the
  /// order of the file.
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> block_sums() const;

 private:
  struct Place {
    DType dtype = DType::kF32;
    std::int64_t elems = 0;
    std::int64_t written = 0;
    std::uint64_t begin = 0;  ///< byte offset in the file
  };

  std::string path_;
  std::string temporary_;
  std::unique_ptr<StreamedFile> file_;
  std::map<std::string, Place, std::less<>> places_;
  bool finished_ = false;
};

/// Weights of a HuggingFace GPT-2 model: names with or without "transformer.", attention masks and
/// a stored tied head skipped.
///
/// `path`: a .safetensors file, or a folder with model.safetensors or with shards and their
/// model.safetensors.index.json. Copies share the open files.
class PretrainedWeights {
 public:
  explicit PretrainedWeights(const std::string& path);

  /// What is stored, by name: fp32 parameters of these shapes. InputError for what no parameter can
  /// be.
  [[nodiscard]] std::vector<ParamInfo> parameters() const;
  /// InputError unless the file has exactly these parameters with these shapes.
  void check(std::span<const ParamInfo> parameters) const;
  /// Elements [begin, begin + values.size()) of a parameter; usable as zero::InitialValues.
  void operator()(const ParamInfo& parameter, std::int64_t begin, std::span<float> values) const;

 private:
  struct Place {
    std::shared_ptr<const SafetensorsReader> file;
    std::string stored_name;
  };
  void add_file(const std::string& path);
  [[nodiscard]] const Place& place_of(const std::string& name) const;
  [[nodiscard]] static const SafetensorsEntry& entry_of(const Place& place);

  std::string path_;
  std::map<std::string, Place> places_;  // by the parameter's name
};

}  // namespace zero
