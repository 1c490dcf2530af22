#pragma once

#include <zero/comm/group.h>
#include <zero/config/config.h>

#include <cstdint>
#include <optional>
#include <string>

namespace zero::examples {

/// The command line of train_lm, checked as far as that goes without reading a file.
struct Options {
  std::string config;
  std::string data;
  std::string tokens = "byte";
  std::string model = "byte-3m";
  std::string init;  ///< "": weights made from the seed
  std::optional<std::int64_t> steps;
  config::LoadOptions batch{};
  int ranks = 0;  ///< 0: not given
  std::string comm = "auto";
  std::string device = "cpu";
  int threads = 0;  ///< 0: available cores ÷ ranks
  std::string metrics;
  std::string eval_data;
  std::int64_t eval_every = 0;  ///< 0: at the end only
  std::int64_t sample = 0;      ///< tokens of text to write at the end
  std::optional<std::uint64_t> shuffle;
  std::string export_path;
  std::string save;                      ///< folder of checkpoints; "": none
  std::int64_t save_every = 0;           ///< steps; 0: at the end only
  std::int64_t keep = 0;                 ///< newest checkpoints that stay; 0: all
  std::string load;                      ///< folder to go on from; "": start
  std::int64_t memory_budget_bytes = 0;  ///< 0: none
  std::optional<comm::NetworkShape> network;
  std::string trace;  ///< file for a timeline; "": none
  std::uint64_t seed = 1234;
  std::string plan;  ///< write the plan there instead of training
};

/// Reads the command line. Nothing: the user asked for --help, which has been printed.
/// Throws InputError, one line, for what makes no sense or is not there yet.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

/// "24GiB", "512 MiB", "1e9" → bytes; units B, kB, MB, GB, TB (powers of 1000) and KiB … TiB, K … T
/// (powers of 1024).
[[nodiscard]] std::int64_t parse_size(const std::string& text, const std::string& option);

/// "1GB/s,50us" or "inf": bandwidth (a size, each way) and latency (us, ms or s; 0 if left out).
[[nodiscard]] comm::LinkShape parse_link(const std::string& text, const std::string& option);

}  // namespace zero::examples
