#include "motley/engine/cpu/cpu_device.hpp"

#include <malloc.h>

#include <limits>

#include "motley/base/free_memory.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"
#include "motley/engine/cpu/cpu_meter.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

class CpuDevice final : public ComputeDevice {
 public:
  CpuDevice() : ComputeDevice(at::Device(at::kCPU)) {}
  at::Tensor empty(at::IntArrayRef shape, at::ScalarType type) const override {
    at::Tensor tensor = at::empty(shape, type);
    advise_large_pages(tensor);
    return tensor;
  }
  bool has_own_memory() const override { return false; }
  std::optional<std::int64_t> free_bytes() const override { return free_memory_bytes(); }
  at::Tensor host_space(const at::Tensor& like, at::Tensor&) const override { return like; }
  MemoryMeter& meter() const override { return cpu_meter(); }
  void keep_freed_memory() const override {
    constexpr int largest_mmap_threshold = 32 << 20;  // that the allocator takes
    ::mallopt(M_MMAP_THRESHOLD, largest_mmap_threshold);
    ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
    ::mallopt(M_TOP_PAD, 2 * largest_mmap_threshold);
  }
  // Operations are done when their calls return.
  void synchronize() const override {}
  void wait_for_thread() const override {}
  std::string kernels() const override { return std::string(cpu_kernels_name()); }
  std::shared_ptr<const Ops> make_ops() const override { return lasting(cpu_ops()); }
  const Ops& differentiable_ops() const override { return motley::differentiable_ops(); }
};

}  // namespace

const ComputeDevice& cpu_device() {
  static const CpuDevice device;
  return device;
}

}  // namespace motley
