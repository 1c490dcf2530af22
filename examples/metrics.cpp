#include "examples/metrics.h"

#include <zero/core/error.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace zero::examples {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json by_category(const std::array<std::int64_t, kCategories>& bytes, std::int64_t total) {
  Json object = Json::object();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    object[std::string(category_name(static_cast<Category>(i)))] = bytes.at(i);
  }
  object["total"] = total;
  return object;
}

Json to_json(const MemoryUse& use) {
  return {{"current", by_category(use.current_bytes, use.total_bytes)},
          {"peak", by_category(use.peak_bytes, use.total_peak_bytes)}};
}

Json to_json(const RankMemory& memory) {
  return {{"device", to_json(memory.device)}, {"host", to_json(memory.host)}};
}

}  // namespace

MetricsFile::MetricsFile(std::string path)
    : path_(std::move(path)),
      descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) {
    throw IoError(fmt::format("the metrics cannot be written: {}", std::strerror(errno)),
                  path_,
                  "give --metrics a path that can be written");
  }
}

MetricsFile::~MetricsFile() {
  close(descriptor_);
}

void MetricsFile::write_line(std::string line) {
  line += '\n';
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = write(descriptor_, line.data() + done, line.size() - done);
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      const int reason = errno;
      // Pipes and devices cannot be shortened; there is nothing to take back from them.
      (void)!ftruncate(descriptor_, written_bytes_);
      throw IoError(fmt::format("the metrics cannot be written: {}", std::strerror(reason)),
                    path_,
                    "free some space or leave out --metrics");
    }
  }
  written_bytes_ += static_cast<std::int64_t>(line.size());
}

void MetricsFile::step(const StepRecord& record, const RankMemory& memory) {
  const StepResult& result = record.result;
  write_line(Json{{"step", result.step},
                  {"loss", number(result.loss)},
                  {"lr", result.lr},
                  {"grad_norm", number(result.grad_norm)},
                  {"loss_scale", result.loss_scale},
                  {"skipped", result.skipped},
                  {"tokens_per_s", number(record.tokens_per_s)},
                  {"step_s", record.step_s},
                  {"memory", to_json(memory)}}
                 .dump());
}

void MetricsFile::evaluation(std::int64_t step, double loss) {
  write_line(Json{{"step", step}, {"eval_loss", number(loss)}}.dump());
}

void MetricsFile::summary(const Summary& summary) {
  Json memory = Json::array();
  for (const RankMemory& rank : summary.memory) {
    memory.push_back(to_json(rank));
  }
  const comm::Traffic& traffic = summary.traffic;
  write_line(Json{
      {"summary", true},
      {"steps", summary.steps},
      {"loss", number(summary.loss)},
      {"train_s", summary.train_s},
      {"tokens_per_s", number(summary.tokens_per_s)},
      {"signal", summary.signal},
      {"traffic",
       {{"bytes_in", traffic.bytes_in},
        {"bytes_out", traffic.bytes_out},
        {"control_bytes_in", traffic.control_bytes_in},
        {"control_bytes_out", traffic.control_bytes_out},
        {"collectives", traffic.collectives}}},
      {"memory",
       memory}}.dump());
}

}  // namespace zero::examples
