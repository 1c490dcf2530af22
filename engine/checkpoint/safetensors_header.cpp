#include "engine/checkpoint/safetensors_header.h"

#include <zero/core/error.h>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <vector>

namespace zero::safetensors {
namespace {

using Json = nlohmann::json;

struct DTypeCode {
  std::string_view code;
  std::uint64_t bits;
};
/// All codes of the format.
constexpr std::array<DTypeCode, 22> kCodes = {{
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},     {"F8_E8M0", 8},     {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"BF16", 16},
    {"I32", 32}, {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
    {"I64", 64}, {"U64", 64},
}};
constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
/// {"name": {"shape": [ … ]}}: nothing in a header lies deeper.
constexpr std::size_t kDeepest = 3;

/// Refuses a header, always with the same form of message.
class Refusal {
 public:
  explicit Refusal(const std::string& path) : path_(path) {}
  [[noreturn]] void operator()(const std::string& reason) const {
    throw InputError("not a valid safetensors file: " + reason, path_, "write it anew");
  }

 private:
  const std::string& path_;
};

/// Looks at a header on its way through the parser, which keeps nothing of it. What a lenient
/// parser lets through is refused here: duplicate keys, nesting without end.
class Watch final : public nlohmann::json_sax<Json> {
 public:
  explicit Watch(const Refusal& refuse) : refuse_(refuse) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*elements*/) override { return enter(); }
  bool start_array(std::size_t /*elements*/) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (!keys_.at(depth_).insert(name).second) {
      refuse_(fmt::format("the header names \"{}\" twice", name));
    }
    return true;
  }
  bool parse_error(std::size_t /*position*/,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    refuse_(fmt::format("the header is not JSON ({})", error.what()));
  }

 private:
  bool enter() {
    if (++depth_ > kDeepest) {
      refuse_("the header is nested too deeply");
    }
    keys_.at(depth_).clear();
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  const Refusal& refuse_;
  std::size_t depth_ = 0;
  std::array<std::set<std::string>, kDeepest + 1> keys_;
};

/// The JSON of a header; a NUL byte, which a parser takes as an end, is refused too.
Json parse_json(std::string_view header, const Refusal& refuse) {
  if (header.empty() || header.front() != '{') {
    refuse("the header does not begin with {");
  }
  if (header.find('\0') != std::string_view::npos) {
    refuse("the header holds a NUL byte");
  }
  Watch watch(refuse);
  (void)Json::sax_parse(header.begin(), header.end(), &watch);
  return Json::parse(header.begin(), header.end());
}

void check_metadata(const Json& metadata, const Refusal& refuse) {
  if (!metadata.is_object() ||
      !std::all_of(metadata.begin(), metadata.end(), [](const Json& v) { return v.is_string(); })) {
    refuse("__metadata__ is not an object of strings");
  }
}

std::uint64_t bits_of(const std::string& name, const Json& tensor, const Refusal& refuse) {
  if (!tensor.contains("dtype") || !tensor["dtype"].is_string()) {
    refuse(fmt::format("tensor \"{}\" has no dtype", name));
  }
  const auto code = tensor["dtype"].get<std::string>();
  const auto* known = std::find_if(
      kCodes.begin(), kCodes.end(), [&](const DTypeCode& c) { return c.code == code; });
  if (known == kCodes.end()) {
    refuse(fmt::format("tensor \"{}\" has the unknown dtype \"{}\"", name, code));
  }
  return known->bits;
}

/// The shape, and the number of elements, which fits 63 bits.
void read_shape(const std::string& name,
                const Json& tensor,
                SafetensorsEntry& entry,
                const Refusal& refuse) {
  if (!tensor.contains("shape") || !tensor["shape"].is_array()) {
    refuse(fmt::format("tensor \"{}\" has no shape", name));
  }
  std::uint64_t elems = 1;
  for (const Json& dim : tensor["shape"]) {
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > kLargest) {
      refuse(fmt::format("tensor \"{}\" has the dimension {}", name, dim.dump()));
    }
    const auto size = dim.get<std::uint64_t>();
    if (__builtin_mul_overflow(elems, size, &elems) || elems > kLargest) {
      refuse(fmt::format("tensor \"{}\" has more elements than can be counted", name));
    }
    entry.shape.push_back(static_cast<std::int64_t>(size));
  }
  entry.elems = static_cast<std::int64_t>(elems);
}

/// One tensor; its offsets still count from the data's start.
SafetensorsEntry read_entry(const std::string& name, const Json& tensor, const Refusal& refuse) {
  if (!tensor.is_object()) {
    refuse(fmt::format("\"{}\" is not an object", name));
  }
  for (const auto& [key, value] : tensor.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      refuse(fmt::format("tensor \"{}\" has the unknown key \"{}\"", name, key));
    }
  }
  SafetensorsEntry entry;
  const std::uint64_t bits_each = bits_of(name, tensor, refuse);
  entry.dtype = tensor["dtype"].get<std::string>();
  read_shape(name, tensor, entry, refuse);
  if (!tensor.contains("data_offsets")) {
    refuse(fmt::format("tensor \"{}\" has no data_offsets", name));
  }
  const Json& offsets = tensor["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    refuse(fmt::format("data_offsets of tensor \"{}\" are not two unsigned integers", name));
  }
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(entry.elems), bits_each, &bits)) {
    refuse(fmt::format("tensor \"{}\" has more bits than can be counted", name));
  }
  if (bits % 8 != 0) {
    refuse(fmt::format("tensor \"{}\" does not fill whole bytes", name));
  }
  if (entry.end < entry.begin || entry.end - entry.begin != bits / 8) {
    refuse(fmt::format("tensor \"{}\" needs {} bytes, its data_offsets are [{}, {}]",
                       name,
                       bits / 8,
                       entry.begin,
                       entry.end));
  }
  return entry;
}

/// The tensors must tile [0, data_bytes) exactly.
void check_tiling(const Entries& entries, std::uint64_t data_bytes, const Refusal& refuse) {
  std::vector<Entries::const_pointer> order;
  for (const auto& named : entries) {
    order.push_back(&named);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t at = 0;
  for (const auto* named : order) {
    if (named->second.begin != at) {
      refuse(fmt::format("tensor \"{}\" begins at byte {} of the data, the one before ends at {}",
                         named->first,
                         named->second.begin,
                         at));
    }
    at = named->second.end;
  }
  if (at != data_bytes) {
    refuse(fmt::format("the tensors end at byte {} of {} bytes of data", at, data_bytes));
  }
}

}  // namespace

Entries parse_header(std::string_view header, std::uint64_t data_bytes, const std::string& path) {
  const Refusal refuse(path);
  const Json json = parse_json(header, refuse);
  Entries entries;
  for (const auto& [name, tensor] : json.items()) {
    if (name == "__metadata__") {
      check_metadata(tensor, refuse);
    } else {
      entries.emplace(name, read_entry(name, tensor, refuse));
    }
  }
  check_tiling(entries, data_bytes, refuse);
  for (auto& [name, entry] : entries) {
    entry.begin += kPrefixBytes + header.size();
    entry.end += kPrefixBytes + header.size();
  }
  return entries;
}

std::vector<std::int64_t> dims_of(const Shape& shape) {
  std::vector<std::int64_t> dims(static_cast<std::size_t>(shape.rank()));
  for (int dim = 0; dim < shape.rank(); ++dim) {
    dims[static_cast<std::size_t>(dim)] = shape[dim];
  }
  return dims;
}

const char* dtype_code(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    default:
      throw InternalError("safetensors of dtype " + std::string(dtype_name(dtype)),
                          "SafetensorsWriter",
                          "write fp32, fp16 or bf16");
  }
}

}  // namespace zero::safetensors
