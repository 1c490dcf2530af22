// Memory and bandwidth of one save and one load: bench/checkpoint.sh says how to run it.
#include <zero/core/error.h>
#include <zero/core/file.h>
#include <zero/engine/engine.h>
#include <zero/engine/launch.h>
#include <zero/nn/gpt.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using namespace zero;  // NOLINT(google-build-using-namespace): program

struct Options {
  std::string dir;
  std::int64_t layers = 33;
  std::int64_t hidden = 1024;
  std::string precision = "fp32";
  int stage = 3;
};

constexpr std::int64_t kTokens = 32;

/// A value of /proc/self/status, in bytes.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) {
      return std::stoll(line.substr(key.size() + 1)) * 1024;
    }
  }
  throw InternalError("no " + key + " in /proc/self/status");
}

/// What `body` needs of resident memory beyond what there was before it, and its time.
struct Cost {
  double seconds = 0.0;
  std::int64_t extra_bytes = 0;
};

Cost measure(const std::function<void()>& body) {
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM starts again
  const std::int64_t before = status_bytes("VmRSS");
  const auto start = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {elapsed.count(), status_bytes("VmHWM") - before};
}

std::uint64_t bytes_below(const std::string& dir, bool forget) {
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file()) {
      const File file = File::open_to_read(entry.path().string());
      bytes += file.size_bytes();
      if (forget) {
        (void)::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
      }
    }
  }
  return bytes;
}

std::string write_config(const Options& options, int rank) {
  const std::string path = fmt::format("{}/ds-{}.json", options.dir, rank);
  std::string top;
  if (options.precision != "fp32") {
    top = fmt::format(R"("{}": {{"enabled": true}}, )", options.precision);
  }
  std::ofstream(path) << fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, {}"optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}},
 "zero_optimization": {{"stage": {}}}}})",
      top,
      options.stage);
  return path;
}

Batch batch() {
  const std::vector<std::int32_t> tokens(kTokens, 1);
  const Shape shape{1, kTokens};
  return {HostTensor::copy_of(std::span<const std::int32_t>(tokens), shape),
          HostTensor::copy_of(std::span<const std::int32_t>(tokens), shape)};
}

int run(const Options& options, World& world) {
  nn::GptConfig sizes;
  sizes.layers = options.layers;
  sizes.hidden = options.hidden;
  sizes.heads = options.hidden / 64;
  sizes.inner = 4 * options.hidden;
  sizes.positions = kTokens;
  sizes.vocabulary = 256;
  nn::Gpt model(sizes);
  const auto engine = initialize(
      {.world = world, .model = model, .config = write_config(options, world.group.rank())});
  engine->backward(engine->forward(batch()));
  engine->step();
  engine->synchronize();
  const std::string saved = options.dir + "/saved";
  const Cost save = measure([&] { (void)engine->save_checkpoint(saved); });
  const std::uint64_t bytes = bytes_below(saved, true);
  const Cost load = measure([&] { (void)engine->load_checkpoint(saved); });
  const auto gb_s = [&](const Cost& cost) {
    return static_cast<double>(bytes) / 1e9 / cost.seconds;
  };
  std::cout << nlohmann::ordered_json{{"rank", world.group.rank()},
                                      {"parameters", sizes.elems()},
                                      {"bytes", bytes},
                                      {"save_gb_s", gb_s(save)},
                                      {"load_gb_s", gb_s(load)},
                                      {"save_extra_mib", save.extra_bytes >> 20},
                                      {"load_extra_mib", load.extra_bytes >> 20}}
                       .dump() +
                   "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"Saves and loads a model once; every rank prints one JSON line."};
  Options options;
  app.add_option("--dir", options.dir, "empty folder on the disk to measure")->required();
  app.add_option("--layers", options.layers)->capture_default_str();
  app.add_option("--hidden", options.hidden, "a multiple of 64")->capture_default_str();
  app.add_option("--precision", options.precision, "fp32, fp16 or bf16")->capture_default_str();
  app.add_option("--stage", options.stage)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return launch({}, [&](World& world) { return run(options, world); });
} catch (const std::exception& error) {
  return zero::report_error(error);
}
