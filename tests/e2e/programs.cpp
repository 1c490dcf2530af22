#include "programs.h"

#include <algorithm>
#include <filesystem>
#include <limits>

namespace zero::testing {
namespace {

std::string ds_config(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
             "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
             "zero_optimization": {"stage": )" +
         std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}})";
}

constexpr const char* kModel = R"({
  "model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32,
  "vocab_size": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})";

/// Prose with repetitions, so that a small model learns something in a few steps.
std::string prose() {
  std::string all;
  for (int i = 0; i < 200; ++i) {
    all += "The " + std::to_string(i % 7) + " ships sail north, and the sea is calm. ";
  }
  return all;
}

}  // namespace

SmallRun::SmallRun(int stage)
    : config_(write("ds_config.json", ds_config(stage))),
      model_(write("config.json", kModel)),
      text_(write("text.txt", prose())) {}

std::string SmallRun::write(const std::string& name, const std::string& text) const {
  support::write_bytes(path(name), text);
  return path(name);
}

std::vector<std::string> SmallRun::new_files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    const std::string path = entry.path().string();
    if (path != config_ && path != model_ && path != text_) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> SmallRun::command(std::initializer_list<std::string> more) const {
  std::vector<std::string> words = {program("train_lm"),
                                    "--config",
                                    config_,
                                    "--model",
                                    model_,
                                    "--data",
                                    text_,
                                    "--steps",
                                    "5",
                                    "--threads",
                                    "1"};
  words.insert(words.end(), more);
  return words;
}

support::CommandResult SmallRun::run(std::initializer_list<std::string> more,
                                     const support::CommandOptions& options) const {
  return support::run_command(command(more), options);
}

std::string program(const std::string& name) {
  return std::string(ZERO_BIN_DIR) + "/" + name;
}

std::vector<std::string> mpirun(int ranks) {
  return {"mpirun",
          "--quiet",
          "--allow-run-as-root",
          "--oversubscribe",
          "--bind-to",
          "none",
          "-n",
          std::to_string(ranks)};
}

std::string only_error_line(const std::string& text) {
  const std::vector<std::string> lines = support::lines_of(text);
  return lines.size() == 1 && lines.front().rfind("error: ", 0) == 0 ? lines.front() : "";
}

std::vector<std::string> back_ends() {
  return ZERO_HAVE_MPI ? std::vector<std::string>{"local", "mpi"}
                       : std::vector<std::string>{"local"};
}

std::string last_error_line(const std::string& text) {
  std::string last;
  int errors = 0;
  for (const std::string& line : support::lines_of(text)) {
    const bool is_error = line.rfind("error: ", 0) == 0;
    errors += is_error ? 1 : 0;
    last = is_error ? line : "";
  }
  return errors == 1 ? last : "";
}

double printed_loss(const std::string& out) {
  for (const std::string& line : support::lines_of(out)) {
    if (line.rfind("loss=", 0) == 0) {
      return std::stod(line.substr(5));
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace zero::testing
