#pragma once

#include <utility>

namespace zero {

/// Move-only owner of a C handle. `Traits` gives `Value`, `kNull` and `static void close(Value)
/// noexcept`.
template <class Traits>
class UniqueHandle {
 public:
  using Value = typename Traits::Value;
  UniqueHandle() noexcept = default;
  explicit UniqueHandle(Value value) noexcept : value_(value) {}
  UniqueHandle(UniqueHandle&& other) noexcept : value_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    reset(other.release());
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() { reset(); }

  [[nodiscard]] Value get() const noexcept { return value_; }
  [[nodiscard]] explicit operator bool() const noexcept { return value_ != Traits::kNull; }
  [[nodiscard]] Value release() noexcept { return std::exchange(value_, Traits::kNull); }
  void reset(Value value = Traits::kNull) noexcept {
    const Value old = std::exchange(value_, value);
    if (old != Traits::kNull && old != value) {
      Traits::close(old);
    }
  }

 private:
  Value value_ = Traits::kNull;
};

}  // namespace zero
