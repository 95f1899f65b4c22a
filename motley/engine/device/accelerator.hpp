// What devices with memory of their own have in common, by LibTorch's interface to all of them.
#pragma once

#include "motley/engine/device/compute_device.hpp"

namespace motley {

class Accelerator : public ComputeDevice {
 public:
  using ComputeDevice::ComputeDevice;
  bool has_own_memory() const override { return true; }
  at::Tensor host_space(const at::Tensor& like, at::Tensor& buffer) const override;
  void synchronize() const override;
  void wait_for_thread() const override;
  void* stream() const override;

 protected:
  // This thread's work on the device goes to a stream of its own from now on. The default stream cannot be recorded
  // (Ops::run()), and would make threads wait for each other.
  void use_own_stream() const;
};

}  // namespace motley
