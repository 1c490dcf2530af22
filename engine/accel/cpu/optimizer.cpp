#include "engine/accel/cpu/kernel_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>

namespace zero::accel {
namespace {

constexpr std::size_t kBlock = 64;        // elements of one partial sum of squares
constexpr std::int64_t kGrain = 1 << 14;  // elements a thread takes at a time, a multiple of kBlock

using Limbs = std::span<std::int64_t, exact_sum::kLimbs>;

void add_exactly(double value, std::int64_t* limbs) {
  if (std::isfinite(value)) {
    exact_sum::add(Limbs(limbs, exact_sum::kLimbs), value);
  } else {
    ++limbs[exact_sum::kLimbs];
  }
}

template <class T>
ZERO_VECTOR_CLONES void block_sums(const T* x, std::size_t blocks, double* sums) {
  for (std::size_t block = 0; block < blocks; ++block) {
    const T* from = x + block * kBlock;
    sums[block] = lane_sum<double>(kBlock, [&](std::size_t i) {
      const auto v = static_cast<double>(to_float(from[i]));
      return v * v;
    });
  }
}

/// Adds the squares of n elements, whole blocks of them, into limbs.
template <class T>
void add_squares(const T* x, std::size_t n, std::int64_t* limbs) {
  constexpr std::size_t kBlocks = 64;  // partial sums at a time
  double sums[kBlocks];
  for (std::size_t done = 0; done < n; done += kBlocks * kBlock) {
    const std::size_t count = std::min(kBlocks, (n - done) / kBlock);
    block_sums(x + done, count, sums);
    for (std::size_t i = 0; i < count; ++i) {
      add_exactly(sums[i], limbs);
    }
  }
}

/// The numbers of one update that are the same for all elements, rounded once to fp32.
struct AdamNumbers {
  float factor;  // of the gradient: unscale and clip
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float decay;         // decoupled: p ·= decay
  float l2;            // otherwise: g += l2 · p
  float step_size;     // lr / (1 − β1^t)
  float inverse_root;  // 1 / sqrt(1 − β2^t)
  float eps;
};

AdamNumbers numbers_of(const AdamArgs& args, float factor) {
  const auto t = static_cast<double>(args.t);
  const double correction1 = args.bias_correction ? 1.0 - std::pow(args.beta1, t) : 1.0;
  const double correction2 = args.bias_correction ? 1.0 - std::pow(args.beta2, t) : 1.0;
  const auto f = [](double value) { return static_cast<float>(value); };
  return {factor,
          f(args.beta1),
          f(1.0 - args.beta1),
          f(args.beta2),
          f(1.0 - args.beta2),
          f(args.decoupled ? 1.0 - args.lr * args.weight_decay : 1.0),
          f(args.decoupled ? 0.0 : args.weight_decay),
          f(args.lr / correction1),
          f(1.0 / std::sqrt(correction2)),
          f(args.eps)};
}

/// m = β1 m + (1−β1) g; v = β2 v + (1−β2) g²; p = p (1 − lr·wd) − lr/(1−β1^t) · m /
/// (sqrt(v)/sqrt(1−β2^t) + eps).
template <class G, class C>
ZERO_VECTOR_CLONES void adam_loop(const AdamNumbers& numbers,
                                  const G* grad,
                                  float* p,
                                  float* m,
                                  float* v,
                                  C* copy,
                                  std::size_t n) {
  const AdamNumbers k = numbers;
  for (std::size_t i = 0; i < n; ++i) {
    const float g = to_float(grad[i]) * k.factor + k.l2 * p[i];
    const float m1 = k.beta1 * m[i] + k.one_minus_beta1 * g;
    const float v1 = k.beta2 * v[i] + k.one_minus_beta2 * (g * g);
    const float p1 = p[i] * k.decay - k.step_size * (m1 / (std::sqrt(v1) * k.inverse_root + k.eps));
    m[i] = m1;
    v[i] = v1;
    p[i] = p1;
    if constexpr (!std::is_same_v<C, float>) {
      copy[i] = from_float<C>(p1);
    }
  }
}

struct SgdNumbers {
  float factor, lr, momentum, one_minus_dampening, weight_decay;
  bool nesterov;
};

/// What an update does with its momentum buffer: none there, sets it to the gradient, or adds.
enum class Momentum : std::uint8_t { kNone, kFirst, kLater };

/// g = factor · grad + decay · p; b = μ b + (1 − dampening) g; p = p − lr (b, or g + μ b).
template <Momentum kMomentum, class G, class C>
ZERO_VECTOR_CLONES void sgd_loop(
    const SgdNumbers& numbers, const G* grad, float* p, float* b, C* copy, std::size_t n) {
  const SgdNumbers k = numbers;
  for (std::size_t i = 0; i < n; ++i) {
    const float g = to_float(grad[i]) * k.factor + k.weight_decay * p[i];
    float step = g;
    if constexpr (kMomentum != Momentum::kNone) {
      step = kMomentum == Momentum::kFirst ? g : k.momentum * b[i] + k.one_minus_dampening * g;
      b[i] = step;
      step = k.nesterov ? g + k.momentum * step : step;
    }
    const float p1 = p[i] - k.lr * step;
    p[i] = p1;
    if constexpr (!std::is_same_v<C, float>) {
      copy[i] = from_float<C>(p1);
    }
  }
}

template <class G, class C>
void sgd_piece(const SgdArgs& args, const SgdNumbers& k, std::int64_t at, std::size_t count) {
  const G* grad = elements<G>(args.grad) + at;
  float* p = elements<float>(args.master) + at;
  C* copy = args.model_copy ? elements<C>(args.model_copy) + at : nullptr;
  if (!args.momentum_buffer) {
    return sgd_loop<Momentum::kNone>(k, grad, p, nullptr, copy, count);
  }
  float* b = elements<float>(args.momentum_buffer) + at;
  args.t == 1 ? sgd_loop<Momentum::kFirst>(k, grad, p, b, copy, count)
              : sgd_loop<Momentum::kLater>(k, grad, p, b, copy, count);
}

/// m = β2 m + (1−β2) g after p = p (1 − lr·wd) − lr · sign(β1 m + (1−β1) g).
struct LionRule {
  float factor, lr, beta1, one_minus_beta1, beta2, one_minus_beta2, decay;

  float operator()(float g, float p, float& m) const {
    const float direction = beta1 * m + one_minus_beta1 * g;
    const float sign = direction > 0.0F ? 1.0F : direction < 0.0F ? -1.0F : 0.0F;
    m = beta2 * m + one_minus_beta2 * g;
    return p * decay - lr * sign;
  }
};

/// s = s + g²; p = p − lr · g / (sqrt(s) + eps), with g = grad + wd · p.
struct AdagradRule {
  float factor, lr, eps, weight_decay;

  float operator()(float grad, float p, float& sum) const {
    const float g = grad + weight_decay * p;
    sum = sum + g * g;
    return p - lr * (g / (std::sqrt(sum) + eps));
  }
};

/// A rule that keeps one state: p = rule(factor · grad, p, state).
template <class Rule, class G, class C>
ZERO_VECTOR_CLONES void one_state_loop(
    const Rule& rule, const G* grad, float* p, float* state, C* copy, std::size_t n) {
  const Rule k = rule;
  for (std::size_t i = 0; i < n; ++i) {
    const float p1 = k(to_float(grad[i]) * k.factor, p[i], state[i]);
    p[i] = p1;
    if constexpr (!std::is_same_v<C, float>) {
      copy[i] = from_float<C>(p1);
    }
  }
}

/// loop(begin, count) in pieces, unless the step is to be skipped.
template <class Loop>
void unless_skipped(const StepScalars& scalars, int threads, std::int64_t n, Loop loop) {
  if (scalars.skip != 0) {
    return;
  }
  parallel_for(threads, (n + kGrain - 1) / kGrain, [&](std::int64_t piece) {
    loop(piece * kGrain, static_cast<std::size_t>(std::min(kGrain, n - piece * kGrain)));
  });
}

template <class Body>
void with_gradient_and_copy(DType grad, TensorView copy, Body body) {
  with_floating(grad, [&](auto g) {
    with_floating(copy ? copy.dtype : DType::kF32, [&](auto c) { body(g, c); });
  });
}

StepScalars read_scalars(ConstTensorView view) {
  return *elements<StepScalars>(view);
}

/// Enqueues an update under the rule that make_rule(gradient factor) gives.
template <class Args, class MakeRule>
void one_state_update(const Args& args,
                      TensorView state,
                      ConstTensorView scalars,
                      int threads,
                      Stream& stream,
                      MakeRule make_rule) {
  const std::int64_t n = args.master.elems();
  ZERO_CHECK(args.grad.elems() == n && state.elems() == n &&
                 (!args.model_copy || args.model_copy.elems() == n),
             "update: states of different length");
  with_gradient_and_copy(args.grad.dtype, args.model_copy, [&](auto g, auto c) {
    using G = decltype(g);
    using C = decltype(c);
    stream.host_task([=] {
      const StepScalars step = read_scalars(scalars);
      const auto rule = make_rule(step.gradient_factor);
      unless_skipped(step, threads, n, [&](std::int64_t at, std::size_t count) {
        C* copy = args.model_copy ? elements<C>(args.model_copy) + at : nullptr;
        one_state_loop(rule,
                       elements<G>(args.grad) + at,
                       elements<float>(args.master) + at,
                       elements<float>(state) + at,
                       copy,
                       count);
      });
    });
  });
}

}  // namespace

void CpuKernels::sum_of_squares(ConstTensorView x, TensorView limbs, Stream& stream) const {
  ZERO_CHECK(x.elems() % static_cast<std::int64_t>(kBlock) == 0,
             "sum_of_squares takes whole blocks");
  with_floating(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    stream.host_task([=, t = threads()] {
      std::mutex mutex;  // guards what limbs point to
      parallel_for(t, (x.elems() + kGrain - 1) / kGrain, [&](std::int64_t piece) {
        const std::int64_t begin = piece * kGrain;
        std::array<std::int64_t, accel::kNormLimbs + 1> own{};
        add_squares(elements<T>(x) + begin,
                    static_cast<std::size_t>(std::min(kGrain, x.elems() - begin)),
                    own.data());
        const std::lock_guard lock(mutex);
        auto* const all = elements<std::int64_t>(limbs);
        for (std::size_t i = 0; i < own.size(); ++i) {
          all[i] += own[i];
        }
      });
    });
  });
}

void CpuKernels::sum_exactly(ConstTensorView x, TensorView limbs, Stream& stream) const {
  stream.host_task([=] {
    add_exactly(static_cast<double>(elements<float>(x)[0]), elements<std::int64_t>(limbs));
  });
}

void CpuKernels::step_scalars(const StepDecision& decision,
                              ConstTensorView limbs,
                              TensorView scalars,
                              Stream& stream) const {
  stream.host_task([=] {
    using ConstLimbs = std::span<const std::int64_t, exact_sum::kLimbs>;
    const std::int64_t* squares = elements<std::int64_t>(limbs);
    const std::int64_t* losses = squares + exact_sum::kLimbs + 1;
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    StepScalars out;
    const bool finite = squares[exact_sum::kLimbs] == 0;
    out.grad_norm = finite ? std::sqrt(exact_sum::value(ConstLimbs(squares, exact_sum::kLimbs))) /
                                 decision.loss_scale
                           : nothing;
    out.loss = losses[exact_sum::kLimbs] == 0
                   ? exact_sum::value(ConstLimbs(losses, exact_sum::kLimbs)) / decision.loss_divisor
                   : nothing;
    // clip / (norm + 1e-6), at most 1, as torch.nn.utils.clip_grad_norm_ has it.
    const double clip =
        decision.clip > 0.0 && finite ? std::min(1.0, decision.clip / (out.grad_norm + 1e-6)) : 1.0;
    out.gradient_factor = static_cast<float>(clip / decision.loss_scale);
    const bool all_finite = finite && losses[exact_sum::kLimbs] == 0;
    out.skip = decision.check_overflow && !all_finite ? 1 : 0;
    *elements<StepScalars>(scalars) = out;
  });
}

void CpuKernels::adam(const AdamArgs& args, ConstTensorView scalars, Stream& stream) const {
  const std::int64_t n = args.master.elems();
  ZERO_CHECK(args.exp_avg.elems() == n && args.exp_avg_sq.elems() == n && args.grad.elems() == n &&
                 (!args.model_copy || args.model_copy.elems() == n),
             "adam: states of different length");
  with_gradient_and_copy(args.grad.dtype, args.model_copy, [&](auto g, auto c) {
    using G = decltype(g);
    using C = decltype(c);
    stream.host_task([=, t = threads()] {
      const StepScalars step = read_scalars(scalars);
      const AdamNumbers k = numbers_of(args, step.gradient_factor);
      unless_skipped(step, t, n, [&](std::int64_t at, std::size_t count) {
        C* copy = args.model_copy ? elements<C>(args.model_copy) + at : nullptr;
        adam_loop(k,
                  elements<G>(args.grad) + at,
                  elements<float>(args.master) + at,
                  elements<float>(args.exp_avg) + at,
                  elements<float>(args.exp_avg_sq) + at,
                  copy,
                  count);
      });
    });
  });
}

void CpuKernels::sgd(const SgdArgs& args, ConstTensorView scalars, Stream& stream) const {
  const std::int64_t n = args.master.elems();
  ZERO_CHECK(args.grad.elems() == n &&
                 (!args.momentum_buffer || args.momentum_buffer.elems() == n) &&
                 (!args.model_copy || args.model_copy.elems() == n),
             "sgd: states of different length");
  with_gradient_and_copy(args.grad.dtype, args.model_copy, [&](auto g, auto c) {
    using G = decltype(g);
    using C = decltype(c);
    stream.host_task([=, t = threads()] {
      const StepScalars step = read_scalars(scalars);
      const auto f = [](double value) { return static_cast<float>(value); };
      const SgdNumbers k{step.gradient_factor,
                         f(args.lr),
                         f(args.momentum),
                         f(1.0 - args.dampening),
                         f(args.weight_decay),
                         args.nesterov};
      unless_skipped(step, t, n, [&](std::int64_t at, std::size_t count) {
        sgd_piece<G, C>(args, k, at, count);
      });
    });
  });
}

void CpuKernels::lion(const LionArgs& args, ConstTensorView scalars, Stream& stream) const {
  one_state_update(args, args.exp_avg, scalars, threads(), stream, [=](float factor) {
    const auto f = [](double value) { return static_cast<float>(value); };
    return LionRule{factor,
                    f(args.lr),
                    f(args.beta1),
                    f(1.0 - args.beta1),
                    f(args.beta2),
                    f(1.0 - args.beta2),
                    f(1.0 - args.lr * args.weight_decay)};
  });
}

void CpuKernels::adagrad(const AdagradArgs& args, ConstTensorView scalars, Stream& stream) const {
  one_state_update(args, args.sum, scalars, threads(), stream, [=](float factor) {
    const auto f = [](double value) { return static_cast<float>(value); };
    return AdagradRule{factor, f(args.lr), f(args.eps), f(args.weight_decay)};
  });
}

}  // namespace zero::accel
