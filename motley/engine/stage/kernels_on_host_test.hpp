// For tests without a card.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cuda/cuda_device.hpp"
#include "motley/engine/cuda/cuda_library.hpp"
#include "motley/engine/cuda/cuda_ops.hpp"

namespace motley {

// The processors, which compute by the kernels for GPUs, or by others in their place.
class KernelsOnHost final : public ComputeDevice {
 public:
  explicit KernelsOnHost(const cuda::Kernels& kernels = open_cuda_kernels(MOTLEY_HOST_KERNELS))
      : ComputeDevice(at::kCPU), kernels_(kernels) {}
  bool has_own_memory() const override { return false; }
  std::optional<std::int64_t> free_bytes() const override { return cpu_device().free_bytes(); }
  at::Tensor host_space(const at::Tensor& like, at::Tensor&) const override { return like; }
  MemoryMeter& meter() const override { return cpu_device().meter(); }
  void synchronize() const override {}
  void wait_for_thread() const override {}
  bool pin(std::span<std::byte> bytes) const override {
    return kernels_.pin(bytes.data(), static_cast<std::int64_t>(bytes.size())) == 0;
  }
  const PeerMemory* peer_memory() const override { return &peer_memory_; }
  const SumKernels* sum_kernels() const override { return &sums_; }
  bool packs_int8() const override { return true; }
  void pack_int8(const at::Tensor& rows, const at::Tensor& packed) const override {
    pack_int8_by(kernels_, *this, rows, packed);
  }
  std::string kernels() const override { return "cuda"; }
  std::shared_ptr<const Ops> make_ops() const override { return std::make_shared<CudaOps>(kernels_, *this); }
  const Ops& differentiable_ops() const override { return motley::differentiable_ops(); }

 private:
  const cuda::Kernels kernels_;
  const CudaPeerMemory peer_memory_{kernels_, *this};
  const CudaSums sums_{kernels_, *this};
};

}  // namespace motley
