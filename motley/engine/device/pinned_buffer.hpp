// Memory of the host that a GPU reads by itself, without a copy of the driver's in between.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/spill/spill_file.hpp"

namespace motley {

// As SpillBuffer; pinned for the device, as far as it does so: copies are only slower where it does not.
class PinnedBuffer {
 public:
  PinnedBuffer(std::string_view what, std::int64_t bytes, const ComputeDevice& device);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::span<std::byte> bytes() const { return memory_.bytes(); }

 private:
  SpillBuffer memory_;
  const ComputeDevice* pinned_by_ = nullptr;
};

// Bytes of the host into a contiguous tensor of as many bytes; returns when they are there. By any thread, during the
// work of others on the device.
void copy_to_device(const at::Tensor& to, std::span<const std::byte> from);

}  // namespace motley
