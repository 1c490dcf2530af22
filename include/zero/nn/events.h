#pragma once

#include <zero/core/module_events.h>

#include <utility>

namespace zero::nn {

// Layers below compute only. Whoever composes them sends the events: once around each block (which
// stands for everything below it), and once around each layer that lies in no block. An event is
// sent on the normal path only: after an exception the pass is over and nothing is promised any
// more.

/// Runs `body` between before_forward and after_forward of `module`.
template <class Body>
void during_forward(Module& module, Execution& execution, Body&& body) {
  execution.events.before_forward(module, execution.phase, execution.stream);
  std::forward<Body>(body)();
  execution.events.after_forward(module, execution.phase, execution.stream);
}

/// Runs `body` between before_backward and after_backward of `module`.
template <class Body>
void during_backward(Module& module, Execution& execution, Body&& body) {
  execution.events.before_backward(module, execution.stream);
  std::forward<Body>(body)();
  execution.events.after_backward(module, execution.stream);
}

/// Tells that one contribution to parameter.grad is enqueued.
inline void announce_gradient(Parameter& parameter, Execution& execution) {
  execution.events.gradient_ready(
      parameter,
      parameter.grad,
      parameter.grad_accumulate ? GradientWrite::kAccumulated : GradientWrite::kWritten,
      execution.stream);
}

/// Calls write(grad, accumulate) and announces the gradient; does nothing for a frozen parameter.
template <class Write>
void give_gradient(Parameter& parameter, Execution& execution, Write&& write) {
  if (!parameter.grad) {
    return;
  }
  std::forward<Write>(write)(parameter.grad, parameter.grad_accumulate);
  announce_gradient(parameter, execution);
}

}  // namespace zero::nn
