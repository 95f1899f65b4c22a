#include "motley/engine/device/stream_order.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace motley {
namespace {

c10::Stream own_stream(const ComputeDevice& device) {
  return c10::impl::VirtualGuardImpl(device.place().type()).getStream(device.place());
}

}  // namespace

StreamMoment moment_on(const ComputeDevice& device) {
  if (!device.has_own_memory()) return nullptr;
  auto moment = std::make_shared<c10::Event>(device.place().type());
  moment->record(own_stream(device));
  return moment;
}

void come_after(const StreamMoment& moment, const ComputeDevice& device) {
  if (moment) moment->block(own_stream(device));
}

void take_over(const at::Tensor& values, const ComputeDevice& device) {
  if (!device.has_own_memory()) return;
  c10::impl::VirtualGuardImpl(device.place().type())
      .recordDataPtrOnStream(values.storage().data_ptr(), own_stream(device));
}

}  // namespace motley
