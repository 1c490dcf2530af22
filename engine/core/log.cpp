#include <zero/core/log.h>

#include <array>
#include <chrono>
#include <cstdio>

namespace zero {

void Log::write(LogLevel level, std::string_view module, std::string_view text) {
  static constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto second = std::chrono::duration_cast<std::chrono::seconds>(now).count() % 86400;
  const std::string line = fmt::format("{:02}:{:02}:{:02} {} rank {} {}: {}\n",
                                       second / 3600,
                                       second / 60 % 60,
                                       second % 60,
                                       kNames.at(static_cast<std::size_t>(level)),
                                       rank_,
                                       module,
                                       text);
  // One call writes the whole line, so that lines of several ranks do not mix.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace zero
