#pragma once

#include <zero/engine/launch.h>
#include <zero/nn/gpt_config.h>

namespace zero::examples {

/// Floating-point operations that the mathematics of one token's forward and backward needs:
/// matrix products and causal attention, nothing recomputed. Source: 6 operations a weight and
/// token (Kaplan et al. 2020), attention counted for the half of the scores that is not masked.
[[nodiscard]] double training_flops_per_token(const nn::GptConfig& model);

/// Matrix-product speed of this rank in operations a second: the best of a few large fp32 products
/// through the kernel table, in at most about 0.2 s.
///
/// Meant to be called by all ranks at the same time, so that they share the machine as in training.
/// Memory is taken outside the rank's ledger and given back.
[[nodiscard]] double measure_gemm_flops(const World& world);

}  // namespace zero::examples
