#include "examples/progress.h"

#include <fmt/format.h>

#include <cstdio>
#include <unistd.h>

namespace zero::examples {
namespace {

constexpr auto kRewriteEvery = std::chrono::milliseconds(100);
constexpr auto kPlainLineEvery = std::chrono::seconds(5);
/// Runs this short get a plain line for each step.
constexpr std::int64_t kFewSteps = 20;

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

void put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);  // one call a line: ranks do not mix
  std::fflush(stderr);
}

}  // namespace

Progress::Progress(const Facts& facts) : facts_(facts), terminal_(isatty(STDERR_FILENO) == 1) {}

std::string Progress::line(const StepView& view) const {
  const double share = facts_.machine_flops > 0.0
                           ? 100.0 * tokens_per_s_ * facts_.flops_per_token / facts_.machine_flops
                           : 0.0;
  const double left = static_cast<double>(facts_.steps - view.step) * facts_.tokens_per_step;
  return fmt::format(
      "step {}/{}  loss {:.4f}  {:.0f} tokens/s  {:.0f}% of the speed limit  lr {:.3g}  memory "
      "{:.1f} MiB  ETA {}",
      view.step,
      facts_.steps,
      view.loss,
      tokens_per_s_,
      share,
      view.lr,
      static_cast<double>(view.memory_bytes) / 0x1p20,
      duration(tokens_per_s_ > 0.0 ? left / tokens_per_s_ : 0.0));
}

void Progress::show(const StepView& view) {
  tokens_per_s_ =
      tokens_per_s_ > 0.0 ? 0.9 * tokens_per_s_ + 0.1 * view.tokens_per_s : view.tokens_per_s;
  const auto now = std::chrono::steady_clock::now();
  const bool ends = view.step == 1 || view.step == facts_.steps;
  if (terminal_) {
    if (ends || now - last_ >= kRewriteEvery) {
      put("\r\x1b[K" + line(view));
      open_ = true;
      last_ = now;
    }
  } else if (ends || facts_.steps <= kFewSteps || now - last_ >= kPlainLineEvery) {
    put(line(view) + "\n");
    last_ = now;
  }
}

void Progress::say(const std::string& text) {
  finish();
  put(text + "\n");
}

void Progress::finish() {
  if (open_) {
    put("\n");
    open_ = false;
  }
}

}  // namespace zero::examples
