#pragma once

#include <zero/accel/device.h>

#include <cstdint>

namespace zero::accel {

/// An fp32 product on host memory: C[m, n] (+)= op(A) · op(B) (+ bias), leading dimensions given,
/// row-major.
struct HostGemm {
  const float* a;
  const float* b;
  const float* bias;  ///< [n] or nullptr
  float* c;
  std::int64_t m, n, k;
  std::int64_t lda, ldb, ldc;
  bool transpose_a, transpose_b, accumulate;
};

/// Implemented by gemm_dnnl.cpp where oneDNN is there, else by gemm_plain.cpp. Scratch comes from
/// `device`.
void host_gemm(const HostGemm& gemm, Device& device, int threads);

}  // namespace zero::accel
