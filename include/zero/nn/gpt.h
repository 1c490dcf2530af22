#pragma once

#include <zero/accel/arena.h>
#include <zero/nn/block.h>
#include <zero/nn/embedding.h>
#include <zero/nn/gpt_config.h>
#include <zero/nn/tied_head.h>

#include <memory>
#include <optional>
#include <vector>

namespace zero::nn {

/// GPT-2 with HuggingFace's parameter names (wte.weight, h.0.ln_1.weight, …) and layouts.
///
/// Activations have the dtype that the engine binds the parameters in; row statistics, attention's
/// log-sum-exp and losses are fp32. Memory: what backward needs stays on the arena, above it the
/// workspace; the gradient of the residual stream is one buffer, updated in place. With
/// recomputation and Execution::stash the inputs of segments wait on the host, and each comes back
/// while the segment above it goes back.
class Gpt : public Trainable {
 public:
  struct Options {
    /// Logits in memory at once, in elements; see TiedHead.
    std::int64_t logit_chunk_elems = std::int64_t{4} << 20;
  };
  explicit Gpt(const GptConfig& config);
  Gpt(const GptConfig& config, const Options& options);

  [[nodiscard]] const GptConfig& config() const noexcept { return config_; }

  /// inputs and targets: int32 [B, T], T ≤ positions.
  void forward(const Batch& batch, TensorView loss, Execution& execution) override;
  void backward(float seed, Execution& execution) override;
  /// B = micro_batch rows of `positions` zeros.
  [[nodiscard]] Batch example_batch(std::int64_t micro_batch) const override;
  void check_batch(const Batch& batch) const override;
  [[nodiscard]] bool recompute_activations(std::optional<std::int64_t> segments) override;

  /// Logits of the last position, [B, V] in the parameters' dtype, of tokens int32 [B, T].
  ///
  /// Run in phase kEval. The result lies on the arena, at its mark on entry; the caller gives it
  /// back. Every rank must make the same number of calls.
  [[nodiscard]] TensorView logits(const HostTensor& tokens, Execution& execution);

 private:
  /// Consecutive blocks [first, last): backward finds what it needs in `saved`, or computes it
  /// again from `input`.
  struct Segment {
    std::size_t first = 0;
    std::size_t last = 0;
    TensorView input{};  ///< [B, T, C]
    std::vector<Block::Saved> saved{};
  };
  /// A forward that waits for its backward.
  struct Pending {
    std::size_t mark = 0;  ///< of the arena before the forward
    TokenGrid grid{};
    PassRandom random{};
    TensorView tokens{};
    std::vector<Segment> segments{};
    TensorView x{};  ///< [B, T, C], before ln_f
    RowStatistics ln_f{};
    TensorView hidden{};          ///< [B, T, C], after ln_f{}; later the residual gradient
    std::size_t hidden_mark = 0;  ///< of the arena just above `hidden`
    TiedHead::Pass head{};
  };

  void check_tokens(const HostTensor& tokens, const char* what) const;
  [[nodiscard]] TensorView upload(const HostTensor& values, Execution& execution) const;
  /// Embeds and runs the blocks; keeps what backward needs if phase is kTrain.
  [[nodiscard]] TensorView run_blocks(Pending& pending, Execution& execution);
  /// Output of one block; what its backward needs is added to the segment.
  [[nodiscard]] TensorView run_and_save(std::size_t layer,
                                        TensorView x,
                                        Segment& segment,
                                        const TokenGrid& grid,
                                        Execution& execution);
  /// Writes a segment's output, of whose blocks nothing stays on the arena.
  void run_and_forget(const Segment& segment,
                      TensorView output,
                      const TokenGrid& grid,
                      Execution& execution);
  /// Runs all segments from `x` and keeps their inputs alone: on the arena, or all but the last on
  /// the host where the execution has a stash.
  [[nodiscard]] TensorView run_recomputed(Pending& pending, TensorView x, Execution& execution);
  /// Turns `gradient`, of the segment's output, into that of its input.
  void back_through(Segment& segment,
                    TensorView gradient,
                    const TokenGrid& grid,
                    Execution& execution);
  /// Cuts the blocks into runs of about equal length.
  [[nodiscard]] std::vector<Segment> make_segments() const;

  GptConfig config_;
  Embedding embedding_;
  DropoutSite embedded_;
  std::vector<std::unique_ptr<Block>> blocks_;
  LayerNorm ln_f_;
  TiedHead head_;
  std::vector<Pending> pending_;
  std::optional<std::int64_t> recomputed_segments_;  ///< nullopt: activations are kept
};

}  // namespace zero::nn
