#include "config/check.h"

#include "config/convert.h"
#include "config/text.h"

#include <algorithm>

namespace zero::config {
namespace {

using Fills = std::map<std::string, Json, std::less<>>;

const Json& default_at(std::string_view path) {
  static const auto table = [] {
    std::map<std::string, Json, std::less<>> all;
    for (const Block& block : blocks()) {
      for (const Key& key : block.keys) {
        if (block.variant.empty()) {
          all.emplace(join_path(block.path, key.name), fallback_value(key));
        }
      }
    }
    return all;
  }();
  static const Json kNull;
  const auto found = table.find(path);
  return found == table.end() ? kNull : found->second;
}

void add(const Document& document,
         std::vector<Issue>& list,
         std::string kind,
         Issue issue,
         std::size_t offset) {
  if (list.size() >= kMaxIssues) {
    return;
  }
  issue.kind = std::move(kind);
  issue.path = shortened(issue.path, 160);
  if (offset > 0 || issue.kind == "parse_error") {
    const Place place = document.place(offset);
    issue.line = place.line;
    issue.column = place.column;
  }
  list.push_back(std::move(issue));
}

void report_text_faults(Checked& out) {
  for (const TextFault& fault : out.document.faults) {
    out.error(fault.kind,
              {.path = fault.key,
               .message = fault.message,
               .todo = fault.kind == "duplicate_key" ? "keep one of them" : "correct the text"},
              fault.offset);
  }
  for (const std::string& note : out.document.notes) {
    out.warn("relaxed_syntax",
             {.message = "not plain JSON: " + note,
              .todo = "DeepSpeed reads it, but Transformers and Accelerate do not"},
             0);
  }
}

const Spot* find_spot(const Document& document, std::string_view outer, std::string_view inner) {
  const auto child = [](const Json& object,
                        const Spot& spot,
                        std::string_view name) -> std::pair<const Json*, const Spot*> {
    std::size_t index = 0;
    if (object.is_object()) {
      for (const auto& [key, value] : object.items()) {
        if (key == name) {
          return {&value, &spot.children[index]};
        }
        ++index;
      }
    }
    return {nullptr, nullptr};
  };
  const auto [block, block_spot] = child(document.root, document.spot, outer);
  return block == nullptr ? nullptr : child(*block, *block_spot, inner).second;
}

}  // namespace

const Json& Checked::at(std::string_view path) const {
  const auto found = values.find(path);
  return found == values.end() ? default_at(path) : found->second.value;
}

const Json& Checked::raw(std::string_view path) const {
  const auto found = values.find(path);
  return found == values.end() ? default_at(path) : found->second.raw;
}

bool Checked::given(std::string_view path) const {
  return values.find(path) != values.end();
}

bool Checked::is_true(std::string_view path) const {
  return at(path) == true;
}

std::size_t Checked::offset(std::string_view path) const {
  const auto found = values.find(path);
  return found == values.end() ? 0 : found->second.offset;
}

std::string Checked::bf16_block() const {
  return (given("bf16") && !raw("bf16").is_null()) || !given("bfloat16") ? "bf16" : "bfloat16";
}

void Checked::error(std::string kind, Issue issue, std::size_t offset) {
  add(document, errors, std::move(kind), std::move(issue), offset);
}

void Checked::warn(std::string kind, Issue issue, std::size_t offset) {
  add(document, warnings, std::move(kind), std::move(issue), offset);
}

void Checked::block(std::string kind, Issue issue, std::size_t offset) {
  add(document, blockers, std::move(kind), std::move(issue), offset);
}

std::map<std::string, Json, std::less<>> auto_fills(const LoadOptions& options) {
  Fills fills;
  const auto set = [&](const char* path, const auto& value) {
    if (value) {
      fills[path] = *value;
    }
  };
  fills["gradient_clipping"] = 1.0;  // what both common frameworks put there
  if (options.hidden_size) {
    const std::int64_t hidden = *options.hidden_size;
    fills["zero_optimization.reduce_bucket_size"] = hidden * hidden;
    fills["zero_optimization.stage3_prefetch_bucket_size"] =
        static_cast<std::int64_t>(0.9 * static_cast<double>(hidden * hidden));
    fills["zero_optimization.stage3_param_persistence_threshold"] = 10 * hidden;
  }
  set("optimizer.params.lr", options.lr);
  set("optimizer.params.weight_decay", options.weight_decay);
  set("optimizer.params.eps", options.eps);
  if (options.beta1 && options.beta2) {
    fills["optimizer.params.betas"] = Json::array({*options.beta1, *options.beta2});
  }
  fills["scheduler.params.warmup_min_lr"] = 0.0;
  set("scheduler.params.warmup_max_lr", options.lr);
  set("scheduler.params.warmup_num_steps", options.warmup_num_steps);
  set("scheduler.params.total_num_steps", options.total_num_steps);
  set("fp16.enabled", options.fp16);
  set("bf16.enabled", options.bf16);
  set("bfloat16.enabled", options.bf16);
  return fills;
}

Checked check(std::string text, const LoadOptions& options) {
  Checked out;
  out.world = options.world;
  out.document = read_document(std::move(text));
  report_text_faults(out);
  const auto& faults = out.document.faults;
  if (!faults.empty() && faults.front().kind == "parse_error") {
    return out;
  }
  walk(out, options);
  for (const std::string_view owner : {"optimizer", "scheduler"}) {
    check_params(out, owner, find_spot(out.document, owner, "params"), auto_fills(options));
  }
  check_batch(out, options);
  check_rules(out);
  for (auto* list : {&out.errors, &out.warnings, &out.blockers}) {
    std::stable_sort(list->begin(), list->end(), [](const Issue& a, const Issue& b) {
      return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
  }
  return out;
}

}  // namespace zero::config
