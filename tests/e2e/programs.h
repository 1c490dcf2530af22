#pragma once

#include <support/process.h>
#include <support/temporary_folder.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace zero::testing {

/// A folder with what a small training run needs: model, configuration and text.
class SmallRun {
 public:
  explicit SmallRun(int stage = 3);

  /// train_lm on this folder's files with 5 steps; `more` comes last and overrides.
  [[nodiscard]] std::vector<std::string> command(
      std::initializer_list<std::string> more = {}) const;
  [[nodiscard]] support::CommandResult run(std::initializer_list<std::string> more = {},
                                           const support::CommandOptions& options = {}) const;

  /// Path of a file in the folder.
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  /// Writes a file into the folder and returns its path.
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const;
  /// Names in the folder, sorted, without those of the run's own input.
  [[nodiscard]] std::vector<std::string> new_files() const;

 private:
  support::TemporaryFolder folder_;
  std::string config_;
  std::string model_;
  std::string text_;
};

/// Path of a program of the build.
[[nodiscard]] std::string program(const std::string& name);
/// mpirun with what it needs to start on one machine, without the program.
[[nodiscard]] std::vector<std::string> mpirun(int ranks);
/// The line that starts with "error: " if the text has one line and that one does, else "".
[[nodiscard]] std::string only_error_line(const std::string& text);
/// Back ends of this build: "local", and "mpi" if there is one.
[[nodiscard]] std::vector<std::string> back_ends();
/// The line "error: …" if the text ends with one and has no other, whatever progress came before.
[[nodiscard]] std::string last_error_line(const std::string& text);
/// The number behind "loss=" in a program's output; NaN if there is none.
[[nodiscard]] double printed_loss(const std::string& out);

}  // namespace zero::testing
