#include <zero/core/error.h>
#include <zero/engine/checkpoint.h>

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace zero {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::int64_t kLargestElems = std::int64_t{1} << 50;

std::string hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::uint64_t sum_of(std::string_view text) {
  return XXH64(text.data(), text.size(), 0);
}

/// Typed access to a document that nobody has checked; every failure is an InputError.
class Fields {
 public:
  Fields(const Json& object, const std::string& where) : object_(object), where_(where) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError("damaged manifest: " + what, where_, "use another checkpoint");
  }
  [[nodiscard]] const Json& at(const char* key) const {
    if (!object_.is_object() || !object_.contains(key)) {
      refuse(fmt::format("\"{}\" is missing", key));
    }
    return object_.at(key);
  }
  [[nodiscard]] std::int64_t integer(const char* key,
                                     std::int64_t lowest = 0,
                                     std::int64_t highest = INT64_MAX) const {
    const Json& value = at(key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) ||
        value.get<std::int64_t>() < lowest || value.get<std::int64_t>() > highest) {
      refuse(fmt::format("\"{}\" is no integer in range", key));
    }
    return value.get<std::int64_t>();
  }
  [[nodiscard]] double number(const char* key) const {
    if (!at(key).is_number()) {
      refuse(fmt::format("\"{}\" is no number", key));
    }
    return at(key).get<double>();
  }
  [[nodiscard]] bool flag(const char* key) const {
    if (!at(key).is_boolean()) {
      refuse(fmt::format("\"{}\" is not true or false", key));
    }
    return at(key).get<bool>();
  }
  [[nodiscard]] std::string text(const char* key) const {
    if (!at(key).is_string()) {
      refuse(fmt::format("\"{}\" is no text", key));
    }
    return at(key).get<std::string>();
  }
  [[nodiscard]] std::uint64_t sum(const Json& value) const {
    const std::string digits = value.is_string() ? value.get<std::string>() : "";
    if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
      refuse("a checksum is not 16 hexadecimal digits");
    }
    return std::stoull(digits, nullptr, 16);
  }
  /// Calls body(element) for each element of a list.
  template <class Body>
  void each(const char* key, Body body) const {
    if (!at(key).is_array()) {
      refuse(fmt::format("\"{}\" is no list", key));
    }
    for (const Json& element : at(key)) {
      body(element);
    }
  }

 private:
  const Json& object_;
  const std::string& where_;
};

void read_parameters(const Fields& fields, const std::string& where, CheckpointManifest& out) {
  std::set<std::string> names;
  fields.each("parameters", [&](const Json& element) {
    const Fields mine(element, where);
    CheckpointManifest::Parameter parameter{
        .name = mine.text("name"),
        .shape = {},
        .trainable = mine.flag("trainable"),
        .group = static_cast<int>(mine.integer("group", 0, 1 << 20))};
    std::int64_t elems = 1;
    mine.each("shape", [&](const Json& dim) {
      const bool good = dim.is_number_unsigned() && dim.get<std::uint64_t>() <= kLargestElems;
      if (!good) {
        mine.refuse("a shape is not made of sizes");
      }
      const auto size = dim.get<std::int64_t>();
      if (size > 0 && elems > kLargestElems / size) {
        mine.refuse("a parameter is too large");
      }
      elems *= size;
      parameter.shape.push_back(size);
    });
    if (!names.insert(parameter.name).second) {
      mine.refuse(fmt::format("parameter \"{}\" stands twice", parameter.name));
    }
    out.parameters.push_back(std::move(parameter));
  });
}

void read_files(const Fields& fields, const std::string& where, CheckpointManifest& out) {
  fields.each("files", [&](const Json& element) {
    const Fields mine(element, where);
    CheckpointManifest::DataFile file{.name = mine.text("name"),
                                      .bytes = static_cast<std::uint64_t>(mine.integer("bytes")),
                                      .block_sums = {}};
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.') {
      mine.refuse("a file name leads out of the folder");
    }
    mine.each("xxh64", [&](const Json& sum) { file.block_sums.push_back(mine.sum(sum)); });
    const std::uint64_t block = CheckpointManifest::kBlockBytes;
    if (file.block_sums.size() != file.bytes / block + (file.bytes % block != 0 ? 1 : 0)) {
      mine.refuse(fmt::format("file \"{}\" has not one checksum a block", file.name));
    }
    out.files.push_back(std::move(file));
  });
}

CheckpointManifest::Extent extent_of(const Json& element, const Fields& fields) {
  std::array<std::uint64_t, 6> numbers{};
  bool good = element.is_array() && element.size() == numbers.size();
  for (std::size_t i = 0; good && i < numbers.size(); ++i) {
    good = element[i].is_number_unsigned() &&
           (numbers[i] = element[i].get<std::uint64_t>()) <= static_cast<std::uint64_t>(INT64_MAX);
  }
  if (!good) {
    fields.refuse("an extent is not six numbers");
  }
  return {static_cast<std::size_t>(numbers[0]),
          static_cast<std::size_t>(numbers[1]),
          static_cast<std::int64_t>(numbers[2]),
          static_cast<std::int64_t>(numbers[3]),
          static_cast<std::size_t>(numbers[4]),
          numbers[5]};
}

/// Extents lie in their files, and those of each state that a parameter has cover it once.
void check_extents(const Fields& fields, CheckpointManifest& out) {
  std::sort(out.extents.begin(), out.extents.end(), [](const auto& a, const auto& b) {
    return std::tie(a.parameter, a.state, a.begin) < std::tie(b.parameter, b.state, b.begin);
  });
  auto next = out.extents.begin();
  for (std::size_t parameter = 0; parameter < out.parameters.size(); ++parameter) {
    const CheckpointManifest::Parameter& info = out.parameters[parameter];
    const std::size_t states = info.trainable ? out.states.size() : 1;
    for (std::size_t state = 0; state < states; ++state) {
      std::int64_t covered = 0;
      for (; next != out.extents.end() && next->parameter == parameter && next->state == state;
           ++next) {
        const bool inside = next->begin == covered && next->end > next->begin &&
                            next->end <= info.elems() && next->file < out.files.size() &&
                            next->offset <= out.files[next->file].bytes &&
                            static_cast<std::uint64_t>(next->end - next->begin) <=
                                (out.files[next->file].bytes - next->offset) / sizeof(float);
        if (!inside) {
          fields.refuse(
              fmt::format("an extent of \"{}\" overlaps, leaves a gap or its file", info.name));
        }
        covered = next->end;
      }
      if (covered != info.elems()) {
        fields.refuse(fmt::format("elements of \"{}\" are missing", info.name));
      }
    }
  }
  if (next != out.extents.end()) {
    fields.refuse("an extent belongs to no parameter");
  }
}

void read_training(const Fields& fields, const std::string& where, CheckpointManifest& out) {
  fields.each("groups", [&](const Json& element) {
    const Fields mine(element, where);
    out.groups.push_back({mine.number("lr"), mine.number("weight_decay")});
  });
  const Json& counters = fields.at("counters");
  if (!counters.is_object()) {
    fields.refuse("\"counters\" is no object");
  }
  for (const auto& [name, value] : counters.items()) {
    out.counters[name] = Fields(counters, where).integer(name.c_str());
  }
  const Fields scaler(fields.at("loss_scaler"), where);
  out.loss_scaler = {.scale = scaler.number("scale"),
                     .steps = scaler.integer("steps"),
                     .last_overflow_step = scaler.integer("last_overflow_step", -1),
                     .hysteresis_left = scaler.integer("hysteresis_left", INT64_MIN)};
  const Json& buffers = fields.at("buffers");
  if (!buffers.is_object()) {
    fields.refuse("\"buffers\" is no object");
  }
  for (const auto& [name, bits] : buffers.items()) {
    // Their bits, so that NaN, infinities and every digit return.
    Fields(buffers, where).each(name.c_str(), [&, &key = name](const Json& value) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > UINT32_MAX) {
        fields.refuse("a buffer is not made of 32-bit patterns");
      }
      out.buffers[key].push_back(std::bit_cast<float>(value.get<std::uint32_t>()));
    });
  }
}

}  // namespace

std::int64_t CheckpointManifest::Parameter::elems() const noexcept {
  std::int64_t elems = 1;
  for (const std::int64_t size : shape) {
    elems *= size;
  }
  return elems;
}

std::string CheckpointManifest::extent_name(std::string_view state,
                                            std::string_view parameter,
                                            std::int64_t begin) {
  return fmt::format("{}|{}|{}", state, parameter, begin);
}

std::string CheckpointManifest::to_json() const {
  Json document = {{"format", "zero-checkpoint"},
                   {"version", kVersion},
                   {"ranks", ranks},
                   {"stage", stage},
                   {"precision", precision},
                   {"seed", hex(seed)},
                   {"optimizer", optimizer},
                   {"states", states}};
  document["counters"] = counters;
  document["loss_scaler"] = {{"scale", loss_scaler.scale},
                             {"steps", loss_scaler.steps},
                             {"last_overflow_step", loss_scaler.last_overflow_step},
                             {"hysteresis_left", loss_scaler.hysteresis_left}};
  document["client_state"] = client_state;
  for (const char* list : {"groups", "parameters", "files", "extents"}) {
    document[list] = Json::array();
  }
  document["buffers"] = Json::object();
  for (const Group& group : groups) {
    document["groups"].push_back({{"lr", group.lr}, {"weight_decay", group.weight_decay}});
  }
  for (const auto& [name, values] : buffers) {
    Json& bits = document["buffers"][name] = Json::array();
    for (const float value : values) {
      bits.push_back(std::bit_cast<std::uint32_t>(value));
    }
  }
  for (const Parameter& parameter : parameters) {
    document["parameters"].push_back({{"name", parameter.name},
                                      {"shape", parameter.shape},
                                      {"trainable", parameter.trainable},
                                      {"group", parameter.group}});
  }
  for (const DataFile& file : files) {
    Json sums = Json::array();
    for (const std::uint64_t sum : file.block_sums) {
      sums.push_back(hex(sum));
    }
    document["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh64", sums}});
  }
  for (const Extent& extent : extents) {
    document["extents"].push_back(
        {extent.parameter, extent.state, extent.begin, extent.end, extent.file, extent.offset});
  }
  // The last line is the sum of everything before it.
  const std::string text = document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  return text + hex(sum_of(text)) + "\n";
}

CheckpointManifest CheckpointManifest::from_json(std::string_view text, const std::string& where) {
  constexpr std::size_t kSumLine = 17;
  const Json nothing;
  const Fields whole(nothing, where);
  if (text.size() < kSumLine || text.back() != '\n') {
    whole.refuse("it ends early");
  }
  const std::string_view body = text.substr(0, text.size() - kSumLine);
  if (text.substr(body.size(), kSumLine - 1) != hex(sum_of(body))) {
    whole.refuse("its checksum is another");
  }
  const Json document = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const Fields fields(document, where);
  if (!document.is_object() || fields.text("format") != "zero-checkpoint") {
    fields.refuse("it is no manifest");
  }
  if (const std::int64_t version = fields.integer("version"); version != kVersion) {
    throw InputError(fmt::format("the checkpoint has version {}", version),
                     where,
                     fmt::format("this program reads version {}", kVersion));
  }
  CheckpointManifest out;
  out.ranks = static_cast<int>(fields.integer("ranks", 1, 1 << 24));
  out.stage = static_cast<int>(fields.integer("stage", 0, 3));
  out.precision = fields.text("precision");
  out.seed = fields.sum(fields.at("seed"));
  out.optimizer = fields.text("optimizer");
  out.client_state = fields.text("client_state");
  fields.each("states", [&](const Json& state) {
    if (!state.is_string()) {
      fields.refuse("a state has no name");
    }
    out.states.push_back(state.get<std::string>());
  });
  if (out.states.empty() || out.states.front() != "master") {
    fields.refuse("there is no state \"master\"");
  }
  read_parameters(fields, where, out);
  read_files(fields, where, out);
  fields.each("extents",
              [&](const Json& element) { out.extents.push_back(extent_of(element, fields)); });
  check_extents(fields, out);
  read_training(fields, where, out);
  return out;
}

}  // namespace zero
