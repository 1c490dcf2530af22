#pragma once

#include <zero/core/module.h>

#include <cstdint>
#include <memory>
#include <string>

namespace zero::nn {

/// Token embedding plus, if asked for, a learned embedding of the position.
///
/// tokens int32 [B, T], out [B, T, C]. Sends no events (see events.h).
class Embedding : public Module {
 public:
  struct Options {
    std::int64_t vocabulary = 0;  ///< V
    std::int64_t width = 0;       ///< C
    std::int64_t positions = 0;   ///< longest T; 0: no position embedding
    double init_std = 0.02;
    std::string table_name = "wte.weight";     ///< [V, C]
    std::string position_name = "wpe.weight";  ///< [positions, C]
  };
  Embedding(const std::string& name, const Options& options);

  void forward(ConstTensorView tokens, TensorView out, Execution& execution) const;
  void backward(ConstTensorView tokens, ConstTensorView dout, Execution& execution) const;

  /// The token table, for a head that is tied to it.
  [[nodiscard]] const std::shared_ptr<Parameter>& table() const noexcept { return table_; }

 private:
  std::shared_ptr<Parameter> table_;
  std::shared_ptr<Parameter> positions_;  // nullptr: none
};

}  // namespace zero::nn
