#pragma once

#include <zero/core/tensor_view.h>

#include <cstddef>
#include <cstdint>

namespace zero::accel {

#ifdef ZERO_BIASED_POINTERS
/// Device pointers of the test preset lie this far above the memory they stand for: outside the
/// user address space, so that a dereference anywhere but here faults.
inline constexpr std::uintptr_t kDeviceBias = std::uintptr_t{1} << 47U;
#else
inline constexpr std::uintptr_t kDeviceBias = 0;
#endif

/// The address of the memory behind a device or host pointer. Host pointers stay as they are.
template <class Byte>
[[nodiscard]] inline Byte* host_address(Byte* pointer) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return kDeviceBias != 0 && address >= kDeviceBias ? pointer - kDeviceBias : pointer;
}

/// The elements of a view, wherever it lies; for kernels and copies only.
template <class T>
[[nodiscard]] inline T* elements(TensorView view) {
  return reinterpret_cast<T*>(host_address(view.data));
}
template <class T>
[[nodiscard]] inline const T* elements(ConstTensorView view) {
  return reinterpret_cast<const T*>(host_address(view.data));
}

}  // namespace zero::accel
