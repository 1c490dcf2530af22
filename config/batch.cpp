#include "config/check.h"
#include "config/convert.h"
#include <zero/core/error.h>

#include <cmath>
#include <optional>

namespace zero::config {
namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;
constexpr std::string_view kTotal = "train_batch_size";
constexpr std::string_view kMicro = "train_micro_batch_size_per_gpu";
constexpr std::string_view kSteps = "gradient_accumulation_steps";

Number whole(std::int64_t value) {
  return {.whole = true, .integer = value, .real = 0.0};
}

Number real(double value) {
  return {.whole = false, .integer = 0, .real = value};
}

Number operator*(const Number& a, const Number& b) {
  std::int64_t product = 0;
  if (a.whole && b.whole && !__builtin_mul_overflow(a.integer, b.integer, &product)) {
    return whole(product);
  }
  return real(a.as_double() * b.as_double());
}

bool is_zero(const Number& number) {
  return number.as_double() == 0.0;
}

bool equal(const Number& a, const Number& b) {
  return a.whole && b.whole ? a.integer == b.integer : a.as_double() == b.as_double();
}

/// Python's //: rounds down. `b` is not zero.
Number floor_divide(const Number& a, const Number& b) {
  ZERO_CHECK(!is_zero(b), "batch arithmetic divides by zero");
  if (a.whole && b.whole && b.integer != 0 && !(a.integer == INT64_MIN && b.integer == -1)) {
    const std::int64_t quotient = a.integer / b.integer;
    const bool inexact = a.integer % b.integer != 0;
    return whole(inexact && (a.integer < 0) != (b.integer < 0) ? quotient - 1 : quotient);
  }
  return real(std::floor(a.as_double() / b.as_double()));
}

std::string text(const Number& number) {
  return number.json().dump();
}

struct Triple {
  std::optional<Number> total, micro, steps;
};

std::optional<Number> refuse(Checked& out, std::string_view path, const Json& raw, bool& good) {
  good = false;
  out.error("batch_not_a_number",
            {.path = std::string(path),
             .value = value_text(raw),
             .message = "must be a whole number above 0",
             .todo = raw == "auto" ? "give a number, or --micro-batch and --accumulation"
                                   : "give a number"},
            out.offset(path));
  return std::nullopt;
}

/// The key's number, or nothing if it is missing. A value that is no number is an error.
std::optional<Number> read(Checked& out, std::string_view path, bool auto_is_missing, bool& good) {
  const Json& raw = out.raw(path);
  if (raw.is_null() || (auto_is_missing && raw == "auto")) {
    return std::nullopt;
  }
  if (raw.is_boolean()) {
    return whole(raw.get<bool>() ? 1 : 0);
  }
  if (raw.is_number_float() || raw.is_number_unsigned()) {
    if (std::abs(raw.get<double>()) >= kTwoTo63) {
      return refuse(out, path, raw, good);
    }
    const bool small = raw.is_number_unsigned() && raw.get<std::uint64_t>() <= INT64_MAX;
    return small ? whole(raw.get<std::int64_t>()) : real(raw.get<double>());
  }
  if (raw.is_number()) {
    return whole(raw.get<std::int64_t>());
  }
  return refuse(out, path, raw, good);
}

/// The N of the triple. DeepSpeed sees sequence_parallel_size only in a configuration that a
/// framework hands over as an object, which is how overriding batch arguments reach it.
Number data_parallel_ranks(const Checked& out, const LoadOptions& options, bool as_object) {
  const Json& sequence = out.raw("sequence_parallel_size");
  if (!as_object || !sequence.is_number() || sequence.get<double>() == 0.0 ||
      !out.given("sequence_parallel_size")) {
    return whole(options.world);
  }
  const Json& data = out.raw("data_parallel_size");
  if (data.is_number_integer()) {
    return whole(data.get<std::int64_t>());
  }
  const double ranks = options.world / sequence.get<double>();
  return ranks == std::floor(ranks) ? whole(static_cast<std::int64_t>(ranks)) : real(ranks);
}

void fail(Checked& out, std::string_view path, std::string message, std::string todo) {
  out.error("batch_mismatch",
            {.path = std::string(path), .message = std::move(message), .todo = std::move(todo)},
            out.offset(path));
}

/// Fills in what is missing; false after a division by zero, which is reported.
bool derive(Checked& out, Triple& triple, const Number& ranks) {
  const auto zero = [&](std::string_view path) {
    fail(out, path, "is 0", "give a whole number above 0");
    return false;
  };
  if (triple.total && triple.micro && !triple.steps) {
    if (is_zero(*triple.micro)) {
      return zero(kMicro);
    }
    triple.steps = floor_divide(floor_divide(*triple.total, *triple.micro), ranks);
  } else if (triple.total && !triple.micro) {
    if (triple.steps && is_zero(*triple.steps)) {
      return zero(kSteps);
    }
    const Number share = floor_divide(*triple.total, ranks);
    triple.micro = triple.steps ? floor_divide(share, *triple.steps) : share;
  }
  triple.steps = triple.steps.value_or(whole(1));
  if (!triple.total) {
    triple.total = *triple.micro * *triple.steps * ranks;
  }
  return true;
}

void judge(Checked& out, const Triple& triple, const Number& ranks) {
  const std::string todo =
      "choose train_batch_size = train_micro_batch_size_per_gpu x "
      "gradient_accumulation_steps x ranks, or leave one of them out";
  const std::string triple_text = text(*triple.total) + " samples, micro-batch " +
                                  text(*triple.micro) + ", accumulation " + text(*triple.steps) +
                                  ", " + text(ranks) + " ranks";
  const std::pair<std::string_view, const Number&> parts[] = {
      {kTotal, *triple.total}, {kMicro, *triple.micro}, {kSteps, *triple.steps}};
  for (const auto& [path, number] : parts) {
    if (!(number.as_double() > 0.0)) {
      const char* how = out.given(path) ? "is " : "comes out as ";
      fail(out, path, how + text(number) + ", not above 0 (" + triple_text + ")", todo);
      return;
    }
  }
  const Number product = *triple.micro * *triple.steps * ranks;
  if (!equal(*triple.total, product)) {
    fail(out,
         out.given(kTotal) ? kTotal : kMicro,
         text(*triple.total) + " is not " + text(*triple.micro) + " x " + text(*triple.steps) +
             " x " + text(ranks) + " (micro-batch x accumulation x ranks = " + text(product) + ")",
         todo);
    return;
  }
  out.batch = {
      .known = true, .total = *triple.total, .micro = *triple.micro, .steps = *triple.steps};
}

/// Numbers from the command line win; where two of them are given, the file's third is left out.
Triple override_with(const Triple& file, const LoadOptions& options) {
  const auto number = [](const std::optional<std::int64_t>& value) {
    return value ? std::optional<Number>(whole(*value)) : std::nullopt;
  };
  Triple triple{number(options.train_batch_size),
                number(options.train_micro_batch_size_per_gpu),
                number(options.gradient_accumulation_steps)};
  const int given = (triple.total ? 1 : 0) + (triple.micro ? 1 : 0) + (triple.steps ? 1 : 0);
  if (given >= 2) {
    return triple;
  }
  triple.total = triple.total ? triple.total : file.total;
  triple.micro = triple.micro ? triple.micro : file.micro;
  triple.steps = triple.steps ? triple.steps : file.steps;
  return triple;
}

}  // namespace

void check_batch(Checked& out, const LoadOptions& options) {
  const bool as_object = options.train_batch_size || options.train_micro_batch_size_per_gpu ||
                         options.gradient_accumulation_steps;
  bool good = true;
  const std::size_t errors_before = out.errors.size();
  Triple file{read(out, kTotal, as_object, good),
              read(out, kMicro, as_object, good),
              read(out, kSteps, as_object, good)};
  const int given = (options.train_batch_size ? 1 : 0) +
                    (options.train_micro_batch_size_per_gpu ? 1 : 0) +
                    (options.gradient_accumulation_steps ? 1 : 0);
  if (!good) {
    if (given < 2) {
      return;
    }
    out.errors.resize(errors_before);  // values of the file that are not used
  }
  Triple triple = override_with(file, options);
  if (!triple.total && !triple.micro) {
    out.error("batch_missing",
              {.path = std::string(kTotal),
               .message = "neither train_batch_size nor train_micro_batch_size_per_gpu is given",
               .todo = "give one of them, or --micro-batch"},
              0);
    return;
  }
  const Number ranks = data_parallel_ranks(out, options, as_object);
  if (is_zero(ranks)) {
    fail(out, "data_parallel_size", "is 0", "leave it out");
    return;
  }
  if (!derive(out, triple, ranks)) {
    return;
  }
  judge(out, triple, ranks);
  if (out.batch.known && !(triple.total->whole && triple.micro->whole && triple.steps->whole)) {
    out.block("bad_value",
              {.path = std::string(kMicro),
               .message = "the batch comes out as fractions, which DeepSpeed lets pass",
               .todo = "use whole numbers"},
              out.offset(kMicro));
  }
}

}  // namespace zero::config
