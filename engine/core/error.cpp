#include <zero/core/error.h>

namespace zero {
namespace {

std::string join(std::string_view what, std::string_view where, std::string_view todo) {
  std::string line(what);
  for (const std::string_view part : {where, todo}) {
    if (!part.empty()) {
      line += ", ";
      line += part;
    }
  }
  return line;
}

}  // namespace

Error::Error(ExitCode code, std::string_view what, std::string_view where, std::string_view todo)
    : std::runtime_error(join(what, where, todo)), code_(code) {}

void check_failed(const char* condition, const std::string& message, const char* file, int line) {
  throw InternalError("broken invariant: " + message + " (" + condition + ")",
                      std::string(file) + ":" + std::to_string(line),
                      "please report it with the command that shows it");
}

}  // namespace zero
