// Saving and loading on disks that fail, at every call in turn.
#include "engine/engine_run.h"
#include <support/catch.h>
#include <support/file_faults.h>
#include <support/temporary_folder.h>
#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>
#include <zero/engine/launch.h>

#include <barrier>
#include <cerrno>
#include <filesystem>
#include <optional>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file
using support::FileFault;
namespace fs = std::filesystem;

constexpr int kRanks = 2;

void train_step(Engine& engine, const World& world) {
  engine.backward(engine.forward(make_batch(2 * world.group.rank(), 2, 16, 61)));
  engine.step();
}

void run(bool async, const std::function<void(Engine&, World&)>& body) {
  RunSpec spec;
  spec.stage = 3;
  spec.micro_batch = 2;
  if (async) {
    spec.top_keys = R"("checkpoint": {"async_save": true})";
  }
  const std::string config = write_temporary("faults.json", ds_config(spec));
  const LaunchOptions options{.ranks = kRanks, .comm = "local", .device = "cpu", .threads = 1};
  (void)launch(options, [&](World& world) {
    nn::Gpt model(RunSpec::tiny_gpt());
    const auto engine = initialize({.world = world, .model = model, .config = config});
    train_step(*engine, world);
    body(*engine, world);
    engine->synchronize();
    return 0;
  });
}

/// One of the ranks arms the fault number 0, 1, 2, … for what all do next, until there is no such
/// call. `call` says whether it failed; `check(failed)` runs on one rank while the others wait.
int for_each_fault(FileFault::Calls calls,
                   const std::function<int()>& hook,
                   World& world,
                   std::barrier<>& all,
                   const std::function<bool()>& call,
                   const std::function<void(bool failed)>& check) {
  static bool again;                      // shared by the ranks, which are threads
  static std::optional<FileFault> fault;  // as above
  for (int nth = 0;; ++nth) {
    if (world.group.rank() == 0) {
      fault.emplace(calls, nth, hook);
    }
    all.arrive_and_wait();
    const bool failed = call();
    all.arrive_and_wait();
    if (world.group.rank() == 0) {
      again = fault->struck();
      fault.reset();
      INFO("call " << nth);
      REQUIRE((again || !failed));
      check(failed);
    }
    all.arrive_and_wait();
    if (!again) {
      return nth;
    }
  }
}

bool fails(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// Saves into a folder that holds a checkpoint, with a fault at each call in turn. `mend` undoes
/// what the hook has done. The one before or the new one must be there, whole, each time, and
/// training must go on.
void check_saves(bool async,
                 const std::function<int(const std::string& dir)>& hook,
                 const std::function<void(const std::string& dir)>& mend,
                 bool harmless = false) {
  const support::TemporaryFolder folder;
  const std::string dir = folder / "saved";
  std::barrier<> all(kRanks);
  run(async, [&](Engine& engine, World& world) {
    (void)engine.save_checkpoint(dir, "good");
    engine.finish_checkpoint();
    std::string tag = "good";
    int failures = 0;
    const int faults = for_each_fault(
        FileFault::Calls::kChange,
        [&] { return hook(dir); },
        world,
        all,
        [&] {
          return fails([&] {
            (void)engine.save_checkpoint(dir, "next");
            engine.finish_checkpoint();
          });
        },
        [&](bool failed) {
          mend(dir);
          const CheckpointReader reader(dir);
          reader.verify();
          CHECK((reader.tag() == "next" || (failed && reader.tag() == tag)));
          failures += failed ? 1 : 0;
          tag = reader.tag();
        });
    CHECK(faults > 20);
    if (world.group.rank() == 0) {
      CHECK((harmless ? failures == 0 : failures > faults / 2));
    }
    train_step(engine, world);
    CHECK(engine.load_checkpoint(dir).tag == "next");
    CHECK(engine.global_steps() == 1);
  });
}

}  // namespace

TEST_CASE("checkpoint: a disk that fails at any call of a save leaves a whole checkpoint",
          "[engine][checkpoint][errors]") {
  const auto nothing = [](const std::string& /*dir*/) {};
  for (const bool async : {false, true}) {
    // EINVAL is also what file systems say that cannot do a thing.
    for (const int error : {ENOSPC, EIO, EINVAL}) {
      INFO((async ? "async, errno " : "errno ") << error);
      check_saves(
          async, [&](const std::string& /*dir*/) { return error; }, nothing);
    }
  }
}

TEST_CASE("checkpoint: transfers that stop half-way are continued", "[engine][checkpoint]") {
  check_saves(
      false,
      [](const std::string& /*dir*/) { return FileFault::kHalf; },
      [](const std::string& /*dir*/) {},
      /*harmless=*/true);
}

TEST_CASE("checkpoint: a folder that vanishes at any call of a save is told",
          "[engine][checkpoint][errors]") {
  check_saves(
      false,
      [](const std::string& dir) {
        fs::rename(dir, dir + ".moved");
        return FileFault::kGoOn;
      },
      [](const std::string& dir) {
        if (fs::exists(dir + ".moved")) {
          fs::remove_all(dir);
          fs::rename(dir + ".moved", dir);
        }
      });
}

TEST_CASE("checkpoint: a disk that fails at any call of a load is told on every rank",
          "[engine][checkpoint][errors]") {
  const support::TemporaryFolder folder;
  std::barrier<> all(kRanks);
  for (const int answer : {EIO, FileFault::kHalf}) {
    run(false, [&](Engine& engine, World& world) {
      (void)engine.save_checkpoint(folder.path());
      const auto load = [&] { (void)engine.load_checkpoint(folder.path()); };
      const int faults = for_each_fault(
          FileFault::Calls::kRead,
          [&] { return answer; },
          world,
          all,
          [&] { return fails(load); },
          [](bool /*failed*/) {});
      CHECK(faults > 20);
      CHECK_FALSE(fails(load));
    });
  }
}
