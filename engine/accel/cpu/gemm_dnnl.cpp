#include "engine/accel/cpu/gemm.h"
#include "engine/accel/cpu/scratch.h"
#include <zero/core/error.h>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <map>
#include <tuple>
#include <unordered_map>

// The one file that names oneDNN.
namespace zero::accel {
namespace {

using dnnl::memory;

/// Shape and layout of a product: everything its code depends on.
using Key = std::
    tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, int>;

Key key_of(const HostGemm& g) {
  const int flags = (g.transpose_a ? 1 : 0) | (g.transpose_b ? 2 : 0) | (g.accumulate ? 4 : 0) |
                    (g.bias != nullptr ? 8 : 0);
  return {g.m, g.n, g.k, g.lda, g.ldb, g.ldc, flags};
}

memory::desc matrix(std::int64_t rows, std::int64_t columns, std::int64_t ld, bool transposed) {
  return {{rows, columns},
          memory::data_type::f32,
          transposed ? memory::dims{1, ld} : memory::dims{ld, 1}};
}

dnnl::matmul::primitive_desc describe(const HostGemm& g, const dnnl::engine& engine) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0F);
    attr.set_post_ops(ops);
  }
  const memory::desc a = matrix(g.m, g.k, g.lda, g.transpose_a);
  const memory::desc b = matrix(g.k, g.n, g.ldb, g.transpose_b);
  const memory::desc c = matrix(g.m, g.n, g.ldc, false);
  const memory::desc bias({1, g.n}, memory::data_type::f32, memory::dims{g.n, 1});
  const dnnl::matmul::desc what =
      g.bias != nullptr ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  return {what, attr, engine};
}

/// What a thread keeps between products: the code it has made.
struct ThreadState {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, std::pair<dnnl::matmul, memory::desc>> made;
};

ThreadState& state() {
  thread_local ThreadState mine;
  return mine;
}

}  // namespace

void host_gemm(const HostGemm& g, Device& device, int /*threads*/) {
  ThreadState& mine = state();
  try {
    auto found = mine.made.find(key_of(g));
    if (found == mine.made.end()) {
      const dnnl::matmul::primitive_desc description = describe(g, mine.engine);
      found = mine.made
                  .emplace(key_of(g),
                           std::pair(dnnl::matmul(description), description.scratchpad_desc()))
                  .first;
    }
    const auto& [product, scratch_desc] = found->second;
    const auto bind = [&](const memory::desc& desc, const void* data) {
      return memory(desc, mine.engine, const_cast<void*>(data));
    };
    std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, bind(matrix(g.m, g.k, g.lda, g.transpose_a), g.a)},
        {DNNL_ARG_WEIGHTS, bind(matrix(g.k, g.n, g.ldb, g.transpose_b), g.b)},
        {DNNL_ARG_DST, bind(matrix(g.m, g.n, g.ldc, false), g.c)},
        {DNNL_ARG_SCRATCHPAD,
         bind(scratch_desc, scratch(device, ScratchUse::kLibrary, scratch_desc.get_size()))}};
    if (g.bias != nullptr) {
      arguments.emplace(DNNL_ARG_BIAS,
                        bind({{1, g.n}, memory::data_type::f32, memory::dims{g.n, 1}}, g.bias));
    }
    product.execute(mine.stream, arguments);
    mine.stream.wait();
  } catch (const dnnl::error& error) {
    throw DeviceError(
        fmt::format("oneDNN refuses a product of {} x {} x {}: {}", g.m, g.n, g.k, error.what()),
        "gemm",
        "build with ZERO_WITH_DNNL=OFF");
  }
}

}  // namespace zero::accel
