// For tests without a card.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cuda/cuda_library.hpp"
#include "motley/engine/cuda/cuda_ops.hpp"

namespace motley {

// The processors, which compute by the kernels for GPUs.
class KernelsOnHost final : public ComputeDevice {
 public:
  KernelsOnHost() : ComputeDevice(at::kCPU) {}
  bool has_own_memory() const override { return false; }
  std::optional<std::int64_t> free_bytes() const override { return cpu_device().free_bytes(); }
  at::Tensor host_space(const at::Tensor& like, at::Tensor&) const override { return like; }
  MemoryMeter& meter() const override { return cpu_device().meter(); }
  void synchronize() const override {}
  void wait_for_thread() const override {}
  std::string kernels() const override { return "cuda"; }
  std::shared_ptr<const Ops> make_ops() const override {
    return std::make_shared<CudaOps>(open_cuda_kernels(MOTLEY_HOST_KERNELS), *this);
  }
  const Ops& differentiable_ops() const override { return motley::differentiable_ops(); }
};

}  // namespace motley
