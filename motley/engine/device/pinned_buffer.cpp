#include "motley/engine/device/pinned_buffer.hpp"

#include <c10/core/InferenceMode.h>

namespace motley {

PinnedBuffer::PinnedBuffer(std::string_view what, std::int64_t bytes, const ComputeDevice& device)
    : memory_(what, bytes) {
  if (device.pin(memory_.bytes())) pinned_by_ = &device;
}

PinnedBuffer::~PinnedBuffer() {
  if (pinned_by_ != nullptr) pinned_by_->unpin(memory_.bytes());
}

void copy_to_device(const at::Tensor& to, std::span<const std::byte> from) {
  const c10::InferenceMode guard;
  to.copy_(at::from_blob(const_cast<std::byte*>(from.data()), {static_cast<std::int64_t>(from.size())}, at::kByte));
}

}  // namespace motley
