#include "engine/engine_run.h"
#include <support/catch.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>
#include <zero/engine/launch.h>
#include <zero/engine/safetensors.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/resource.h>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file
namespace fs = std::filesystem;

/// A part of a training: 12 samples a step, however they are split.
struct Part {
  int ranks = 2;
  int stage = 3;
  std::int64_t accumulation = 1;
  std::string precision{};
  int first = 0;
  int last = 4;
  std::string load{};  ///< folder to start from
  std::string save{};  ///< folder to end in
  std::uint64_t seed = 1;
  float dropout = 0.1F;
  bool async = false;
  std::string offload{};  ///< further members of zero_optimization, after a comma
  /// Runs on every rank after each step.
  std::function<void(Engine&, World&)> each_step{};
  /// Runs on every rank after the last step, before the save.
  std::function<void(Engine&, World&)> at_end{};
};

struct Result {
  std::vector<StepResult> steps;
  std::vector<std::vector<float>> parameters;
};

Result train(const Part& part) {
  RunSpec spec;
  spec.stage = part.stage;
  spec.precision = part.precision;
  spec.accumulation = part.accumulation;
  spec.micro_batch = 12 / part.ranks / part.accumulation;
  spec.zero_keys = R"("stage3_param_persistence_threshold": 50)" + part.offload;
  spec.top_keys = R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6}})";
  if (part.async) {
    spec.top_keys += R"(, "checkpoint": {"async_save": true})";
  }
  const std::string config = write_temporary("checkpointed.json", ds_config(spec));
  Result result;
  const LaunchOptions options{.ranks = part.ranks, .comm = "local", .device = "cpu", .threads = 1};
  (void)launch(options, [&](World& world) {
    nn::GptConfig sizes = RunSpec::tiny_gpt();
    sizes.attention_dropout = part.dropout;
    nn::Gpt model(sizes);
    const auto engine =
        initialize({.world = world, .model = model, .config = config, .seed = part.seed});
    if (!part.load.empty()) {
      ZERO_CHECK(engine->load_checkpoint(part.load).global_steps == part.first, "another step");
    }
    for (int step = part.first; step < part.last; ++step) {
      for (std::int64_t micro = 0; micro < part.accumulation; ++micro) {
        const std::int64_t sample =
            step * 12 + (micro * part.ranks + world.group.rank()) * spec.micro_batch;
        engine->backward(engine->forward(make_batch(sample, spec.micro_batch, 16, 61)));
        engine->step();
      }
      if (part.each_step) {
        part.each_step(*engine, world);
      }
    }
    if (part.at_end) {
      part.at_end(*engine, world);
    }
    if (!part.save.empty()) {
      engine->save_checkpoint(part.save);
      engine->finish_checkpoint();
    }
    for (const auto& parameter : parameters_of(model)) {
      std::vector<float> whole = engine->full_fp32_parameter(parameter->info.name);
      if (world.group.rank() == 0) {
        result.parameters.push_back(std::move(whole));
      }
    }
    if (world.group.rank() == 0) {
      result.steps = engine->take_results(true);
    }
    engine->synchronize();
    return 0;
  });
  return result;
}

bool same_steps(const std::vector<StepResult>& a, const std::vector<StepResult>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.step == y.step && std::memcmp(&x.loss, &y.loss, sizeof(double)) == 0 &&
           std::memcmp(&x.grad_norm, &y.grad_norm, sizeof(double)) == 0 && x.lr == y.lr &&
           x.loss_scale == y.loss_scale && x.skipped == y.skipped;
  });
}

/// Stops a training in its middle and goes on from the folder: must equal the whole of it.
void check_resumed(Part part) {
  const support::TemporaryFolder folder;
  const Result whole = train(part);
  Part head = part;
  head.last = part.last / 2;
  head.save = folder.path();
  const Result before = train(head);
  Part tail = part;
  tail.first = head.last;
  tail.load = folder.path();
  tail.seed = 99;  // the checkpoint's counts
  const Result after = train(tail);
  std::vector<StepResult> steps = before.steps;
  steps.insert(steps.end(), after.steps.begin(), after.steps.end());
  CHECK(same_steps(steps, whole.steps));
  CHECK(after.parameters == whole.parameters);
}

void check_any_to_any(int pairs, unsigned seed) {
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto one_of = [&](const auto& choices) { return choices[random() % choices.size()]; };
  constexpr std::array kRanks = {1, 2, 3, 4, 6};
  constexpr std::array kStages = {0, 1, 2, 3};
  constexpr std::array kPrecisions = {"", "bf16", "fp16"};
  const std::string optimizer = R"(, "offload_optimizer": {"device": "cpu"})";
  const std::array kOffloads = {
      std::string(), optimizer, optimizer + R"(, "offload_param": {"device": "cpu"})"};
  // Stage 0 offloads nothing, and only stage 3 offloads parameters.
  const auto offload_in = [&](int stage) {
    return kOffloads[random() % (stage == 0 ? 1 : stage == 3 ? 3 : 2)];
  };
  for (int pair = 0; pair < pairs; ++pair) {
    const support::TemporaryFolder folder;
    Part from;
    from.ranks = one_of(kRanks);
    from.stage = one_of(kStages);
    from.offload = offload_in(from.stage);
    from.precision = one_of(kPrecisions);
    from.save = folder.path();
    from.last = 3;
    from.dropout = 0.0F;
    const Result saved = train(from);
    Part to = from;
    to.ranks = one_of(kRanks);
    to.stage = one_of(kStages);
    to.offload = offload_in(to.stage);
    to.save = {};
    to.load = folder.path();
    to.first = 3;
    INFO(from.precision << ": " << from.ranks << " ranks of stage " << from.stage << from.offload
                        << " to " << to.ranks << " of " << to.stage << to.offload);
    CHECK(train(to).parameters == saved.parameters);
    to.last = 13;
    from.load = from.save;
    from.save = {};
    from.first = 3;
    from.last = 13;
    const Result here = train(from);
    const Result there = train(to);
    // In 16 bit another number of ranks rounds other partial sums.
    const double tolerance = from.precision.empty() ? 1e-5 : 2e-2;
    for (std::size_t step = 0; step < here.steps.size(); ++step) {
      CHECK(there.steps[step].loss == Approx(here.steps[step].loss).margin(tolerance));
    }
  }
}

std::vector<fs::path> files_below(const std::string& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

void flip(const fs::path& path, std::uint64_t at, unsigned char mask) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ mask));
}

}  // namespace

TEST_CASE("checkpoint: interrupted and resumed equals uninterrupted, bit for bit",
          "[engine][checkpoint]") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const char* precision : {"", "bf16", "fp16"}) {
      INFO("stage " << stage << " " << precision);
      check_resumed({.ranks = 2, .stage = stage, .accumulation = 2, .precision = precision});
    }
  }
  check_resumed({.ranks = 3, .stage = 3, .precision = "fp16", .last = 6});
}

TEST_CASE("checkpoint: resumes bit for bit where states live on the host", "[engine][checkpoint]") {
  const std::string optimizer = R"(, "offload_optimizer": {"device": "cpu"})";
  check_resumed({.stage = 2, .precision = "bf16", .offload = optimizer});
  check_resumed({.stage = 3, .offload = optimizer + R"(, "offload_param": {"device": "cpu"})"});
}

TEST_CASE("checkpoint: a background save keeps the step that it was asked for at",
          "[engine][checkpoint]") {
  struct Case {
    int stage;
    const char* precision;
    std::string offload;
  };
  const std::vector<Case> cases = {{0, "", ""},
                                   {1, "bf16", ""},
                                   {2, "fp16", R"(, "offload_optimizer": {"device": "cpu"})"},
                                   {3, "", ""},
                                   {3, "bf16", R"(, "offload_param": {"device": "cpu"})"}};
  for (const Case& c : cases) {
    INFO("stage " << c.stage << " " << c.precision << c.offload);
    const support::TemporaryFolder folder;
    Part part{.stage = c.stage, .precision = c.precision, .last = 5, .offload = c.offload};
    const Result whole = train(part);
    Part saving = part;
    saving.async = true;
    saving.each_step = [&](Engine& engine, World& /*world*/) {
      // Each of them waits for the one before; the updates of the next step wait for it unit by
      // unit.
      (void)engine.save_checkpoint(folder.path());
    };
    const Result saved = train(saving);
    CHECK(same_steps(saved.steps, whole.steps));
    CHECK(saved.parameters == whole.parameters);
    CHECK(checkpoint_tags(folder.path()).size() == 5);
    for (const int first : {1, 3}) {
      fs::remove(folder / "latest");
      std::ofstream(folder / "latest") << "global_step" << first << "\n";
      CHECK_NOTHROW(CheckpointReader(folder.path()).verify());
      Part tail = part;
      tail.first = first;
      tail.load = folder.path();
      CHECK(train(tail).parameters == whole.parameters);
    }
  }
}

TEST_CASE("checkpoint: a background save that fails is told by the next call, and training goes on",
          "[engine][checkpoint][errors]") {
  const support::TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  const auto refused = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const IoError&) {
      return true;
    }
    return false;
  };
  (void)train({.ranks = 2, .last = 2, .async = true, .at_end = [&](Engine& engine, World&) {
                 (void)engine.save_checkpoint(folder / "good");
                 (void)engine.save_checkpoint(folder / "file/below");
                 engine.backward(engine.forward(make_batch(0, 6, 16, 61)));
                 engine.step();
                 ZERO_CHECK(refused([&] { (void)engine.save_checkpoint(folder / "good"); }),
                            "a failed save was not told");
                 (void)engine.save_checkpoint(folder / "file/below");
                 ZERO_CHECK(refused([&] { engine.finish_checkpoint(); }), "nor at the end");
                 engine.finish_checkpoint();  // told once
                 ZERO_CHECK(engine.load_checkpoint(folder / "good").global_steps == 2,
                            "the checkpoint before is gone");
               }});
  CHECK(checkpoint_tags(folder / "good") == std::vector<std::string>{"global_step2"});
}

TEST_CASE("checkpoint: any number of ranks and stage loads any other", "[engine][checkpoint]") {
  check_any_to_any(8, 8);
}

TEST_CASE("checkpoint: 40 pairs of ranks and stages", "[.][soak]") {
  check_any_to_any(40, 2027);
}

TEST_CASE("checkpoint: inside a window it is the boundary before", "[engine][checkpoint]") {
  const support::TemporaryFolder folder;
  const Part whole{.stage = 2, .accumulation = 3, .last = 4};
  Part head = whole;
  head.last = 2;
  head.save = folder.path();
  head.at_end = [](Engine& engine, World& world) {
    engine.backward(engine.forward(make_batch(500 + world.group.rank(), 2, 16, 61)));
    engine.step();  // the first of three micro-steps
  };
  (void)train(head);
  Part tail = whole;
  tail.first = 2;
  tail.load = folder.path();
  CHECK(train(tail).parameters == train(whole).parameters);
}

TEST_CASE("checkpoint: saving into a tag replaces it, and what a killed save left goes",
          "[engine][checkpoint]") {
  const support::TemporaryFolder folder;
  fs::create_directory(folder / ".global_step1.partial");
  std::ofstream(folder / ".global_step1.partial/rank-00000.safetensors") << "half";
  const Part part{.ranks = 1, .last = 2, .at_end = [&](Engine& engine, World& /*world*/) {
                    CHECK(engine.save_checkpoint(folder.path(), "best", "first") == "best");
                    CHECK(engine.save_checkpoint(folder.path(), "best", "second") == "best");
                    CHECK(engine.load_checkpoint(folder.path()).client_state == "second");
                    CHECK(engine.save_checkpoint(folder.path()) == "global_step2");
                    CHECK(engine.load_checkpoint(folder.path()).tag == "global_step2");
                    CHECK_THROWS_AS(engine.load_checkpoint(folder.path(), "other"), InputError);
                    CHECK_THROWS_AS(engine.save_checkpoint(folder.path(), "../x"), InputError);
                    CHECK_THROWS_AS(engine.load_checkpoint(folder / "nowhere"), InputError);
                  }};
  (void)train(part);
  CHECK(checkpoint_tags(folder.path()) == std::vector<std::string>{"best", "global_step2"});
  CHECK(files_below(folder.path()).size() == 5);  // two checkpoints of two files, and latest
}

TEST_CASE("checkpoint: one flipped byte anywhere is found before a value is used",
          "[engine][checkpoint]") {
  const support::TemporaryFolder folder;
  (void)train({.ranks = 2, .last = 1, .save = folder.path()});
  const std::vector<fs::path> files = files_below(folder.path());
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    const fs::path& path = files[random() % files.size()];
    const std::uint64_t at = random() % fs::file_size(path);
    const auto mask = static_cast<unsigned char>(1U << (random() % 8));
    INFO(path << " byte " << at << " ^ " << static_cast<int>(mask));
    flip(path, at, mask);
    CHECK_THROWS_AS(CheckpointReader(folder.path()).verify(), InputError);
    if (i % 40 == 0) {
      (void)train({.ranks = 2, .last = 1, .at_end = [&](Engine& engine, World& /*world*/) {
                     const auto before = engine.full_fp32_parameter("wte.weight");
                     bool refused = false;
                     try {
                       (void)engine.load_checkpoint(folder.path());
                     } catch (const Error&) {
                       refused = true;
                     }
                     ZERO_CHECK(refused, "a damaged checkpoint was loaded");
                     ZERO_CHECK(engine.full_fp32_parameter("wte.weight") == before,
                                "a damaged checkpoint changed a value");
                   }});
    }
    flip(path, at, mask);
  }
  CHECK_NOTHROW(CheckpointReader(folder.path()).verify());
}

TEST_CASE("checkpoint: a save that fails is told to all ranks and leaves the one before",
          "[engine][checkpoint][errors]") {
  const support::TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  const auto attempt = [&](const std::string& dir) {
    (void)train({.ranks = 2, .last = 2, .at_end = [&](Engine& engine, World& world) {
                   engine.save_checkpoint(folder / "good");
                   bool refused = false;
                   rlimit old{};
                   getrlimit(RLIMIT_FSIZE, &old);
                   if (dir == folder / "good" && world.group.rank() == 0) {
                     std::signal(SIGXFSZ, SIG_IGN);
                     const rlimit small{4096, old.rlim_max};  // as a disk that is full
                     setrlimit(RLIMIT_FSIZE, &small);
                   }
                   try {
                     engine.save_checkpoint(dir, "second");
                   } catch (const IoError&) {
                     refused = true;
                   }
                   if (world.group.rank() == 0) {
                     const rlimit back{old.rlim_max, old.rlim_max};
                     setrlimit(RLIMIT_FSIZE, &back);
                   }
                   ZERO_CHECK(refused, "a save into nowhere succeeded");
                   engine.backward(engine.forward(make_batch(0, 6, 16, 61)));
                   engine.step();
                   ZERO_CHECK(engine.global_steps() == 3, "training did not go on");
                   ZERO_CHECK(engine.load_checkpoint(folder / "good").global_steps == 2,
                              "the checkpoint before is gone");
                 }});
  };
  attempt(folder / "file/below");
  attempt(folder / "good");
  CHECK(checkpoint_tags(folder / "good") == std::vector<std::string>{"global_step2"});
}

TEST_CASE("checkpoint: the 16-bit model is the master rounded once", "[engine][checkpoint]") {
  const support::TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  std::vector<float> master;
  (void)train({.precision = "bf16", .last = 1, .at_end = [&](Engine& engine, World& world) {
                 engine.save_16bit_model(path);
                 const auto whole = engine.full_fp32_parameter("wte.weight");
                 if (world.group.rank() == 0) {
                   master = whole;
                 }
               }});
  const SafetensorsReader file(path);
  CHECK(file.entry("wte.weight").dtype == "BF16");
  std::vector<float> stored(master.size());
  file.read("wte.weight", 0, stored);
  std::ranges::transform(master, master.begin(), [](float v) { return to_float(to_bfloat16(v)); });
  CHECK(stored == master);
}

TEST_CASE("checkpoint: another model or optimizer is refused by name",
          "[engine][checkpoint][errors]") {
  const support::TemporaryFolder folder;
  (void)train({.ranks = 1, .last = 1, .save = folder.path()});
  const auto message = [&](nn::GptConfig sizes, const std::string& optimizer) {
    RunSpec spec;
    spec.optimizer = optimizer;
    const std::string config = write_temporary("other.json", ds_config(spec));
    std::string text;
    (void)launch({.ranks = 1, .comm = "local", .device = "cpu", .threads = 1}, [&](World& world) {
      nn::Gpt model(sizes);
      const auto engine = initialize({.world = world, .model = model, .config = config});
      try {
        (void)engine->load_checkpoint(folder.path());
      } catch (const InputError& error) {
        text = error.what();
      }
      return 0;
    });
    return text;
  };
  const std::string adam = RunSpec{}.optimizer;
  nn::GptConfig other = RunSpec::tiny_gpt();
  other.inner = 104;
  CHECK_THAT(message(other, adam), Catch::Contains("[48, 100] in the checkpoint"));
  other = RunSpec::tiny_gpt();
  other.layers = 2;
  CHECK_THAT(message(other, adam), Catch::Contains("parameters, the model"));
  CHECK_THAT(message(RunSpec::tiny_gpt(), R"({"type": "Lion", "params": {"lr": 0.1}})"),
             Catch::Contains("exp_avg_sq"));
}

TEST_CASE("checkpoint: a hostile manifest is refused or sound, never worse",
          "[engine][checkpoint]") {
  const support::TemporaryFolder folder;
  (void)train({.ranks = 2, .last = 1, .save = folder.path()});
  const std::string good = support::read_bytes(folder / "global_step1/manifest.json");
  const auto document = nlohmann::json::parse(good.substr(0, good.size() - 17));
  std::vector<nlohmann::json::json_pointer> places;
  const auto flat = document.flatten();
  for (const auto& [path, value] : flat.items()) {
    places.emplace_back(path);
  }
  std::mt19937 random(9);
  const std::vector<nlohmann::json> values = {-1,
                                              0,
                                              1,
                                              1e300,
                                              INT64_MAX,
                                              UINT64_MAX,
                                              "",
                                              "../x",
                                              nullptr,
                                              true,
                                              nlohmann::json::array(),
                                              nlohmann::json::object()};
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    nlohmann::json changed = document;
    changed[places[random() % places.size()]] = values[random() % values.size()];
    const std::string text = changed.dump() + "\n";
    const std::string whole = text + fmt::format("{:016x}\n", XXH64(text.data(), text.size(), 0));
    try {
      (void)CheckpointManifest::from_json(whole, "test");
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(refused > 1500);
  CHECK_THROWS_AS(CheckpointManifest::from_json("", "test"), InputError);
  CHECK_THROWS_AS(CheckpointManifest::from_json(good.substr(1), "test"), InputError);
}
