// The reproducibility rule: stage, back end, buckets and thresholds never change a bit
// (docs/NUMERICS.md).
#include "engine/engine_run.h"
#include <support/catch.h>

#include <fmt/format.h>

namespace {

using namespace zero;           // NOLINT(google-build-using-namespace): test file
using namespace zero::testing;  // NOLINT(google-build-using-namespace): test file

RunSpec spec_of(int ranks, int stage, std::int64_t bucket, std::int64_t persistence) {
  RunSpec spec;
  spec.ranks = ranks;
  spec.stage = stage;
  spec.zero_keys = fmt::format(
      R"("reduce_bucket_size": {}, "stage3_param_persistence_threshold": {})", bucket, persistence);
  return spec;
}

}  // namespace

TEST_CASE("reproducibility: stages, buckets and persistence give the same bits", "[engine][bits]") {
  for (const int ranks : {2, 3, 4}) {
    const RunResult reference = run(spec_of(ranks, 0, 500'000'000, 0));
    REQUIRE(reference.steps.size() == 4);
    CHECK(reference.steps.back().loss != reference.steps.front().loss);  // the parameters move
    for (const int stage : {0, 1, 2, 3}) {
      for (const std::int64_t bucket : {1'000L, 50'000L, 500'000'000L}) {
        for (const std::int64_t persistence : {0L, 1'000L, 100'000L}) {
          if (stage < 3 && persistence != 0) {
            continue;  // the threshold belongs to stage 3
          }
          INFO(ranks << " ranks, stage " << stage << ", bucket " << bucket << ", persistence "
                     << persistence);
          CHECK(same_bits(reference, run(spec_of(ranks, stage, bucket, persistence))));
        }
      }
    }
  }
}

TEST_CASE("reproducibility: in bf16 and fp16 stages and buckets give the same bits",
          "[engine][bits]") {
  for (const char* precision : {"bf16", "fp16"}) {
    for (const int ranks : {2, 3}) {
      RunSpec reference_spec = spec_of(ranks, 0, 500'000'000, 0);
      reference_spec.precision = precision;
      const RunResult reference = run(reference_spec);
      for (const int stage : {0, 1, 2, 3}) {
        for (const std::int64_t bucket : {1'000L, 50'000L}) {
          RunSpec spec = spec_of(ranks, stage, bucket, 0);
          spec.precision = precision;
          INFO(precision << " " << ranks << " ranks, stage " << stage << ", bucket " << bucket);
          CHECK(same_bits(reference, run(spec)));
          // As DeepSpeed has it, stage 0 accumulates in the model's dtype only.
          spec.top_keys = stage > 0 ? R"("data_types": {"grad_accum_dtype": "fp32"})" : "";
          CHECK(same_bits(reference, run(spec)));  // one micro-step: nothing is summed
        }
      }
    }
  }
}

TEST_CASE("reproducibility: a second run repeats the first", "[engine][bits]") {
  const RunSpec spec = spec_of(3, 3, 50'000, 0);
  CHECK(same_bits(run(spec), run(spec)));
}

TEST_CASE("reproducibility: with accumulation stages 0 and 1 agree, and stages 2 and 3",
          "[engine][bits]") {
  for (const char* precision : {"", "bf16", "fp16"}) {
    for (const char* keys : {"", R"("data_types": {"grad_accum_dtype": "fp32"})"}) {
      const auto accumulate = [&](int stage) {
        RunSpec spec = spec_of(2, stage, 50'000, 0);
        spec.accumulation = 3;
        spec.precision = precision;
        spec.top_keys = keys;
        return run(spec);
      };
      INFO(precision << " " << keys);
      CHECK((keys[0] != '\0' || same_bits(accumulate(0), accumulate(1))));
      CHECK(same_bits(accumulate(2), accumulate(3)));
    }
  }
}

TEST_CASE("optimizers: every rule gives the same bits in every stage, with a schedule of its own",
          "[engine][optimizer]") {
  for (const char* optimizer :
       {R"({"type": "Adam", "params": {"lr": 0.01, "adam_w_mode": false, "weight_decay": 0.1}})",
        R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})",
        R"({"type": "Lion", "params": {"lr": 0.001, "weight_decay": 0.1}})",
        R"({"type": "Adagrad", "params": {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.1}})"}) {
    for (const char* precision : {"", "fp16"}) {
      std::vector<RunResult> results;
      for (const int stage : {0, 1, 2, 3}) {
        RunSpec spec;
        spec.stage = stage;
        spec.optimizer = optimizer;
        spec.precision = precision;
        spec.steps = 6;
        spec.top_keys = R"("zero_allow_untested_optimizer": true)";
        results.push_back(run(spec));
        INFO(optimizer << ", stage " << stage << " " << precision);
        CHECK(same_bits(results.front(), results.back()));
      }
      CHECK_FALSE(results.front().steps.back().skipped);
    }
  }
}

nn::GptConfig dropping_gpt() {
  nn::GptConfig config = RunSpec::tiny_gpt();
  config.embedding_dropout = 0.1F;
  config.attention_dropout = 0.1F;
  config.residual_dropout = 0.1F;
  return config;
}

TEST_CASE("dropout: the same bits in every stage, bucket and recomputation", "[engine][dropout]") {
  for (const int ranks : {2, 3}) {
    for (const char* precision : {"", "bf16", "fp16"}) {
      for (const std::int64_t accumulation : {1, 2}) {
        RunSpec spec;
        spec.model = dropping_gpt();
        spec.ranks = ranks;
        spec.precision = precision;
        spec.accumulation = accumulation;
        spec.micro_batch = 1;
        std::vector<RunResult> results;
        for (const int stage : {0, 1, 2, 3}) {
          spec.stage = stage;
          spec.zero_keys = stage % 2 == 1 ? R"("reduce_bucket_size": 5000)" : "";
          spec.top_keys =
              stage == 3 ? R"("activation_checkpointing": {"partition_activations": true})" : "";
          results.push_back(run(spec));
        }
        INFO(ranks << " ranks " << precision << ", accumulation " << accumulation);
        CHECK(same_bits(results[0], results[1]));
        CHECK(same_bits(results[2], results[3]));
        CHECK((accumulation > 1 || same_bits(results[0], results[2])));
      }
    }
  }
}

TEST_CASE("dropout: a global batch drops the same elements however it is split",
          "[engine][dropout]") {
  std::vector<RunResult> results;
  for (const auto& [ranks, micro, accumulation] :
       {std::tuple{1, 4, 1}, {2, 2, 1}, {4, 1, 1}, {1, 1, 4}, {2, 1, 2}}) {
    RunSpec spec;
    spec.model = dropping_gpt();
    spec.ranks = ranks;
    spec.micro_batch = micro;
    spec.accumulation = accumulation;
    spec.steps = 3;
    results.push_back(run(spec));
    for (std::size_t step = 0; step < 3; ++step) {
      INFO(ranks << " ranks, micro-batch " << micro << ", step " << step);
      CHECK(results.back().steps[step].loss ==
            Approx(results.front().steps[step].loss).epsilon(2e-5));
    }
  }
  RunSpec plain;
  plain.steps = 1;
  plain.ranks = 1;
  plain.micro_batch = 4;
  CHECK(std::abs(run(plain).steps[0].loss - results.front().steps[0].loss) > 1e-4);
}

TEST_CASE("recomputation: the same bits in every stage, in the memory that the plan says",
          "[engine][recompute]") {
  for (const std::string& precision : {std::string(), std::string("bf16")}) {
    for (const int stage : {0, 1, 2, 3}) {
      RunSpec spec;
      spec.stage = stage;
      spec.precision = precision;
      spec.accumulation = 2;
      spec.model.layers = 5;
      const RunResult kept = run(spec);
      for (const char* number : {"0", "2", "3", "99"}) {
        spec.zero_keys = stage == 3 ? R"("stage3_max_reuse_distance": 0)" : "";
        spec.top_keys = fmt::format(
            R"("activation_checkpointing": {{"partition_activations": true, "number_checkpoints": {}}})",
            number);
        const RunResult recomputed = run(spec);
        INFO("stage " << stage << " " << precision << ", " << number << " checkpoints");
        CHECK(same_bits(kept, recomputed));
        const auto activations = static_cast<std::size_t>(Category::kActivations);
        CHECK(recomputed.plan.recompute);
        CHECK(recomputed.plan.bytes[activations] < kept.plan.bytes[activations]);
        CHECK(recomputed.memory.front().device.peak_bytes[activations] ==
              recomputed.plan.bytes[activations]);
      }
    }
  }
}

TEST_CASE("recomputation: inputs that wait on the host change no bit and leave the device",
          "[engine][recompute]") {
  for (const std::string& precision : {std::string(), std::string("bf16")}) {
    for (const std::int64_t layers : {1, 2, 5}) {
      RunSpec spec;
      spec.stage = 3;
      spec.precision = precision;
      spec.accumulation = 2;
      spec.model.layers = layers;
      spec.top_keys = R"("activation_checkpointing": {"partition_activations": true})";
      const RunResult on_device = run(spec);
      spec.top_keys = R"("activation_checkpointing": {"cpu_checkpointing": true})";
      const RunResult on_host = run(spec);
      INFO(layers << " layers " << precision);
      CHECK(same_bits(on_device, on_host));
      const auto activations = static_cast<std::size_t>(Category::kActivations);
      const std::int64_t input = 2 * 16 * 48 * (precision.empty() ? 4 : 2);
      // Two inputs stay where all were, and the last segment's is one of the two.
      CHECK(on_device.plan.bytes[activations] - on_host.plan.bytes[activations] ==
            (layers - 1) * input);
      CHECK(on_host.plan.host_bytes[activations] == (layers - 1) * input);
      CHECK(on_host.memory.front().host.peak_bytes[activations] == (layers - 1) * input);
    }
  }
}

TEST_CASE("reproducibility: prefetch and retention never change a bit", "[engine][bits]") {
  RunSpec spec = spec_of(2, 3, 500'000'000, 0);
  const RunResult reference = run(spec);
  for (const char* keys :
       {R"("stage3_prefetch_bucket_size": 0)",
        R"("stage3_max_reuse_distance": 0)",
        R"("stage3_prefetch_bucket_size": 1000, "allgather_bucket_size": 256)"}) {
    spec.zero_keys = std::string(R"("stage3_param_persistence_threshold": 0, )") + keys;
    CHECK(same_bits(reference, run(spec)));
  }
}
