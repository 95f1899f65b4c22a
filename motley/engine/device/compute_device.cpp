#include "motley/engine/device/compute_device.hpp"

#include "motley/base/error.hpp"

namespace motley {

at::Tensor ComputeDevice::to_host(const at::Tensor& values, at::Tensor& buffer) const {
  const at::Tensor host = host_space(values, buffer);
  if (!host.is_same(values)) host.copy_(values);
  return host;
}

void ComputeDevice::pack_int8(const at::Tensor&, const at::Tensor&) const {
  throw Error(ErrorCode::internal, place_.str() + " packs no rows");
}

bool ComputeDevice::lives() const {
  try {
    wait_for_thread();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace motley
