#pragma once

#include <zero/core/dtype.h>
#include <zero/core/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace zero {

/// Sizes of up to four dimensions, row-major; rank 0 is a scalar of one element.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  constexpr Shape() noexcept = default;
  Shape(std::initializer_list<std::int64_t>
            dims);  // NOLINT(google-explicit-constructor): {B, T, C} reads as a shape
  explicit Shape(std::span<const std::int64_t> dims);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t operator[](int dim) const {
    return dims_.at(static_cast<std::size_t>(dim));
  }
  [[nodiscard]] std::int64_t elems() const noexcept;
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// A typed, shaped, contiguous piece of memory that somebody else owns.
///
/// `data` may be device memory: only accel kernels and copies may dereference it, unless the owner
/// is known to be host memory (then `as<T>()` gives a span). A default-constructed view is empty
/// (`data == nullptr`).
template <class Byte>
struct BasicTensorView {
  Byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape{0};

  [[nodiscard]] std::int64_t elems() const noexcept { return shape.elems(); }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(elems()) * dtype_size(dtype);
  }
  [[nodiscard]] explicit operator bool() const noexcept { return data != nullptr; }

  /// Elements [begin, begin + count) as a one-dimensional view.
  [[nodiscard]] BasicTensorView slice(std::int64_t begin, std::int64_t count) const {
    ZERO_CHECK(begin >= 0 && count >= 0 && begin + count <= elems(), "slice outside its tensor");
    return {data + static_cast<std::size_t>(begin) * dtype_size(dtype), dtype, Shape{count}};
  }
  [[nodiscard]] BasicTensorView reshape(const Shape& to) const {
    ZERO_CHECK(to.elems() == elems(),
               "reshape from " + shape.to_string() + " to " + to.to_string());
    return {data, dtype, to};
  }
  /// Host memory only.
  template <class T>
  [[nodiscard]] auto as() const {
    ZERO_CHECK(kDTypeOf<T> == dtype, "view holds another element type");
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return std::span<Element>(reinterpret_cast<Element*>(data), static_cast<std::size_t>(elems()));
  }
  /// Views convert to read-only views.
  operator BasicTensorView<const Byte>()
      const  // NOLINT(google-explicit-constructor): like T* to const T*
      requires(!std::is_const_v<Byte>) {
    return {data, dtype, shape};
  }
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

/// Views over host memory.
template <class T>
[[nodiscard]] TensorView view_of(std::span<T> values) {
  return {reinterpret_cast<std::byte*>(values.data()),
          kDTypeOf<T>,
          Shape{static_cast<std::int64_t>(values.size())}};
}
template <class T>
[[nodiscard]] ConstTensorView view_of(std::span<const T> values) {
  return {reinterpret_cast<const std::byte*>(values.data()),
          kDTypeOf<T>,
          Shape{static_cast<std::int64_t>(values.size())}};
}

}  // namespace zero
