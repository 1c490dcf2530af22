#include "tests/nn/whole_model.h"
#include <support/catch.h>
#include <zero/nn/mlp_classifier.h>

#include <cmath>

namespace zero::nn {
namespace {

using support::WholeModel;

Batch some_batch() {
  const std::vector<float> features = support::noise("features", 4 * 5);
  return {HostTensor::copy_of(std::span<const float>(features), Shape{4, 5}),
          support::int_tensor({0, 2, -1, 1}, Shape{4})};
}

TEST_CASE("classifier: gradients agree with differences", "[nn][classifier]") {
  MlpClassifier classifier({5, 6, 4, 3});
  WholeModel model(classifier);
  model.randomize(1, 0.7);
  (void)model.train_forward(classifier, some_batch());
  model.backward(classifier, 2.0F);
  CHECK(model.arena.mark() == 0);
  constexpr float kStep = 5e-3F;  // small, so that no ReLU changes sides
  for (const ParamInfo& info : model.params) {
    const std::vector<float> original = model.value(info.name);
    const std::vector<float> gradient = model.grad(info.name);
    for (std::size_t i = 0; i < original.size(); ++i) {
      std::vector<float> moved = original;
      moved[i] = original[i] + kStep;
      model.set_value(info.name, moved);
      const auto above = static_cast<double>(model.evaluate(classifier, some_batch()));
      moved[i] = original[i] - kStep;
      model.set_value(info.name, moved);
      const auto below = static_cast<double>(model.evaluate(classifier, some_batch()));
      INFO(info.name << " element " << i);
      CHECK(static_cast<double>(gradient[i]) ==
            Approx(2.0 * (above - below) / (2.0 * static_cast<double>(kStep))).margin(2e-3));
    }
    model.set_value(info.name, original);
  }
}

TEST_CASE("classifier: 16-bit parameters take fp32 features", "[nn][classifier]") {
  MlpClassifier wide({5, 6, 3});
  MlpClassifier narrow({5, 6, 3});
  WholeModel reference(wide);
  WholeModel model(narrow, DType::kBF16);
  reference.randomize(1, 0.7);
  model.randomize(1, 0.7);
  CHECK(model.train_forward(narrow, some_batch()) ==
        Approx(reference.train_forward(wide, some_batch())).epsilon(2e-2));
  model.backward(narrow);
}

TEST_CASE("classifier: sizes and batches that do not fit are refused", "[nn][classifier]") {
  CHECK_THROWS_AS(MlpClassifier({3}), InputError);
  CHECK_THROWS_AS(MlpClassifier({3, 0}), InputError);
  const MlpClassifier classifier({5, 3});
  CHECK_NOTHROW(classifier.check_batch(some_batch()));
  CHECK_NOTHROW(classifier.check_batch(classifier.example_batch(2)));
  Batch batch = some_batch();
  batch.targets = support::int_tensor({0, 3, 0, 0}, Shape{4});
  CHECK_THROWS_WITH(classifier.check_batch(batch), Catch::Contains("target 3 of row 1"));
  batch.targets = support::int_tensor({0}, Shape{1});
  CHECK_THROWS_AS(classifier.check_batch(batch), InputError);
}

}  // namespace
}  // namespace zero::nn
