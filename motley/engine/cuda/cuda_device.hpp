// NVIDIA GPUs as devices.
#pragma once

#include "motley/engine/cuda/kernels.hpp"
#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/device/peer_memory.hpp"
#include "motley/engine/device/sum_kernels.hpp"

namespace motley {

// As CUDA lists them to this process. CUDA's libraries are opened at the first call, before anything asks whether there
// are any. Throws an environment error where the libraries are missing, or the driver is one that they do not know.
int count_cuda_devices();

// Device `index` of CUDA's list, `name` in errors. Throws an environment error where the libraries, the driver or the
// device are missing.
const ComputeDevice& open_cuda_device(int index, const std::string& name);

// By a library of kernels, on the stream that this device has for the calling thread.
class CudaPeerMemory final : public PeerMemory {
 public:
  CudaPeerMemory(const cuda::Kernels& kernels, const ComputeDevice& device) : kernels_(kernels), device_(device) {}
  std::optional<Buffer> allocate(std::int64_t bytes) const override;
  void free(void* memory) const override { kernels_.peer_free(memory); }
  void* open(const PeerBufferHandle& handle) const override;
  void close(void* memory) const override { kernels_.peer_close(memory); }
  void copy(void* to, const void* from, std::int64_t bytes) const override;

 private:
  const cuda::Kernels& kernels_;
  const ComputeDevice& device_;
};

// Alike.
class CudaSums final : public SumKernels {
 public:
  CudaSums(const cuda::Kernels& kernels, const ComputeDevice& device) : kernels_(kernels), device_(device) {}
  std::string_view vendor() const override { return "cuda"; }
  int most_blocks() const override { return kernels_.sum_blocks; }
  std::int64_t segment_bytes(std::int64_t most_bytes) const override { return cuda::sum_segment_bytes(most_bytes); }
  void* address_of(void* pinned) const override;
  void sum(const SharedSum& task) const override;

 private:
  const cuda::Kernels& kernels_;
  const ComputeDevice& device_;
};

// As ComputeDevice::pack_int8(), alike.
void pack_int8_by(const cuda::Kernels& kernels, const ComputeDevice& device, const at::Tensor& rows,
                  const at::Tensor& packed);

}  // namespace motley
