// What devices with memory of their own have in common, by LibTorch's interface to all of them.
#pragma once

#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/device/memory_meter.hpp"

namespace motley {

class Accelerator : public ComputeDevice {
 public:
  explicit Accelerator(at::Device place) : ComputeDevice(place), meter_(place) {}
  bool has_own_memory() const override { return true; }
  at::Tensor host_space(const at::Tensor& like, at::Tensor& buffer) const override;
  MemoryMeter& meter() const override { return meter_; }
  void synchronize() const override;
  void wait_for_thread() const override;
  void* stream() const override;

 private:
  // What LibTorch's allocator for the device says.
  class Meter final : public MemoryMeter {
   public:
    explicit Meter(at::Device place) : place_(place) {}
    std::int64_t bytes() override;
    std::int64_t peak_bytes() override;
    void reset_peak() override;

   private:
    at::Device place_;
  };
  mutable Meter meter_;
};

}  // namespace motley
