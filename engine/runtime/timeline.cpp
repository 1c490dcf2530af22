#include "engine/runtime/parts.h"
#include <zero/core/file.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

namespace zero {
namespace {

using Json = nlohmann::ordered_json;

/// Bytes of the ranks' text that travel at a time.
constexpr std::int64_t kChunkBytes = 1 << 20;
/// Clocks of ranks that differ by more are those of different nodes.
constexpr std::int64_t kOtherNode_ns = 1'000'000'000;
constexpr double kMillisecond_ns = 1e6;
/// Steps between two reports where the file says nothing. Source: DeepSpeed.
constexpr std::int64_t kStepsPerReport = 10;

double microseconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e3;
}

/// The events of one rank, one a line, each followed by a comma. `shift_ns` is added to its clock.
std::string events_of(const RankContext& context, std::int64_t shift_ns) {
  std::string text;
  const auto add = [&text](const Json& event) { text += event.dump() + ",\n"; };
  std::map<std::string, int> tracks;
  add({{"ph", "M"},
       {"name", "process_name"},
       {"pid", context.rank},
       {"args", {{"name", fmt::format("rank {}", context.rank)}}}});
  for (const TimeSpan& span : context.timeline.spans()) {
    const auto [track, is_new] = tracks.try_emplace(span.track, static_cast<int>(tracks.size()));
    if (is_new) {
      add({{"ph", "M"},
           {"name", "thread_name"},
           {"pid", context.rank},
           {"tid", track->second},
           {"args", {{"name", span.track}}}});
    }
    add({{"ph", "X"},
         {"name", span.name},
         {"cat", activity_name(span.activity)},
         {"pid", context.rank},
         {"tid", track->second},
         {"ts", microseconds(span.begin_ns + shift_ns)},
         {"dur", microseconds(span.end_ns - span.begin_ns)},
         {"args", {{"bytes", span.bytes}}}});
  }
  for (const CounterSample& sample : context.timeline.counters()) {
    Json values = Json::object();
    for (const auto& [name, value] : sample.values) {
      values[std::string(name)] = value;
    }
    add({{"ph", "C"},
         {"name", sample.name},
         {"pid", context.rank},
         {"ts", microseconds(sample.at_ns + shift_ns)},
         {"args", values}});
  }
  return text;
}

/// Every rank's value on every rank. Blocks; collective.
std::vector<std::int64_t> all_values(World& world, accel::Stream& stream, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.group.size()));
  const accel::Buffer memory =
      world.device.allocate((all.size() + 1) * sizeof(mine), Category::kOther);
  const TensorView whole = memory.view(DType::kI64, Shape{world.group.size() + 1});
  const TensorView own = whole.slice(0, 1);
  const TensorView others = whole.slice(1, world.group.size());
  world.device.copy(view_of(std::span<const std::int64_t>(&mine, 1)), own, stream);
  (void)world.group.all_gather(own, others, stream, comm::Payload::kControl);
  world.device.copy(others, view_of(std::span(all)), stream);
  stream.synchronize();
  return all;
}

/// Brings another rank's text to rank 0, chunk by chunk. Called by these two ranks.
void bring_text(World& world,
                accel::Stream& stream,
                int from,
                std::int64_t bytes,
                std::string text,
                const std::function<void(std::string_view)>& take) {
  const accel::Buffer memory =
      world.device.allocate(static_cast<std::size_t>(kChunkBytes), Category::kStaging);
  for (std::int64_t done = 0; done < bytes; done += kChunkBytes) {
    const Shape shape{std::min(kChunkBytes, bytes - done)};
    const TensorView chunk = memory.view(DType::kU8, shape);
    if (world.group.rank() == from) {
      const TensorView host{reinterpret_cast<std::byte*>(text.data() + done), DType::kU8, shape};
      world.device.copy(host, chunk, stream);
      (void)world.group.send(chunk, 0, stream);
      stream.synchronize();
    } else {
      std::string part(static_cast<std::size_t>(shape.elems()), '\0');
      (void)world.group.recv(chunk, from, stream);
      world.device.copy(
          chunk, {reinterpret_cast<std::byte*>(part.data()), DType::kU8, shape}, stream);
      stream.synchronize();
      take(part);
    }
  }
}

std::string in_ms(const ActivitySums& sums, Activity activity, std::int64_t steps) {
  const ActivitySum& sum = sums.at(static_cast<std::size_t>(activity));
  return fmt::format("{} {:.2f} ms",
                     activity_name(activity),
                     static_cast<double>(sum.ns) / kMillisecond_ns / static_cast<double>(steps));
}

}  // namespace

void Engine::write_trace(const std::string& path) {
  EngineParts& parts = *parts_;
  World& world = parts.world;
  accel::Stream& stream = *parts.comm;
  parts.synchronize();
  if (!world.context.timeline.keeps_spans()) {
    throw InputError(
        "no timeline was recorded", "Engine::write_trace", "set InitializeOptions::trace");
  }
  const std::vector<std::int64_t> clocks = all_values(world, stream, Timeline::now_ns());
  const std::int64_t ahead = clocks.front() - clocks[static_cast<std::size_t>(world.group.rank())];
  std::string text =
      events_of(world.context, std::abs(ahead) > kOtherNode_ns ? ahead : std::int64_t{0});
  const std::vector<std::int64_t> sizes =
      all_values(world, stream, static_cast<std::int64_t>(text.size()));
  const std::string beside = path + ".partial";
  File file;
  std::uint64_t written = 0;
  const auto write = [&](std::string_view part) {
    file.write_at(std::as_bytes(std::span(part)), written);
    written += part.size();
  };
  const bool writes = world.group.rank() == 0;
  parts.together(parts.lane(), [&] {
    if (writes) {
      std::filesystem::remove(beside);
      file = File::create(beside);
      write("{\"traceEvents\":[\n");
      write(text);
    }
  });
  for (int rank = 1; rank < world.group.size(); ++rank) {
    const std::int64_t bytes = sizes[static_cast<std::size_t>(rank)];
    if (writes || world.group.rank() == rank) {
      bring_text(world, stream, rank, bytes, writes ? std::string() : std::move(text), write);
    }
  }
  parts.together(parts.lane(), [&] {
    if (writes) {
      const Json end = {{"ph", "M"},
                        {"name", "process_labels"},
                        {"pid", 0},
                        {"args", {{"labels", fmt::format("stage {}", parts.plan.stage)}}}};
      write(end.dump() + "\n]}\n");
      file.close();
      replace_file(beside, path);
    }
  });
}

void EngineParts::sample_counters() {
  Timeline& timeline = world.context.timeline;
  if (!timeline.keeps_spans()) {
    return;
  }
  const std::int64_t now = Timeline::now_ns();
  timeline.count({"live parameters", {{"elements", store.statistics().live_elems}}, now});
  CounterSample memory{"memory", {}, now};
  const MemoryUse device = world.context.ledger.use(MemorySpace::kDevice);
  const MemoryUse host = world.context.ledger.use(MemorySpace::kHost);
  for (std::size_t index = 0; index < kCategories; ++index) {
    memory.values.emplace_back(category_name(static_cast<Category>(index)),
                               device.current_bytes.at(index) + host.current_bytes.at(index));
  }
  timeline.count(std::move(memory));
}

/// steps_per_print, wall_clock_breakdown, memory_breakdown and comms_logger: what rank 0 says about
/// the steps since it spoke last.
void EngineParts::report_step(const StepResult& result) {
  const bool breakdown =
      config.wall_clock_breakdown || config.memory_breakdown || config.comms_logger;
  const std::int64_t every = config.steps_per_print > 0 ? config.steps_per_print
                             : breakdown                ? kStepsPerReport
                                                        : 0;
  if (every == 0 || result.step % every != 0) {
    return;
  }
  const std::int64_t steps = result.step - std::exchange(reported_step, result.step);
  const ActivitySums sums = world.context.timeline.take_sums();
  if (world.context.rank != 0) {
    return;
  }
  Log& log = world.context.log;  // the file asks for these lines, whatever the log level is
  if (config.steps_per_print > 0) {
    log.write(
        LogLevel::kInfo,
        "engine",
        fmt::format("step={}, skipped={}, loss={:.6g}, lr={:.6g}, grad_norm={:.6g}, scale={:g}",
                    result.step,
                    skipped_steps,
                    result.loss,
                    result.lr,
                    result.grad_norm,
                    result.loss_scale));
  }
  if (config.wall_clock_breakdown) {
    log.write(LogLevel::kInfo,
              "time",
              fmt::format("a step: {} | {} | {} | of these {}",
                          in_ms(sums, Activity::kForward, steps),
                          in_ms(sums, Activity::kBackward, steps),
                          in_ms(sums, Activity::kStep, steps),
                          in_ms(sums, Activity::kStall, steps)));
  }
  if (config.comms_logger) {
    for (const Activity activity : {Activity::kGather, Activity::kReduce, Activity::kControl}) {
      const ActivitySum& sum = sums.at(static_cast<std::size_t>(activity));
      log.write(LogLevel::kInfo,
                "comm",
                fmt::format("{}: {:.1f} calls, {:.3f} MB, {} a step, {:.2f} GB/s",
                            activity_name(activity),
                            static_cast<double>(sum.spans) / static_cast<double>(steps),
                            static_cast<double>(sum.bytes) / 1e6 / static_cast<double>(steps),
                            in_ms(sums, activity, steps),
                            static_cast<double>(sum.bytes) /
                                static_cast<double>(std::max<std::int64_t>(1, sum.ns))));
    }
  }
  if (config.memory_breakdown) {
    std::string text;
    const MemoryUse device = world.context.ledger.use(MemorySpace::kDevice);
    const MemoryUse host = world.context.ledger.use(MemorySpace::kHost);
    for (std::size_t index = 0; index < kCategories; ++index) {
      text += fmt::format(
          "{}{} {:.3f}",
          index == 0 ? "" : ", ",
          category_name(static_cast<Category>(index)),
          static_cast<double>(device.current_bytes.at(index) + host.current_bytes.at(index)) /
              0x1p20);
    }
    log.write(
        LogLevel::kInfo,
        "memory",
        fmt::format("MiB now: {}; peak {:.3f}",
                    text,
                    static_cast<double>(device.total_peak_bytes + host.total_peak_bytes) / 0x1p20));
  }
}

}  // namespace zero
