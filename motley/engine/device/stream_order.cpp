#include "motley/engine/device/stream_order.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>

#include "motley/base/clock.hpp"

namespace motley {
namespace {

// Asking again and again sees a moment 2 us after it was; sleeping in between, 30 us after it.
constexpr double spin_s = 50e-6;
constexpr std::chrono::microseconds between_looks(20);

c10::Stream own_stream(const ComputeDevice& device) {
  return c10::impl::VirtualGuardImpl(device.place().type()).getStream(device.place());
}

}  // namespace

void use_own_stream(const ComputeDevice& device) {
  if (!device.has_own_memory()) return;
  const c10::impl::VirtualGuardImpl guard(device.place().type());
  guard.setDevice(device.place());
  if (guard.getStream(device.place()) == guard.getDefaultStream(device.place()))
    guard.exchangeStream(guard.getStreamFromGlobalPool(device.place()));
}

StreamMoment moment_on(const ComputeDevice& device) {
  if (!device.has_own_memory()) return nullptr;
  auto moment = std::make_shared<c10::Event>(device.place().type());
  moment->record(own_stream(device));
  return moment;
}

void come_after(const StreamMoment& moment, const ComputeDevice& device) {
  if (moment) moment->block(own_stream(device));
}

void wait_until(const StreamMoment& moment) {
  if (!moment) return;
  for (const Instant start = Clock::now(); !moment->query();)
    if (seconds_since(start) > spin_s) std::this_thread::sleep_for(between_looks);
}

void take_over(const at::Tensor& values, const ComputeDevice& device) {
  if (!device.has_own_memory()) return;
  c10::impl::VirtualGuardImpl(device.place().type())
      .recordDataPtrOnStream(values.storage().data_ptr(), own_stream(device));
}

}  // namespace motley
