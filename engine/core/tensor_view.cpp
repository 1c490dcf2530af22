#include <zero/core/tensor_view.h>

#include <algorithm>

namespace zero {

Shape::Shape(std::initializer_list<std::int64_t> dims)
    : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  ZERO_CHECK(dims.size() <= kMaxRank, "a shape has at most four dimensions");
  ZERO_CHECK(std::all_of(dims.begin(), dims.end(), [](std::int64_t d) { return d >= 0; }),
             "a dimension is negative");
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

std::int64_t Shape::elems() const noexcept {
  std::int64_t product = 1;
  for (int dim = 0; dim < rank_; ++dim) {
    product *= dims_[static_cast<std::size_t>(dim)];
  }
  return product;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int dim = 0; dim < rank_; ++dim) {
    text += (dim > 0 ? ", " : "") + std::to_string(dims_[static_cast<std::size_t>(dim)]);
  }
  return text + "]";
}

}  // namespace zero
