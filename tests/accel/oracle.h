#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

// Plain scalar loops in fp64: the simple ancestor of every kernel, by the formula in the kernel's
// comment.
namespace zero::testing::oracle {

using Values = std::vector<double>;

[[nodiscard]] inline Values wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// A [m, k] or transposed, B [k, n] or transposed.
[[nodiscard]] inline Values gemm(const Values& a,
                                 const Values& b,
                                 std::size_t m,
                                 std::size_t n,
                                 std::size_t k,
                                 bool ta,
                                 bool tb) {
  Values c(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t l = 0; l < k; ++l) {
        c[i * n + j] += (ta ? a[l * m + i] : a[i * k + l]) * (tb ? b[j * k + l] : b[l * n + j]);
      }
    }
  }
  return c;
}

[[nodiscard]] inline double gelu(double x) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

[[nodiscard]] inline Values layernorm(const Values& x,
                                      const Values& weight,
                                      const Values& bias,
                                      double eps) {
  const std::size_t n = weight.size();
  Values y(x.size());
  for (std::size_t row = 0; row * n < x.size(); ++row) {
    double mean = 0;
    double variance = 0;
    for (std::size_t i = 0; i < n; ++i) {
      mean += x[row * n + i] / static_cast<double>(n);
    }
    for (std::size_t i = 0; i < n; ++i) {
      variance += (x[row * n + i] - mean) * (x[row * n + i] - mean) / static_cast<double>(n);
    }
    for (std::size_t i = 0; i < n; ++i) {
      y[row * n + i] = (x[row * n + i] - mean) / std::sqrt(variance + eps) * weight[i] + bias[i];
    }
  }
  return y;
}

/// qkv [B, T, 3C] → out [B, T, C]: the full T × T softmax, masked; each probability times
/// factor(b · H + h, i, j).
[[nodiscard]] inline Values attention(
    const Values& qkv,
    std::size_t batch,
    std::size_t tokens,
    std::size_t heads,
    std::size_t width,
    const std::function<double(std::size_t, std::size_t, std::size_t)>& factor = {}) {
  const std::size_t size = width / heads;
  Values out(batch * tokens * width);
  const auto at =
      [&](std::size_t b, std::size_t t, std::size_t which, std::size_t h, std::size_t d) {
        return qkv[(b * tokens + t) * 3 * width + which * width + h * size + d];
      };
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t i = 0; i < tokens; ++i) {
        Values p(i + 1);
        double sum = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          double s = 0;
          for (std::size_t d = 0; d < size; ++d) {
            s += at(b, i, 0, h, d) * at(b, j, 1, h, d);
          }
          p[j] = std::exp(s / std::sqrt(static_cast<double>(size)));
          sum += p[j];
        }
        for (std::size_t j = 0; j <= i; ++j) {
          const double share = p[j] / sum * (factor ? factor(b * heads + h, i, j) : 1.0);
          for (std::size_t d = 0; d < size; ++d) {
            out[(b * tokens + i) * width + h * size + d] += share * at(b, j, 2, h, d);
          }
        }
      }
    }
  }
  return out;
}

/// Gradient of dout · attention(qkv): P, dP = dO·Vᵀ, dS = P (dP − Σ P dP), head by head.
[[nodiscard]] inline Values attention_backward(const Values& qkv,
                                               const Values& dout,
                                               std::size_t batch,
                                               std::size_t tokens,
                                               std::size_t heads,
                                               std::size_t width) {
  const std::size_t size = width / heads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(size));
  Values grad(qkv.size());
  for (std::size_t bh = 0; bh < batch * heads; ++bh) {
    const auto at = [&](std::size_t t, std::size_t which) {
      return (bh / heads * tokens + t) * 3 * width + which * width + bh % heads * size;
    };
    for (std::size_t i = 0; i < tokens; ++i) {
      const double* d = dout.data() + (bh / heads * tokens + i) * width + bh % heads * size;
      Values p(i + 1);
      Values dp(i + 1);
      double sum = 0;
      double mean = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        double score = 0;
        for (std::size_t c = 0; c < size; ++c) {
          score += qkv[at(i, 0) + c] * qkv[at(j, 1) + c];
          dp[j] += d[c] * qkv[at(j, 2) + c];
        }
        p[j] = std::exp(score * scale);
        sum += p[j];
      }
      for (std::size_t j = 0; j <= i; ++j) {
        p[j] /= sum;
        mean += p[j] * dp[j];
      }
      for (std::size_t j = 0; j <= i; ++j) {
        const double ds = p[j] * (dp[j] - mean) * scale;
        for (std::size_t c = 0; c < size; ++c) {
          grad[at(i, 0) + c] += ds * qkv[at(j, 1) + c];
          grad[at(j, 1) + c] += ds * qkv[at(i, 0) + c];
          grad[at(j, 2) + c] += p[j] * d[c];
        }
      }
    }
  }
  return grad;
}

/// −log softmax(row)[target] of each row; 0 for target −1.
[[nodiscard]] inline Values cross_entropy(const Values& logits,
                                          const std::vector<std::int32_t>& targets) {
  const std::size_t n = logits.size() / targets.size();
  Values losses(targets.size());
  for (std::size_t row = 0; row < targets.size(); ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      sum += std::exp(logits[row * n + i]);
    }
    losses[row] = targets[row] < 0
                      ? 0.0
                      : std::log(sum) - logits[row * n + static_cast<std::size_t>(targets[row])];
  }
  return losses;
}

/// Gradient of weights · f(x) by central differences in fp64.
template <class F>
[[nodiscard]] Values gradient(F f, Values x, const Values& weights) {
  Values out(x.size());
  const auto value = [&] {
    const Values y = f(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum += weights[i] * y[i];
    }
    return sum;
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double step = 1e-5;
    const double kept = x[i];
    x[i] = kept + step;
    const double up = value();
    x[i] = kept - step;
    out[i] = (up - value()) / (2 * step);
    x[i] = kept;
  }
  return out;
}

}  // namespace zero::testing::oracle
