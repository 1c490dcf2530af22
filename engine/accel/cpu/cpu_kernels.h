#pragma once

#include <zero/accel/device.h>

#include <memory>

namespace zero::accel {

/// The kernel table of the CPU. `device` must outlive it and gives threads and scratch.
[[nodiscard]] std::unique_ptr<Kernels> make_cpu_kernels(Device& device);

}  // namespace zero::accel
