#include "motley/engine/pinned_buffer.hpp"

#include <c10/core/InferenceMode.h>

#include "motley/engine/cuda_library.hpp"

namespace motley {

PinnedBuffer::PinnedBuffer(std::string_view what, std::int64_t bytes, at::Device device) : memory_(what, bytes) {
  const cuda::Kernels* kernels = device.is_cpu() ? nullptr : cuda_kernels();
  if (kernels != nullptr && kernels->pin(memory_.bytes().data(), bytes) == 0) pinned_by_ = kernels;
}

PinnedBuffer::~PinnedBuffer() {
  if (pinned_by_ != nullptr) pinned_by_->unpin(memory_.bytes().data());
}

void copy_to_device(const at::Tensor& to, std::span<const std::byte> from) {
  const c10::InferenceMode guard;
  to.copy_(at::from_blob(const_cast<std::byte*>(from.data()), {static_cast<std::int64_t>(from.size())}, at::kByte));
}

}  // namespace motley
