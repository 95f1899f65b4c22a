#include "motley/engine/device/accelerator.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace motley {

at::Tensor Accelerator::host_space(const at::Tensor& like, at::Tensor& buffer) const {
  const auto bytes = static_cast<std::int64_t>(like.nbytes());
  if (!buffer.defined() || buffer.size(0) < bytes)
    buffer = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  return buffer.narrow(0, 0, bytes).view(like.scalar_type()).view(like.sizes());
}

namespace {

const c10::CachingAllocator::Stat& allocated_of(const c10::CachingDeviceAllocator::DeviceStats& stats) {
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

std::int64_t Accelerator::Meter::bytes() {
  return allocated_of(c10::getDeviceAllocator(place_.type())->getDeviceStats(place_.index())).current;
}

std::int64_t Accelerator::Meter::peak_bytes() {
  return allocated_of(c10::getDeviceAllocator(place_.type())->getDeviceStats(place_.index())).peak;
}

void Accelerator::Meter::reset_peak() { c10::getDeviceAllocator(place_.type())->resetPeakStats(place_.index()); }

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

}  // namespace motley
