#include "motley/engine/device/accelerator.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace motley {

at::Tensor Accelerator::host_space(const at::Tensor& like, at::Tensor& buffer) const {
  const auto bytes = static_cast<std::int64_t>(like.nbytes());
  if (!buffer.defined() || buffer.size(0) < bytes)
    buffer = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  return buffer.narrow(0, 0, bytes).view(like.scalar_type()).view(like.sizes());
}

void Accelerator::synchronize() const {
  c10::impl::VirtualGuardImpl(place().type()).synchronizeDevice(place().index());
}

void Accelerator::wait_for_thread() const {
  const c10::impl::VirtualGuardImpl guard(place().type());
  guard.synchronizeStream(guard.getStream(place()));
}

void* Accelerator::stream() const {
  return c10::impl::VirtualGuardImpl(place().type()).getStream(place()).native_handle();
}

void Accelerator::use_own_stream() const {
  const c10::impl::VirtualGuardImpl guard(place().type());
  guard.setDevice(place());
  if (guard.getStream(place()) == guard.getDefaultStream(place()))
    guard.exchangeStream(guard.getStreamFromGlobalPool(place()));
}

}  // namespace motley
