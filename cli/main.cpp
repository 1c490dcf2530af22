#include "cli/commands.h"
#include <zero/core/error.h>

#include <cstdio>
#include <exception>

namespace {

int fail(const char* what, zero::ExitCode code) {
  (void)std::fprintf(stderr, "error: %s\n", what);
  return static_cast<int>(code);
}

int run(int argc, char** argv) {
  CLI::App app("ZeRO engine: trains models too large for one device", "zero");
  app.require_subcommand(1);
  int status = 0;
  zero::cli::add_validate(app, status);
  zero::cli::add_explain(app, status);
  zero::cli::add_convert(app, status);
  zero::cli::add_checkpoint(app, status);
  zero::cli::add_plan(app, status);
  zero::cli::add_estimate(app, status);
  zero::cli::add_bench(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error);  // --help
    }
    return fail((std::string(error.what()) + ", command line, see zero --help").c_str(),
                zero::ExitCode::kBadInput);
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const zero::Error& error) {
    return fail(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return fail("no memory", zero::ExitCode::kEnvironment);
  } catch (const std::exception& error) {
    return fail(error.what(), zero::ExitCode::kInternal);
  }
}
