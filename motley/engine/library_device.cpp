#include "motley/engine/library_device.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <mutex>

#include "motley/base/error.hpp"
#include "motley/engine/device/accelerator.hpp"
#include "motley/engine/device/stream_order.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

class LibraryDevice final : public Accelerator {
 public:
  explicit LibraryDevice(int index) : Accelerator(at::Device(at::kPrivateUse1, static_cast<at::DeviceIndex>(index))) {}

  std::optional<std::int64_t> free_bytes() const override {
    const auto [free, total] = c10::getDeviceAllocator(at::kPrivateUse1)->getMemoryInfo(place().index());
    return static_cast<std::int64_t>(free);
  }
  std::string kernels() const override { return "aten"; }
  std::shared_ptr<const Ops> make_ops() const override { return lasting(generic_ops()); }
  const Ops& differentiable_ops() const override { return motley::differentiable_ops(); }
};

// The library registers its device with LibTorch when it is opened.
int devices_of(const std::string& path, const std::string& name) {
  if (::dlopen(path.c_str(), RTLD_NOW) == nullptr) {
    const char* cause = ::dlerror();
    throw Error(ErrorCode::environment, fmt::format("{}: cannot open {}: {}", name, path, cause ? cause : "unknown"),
                "MOTLEY_TEST_DEVICES must name a library that registers a device with this LibTorch");
  }
  if (!c10::impl::hasDeviceGuardImpl(at::kPrivateUse1))
    throw Error(ErrorCode::environment, fmt::format("{}: {} registers no device with LibTorch", name, path),
                "let MOTLEY_TEST_DEVICES name a library that does");
  return c10::impl::getDeviceGuardImpl(at::kPrivateUse1)->deviceCount();
}

}  // namespace

const ComputeDevice& open_library_device(const std::string& path, int index, const std::string& name) {
  static std::mutex mutex;
  static std::map<int, LibraryDevice> devices;
  const std::lock_guard lock(mutex);
  if (const int count = devices_of(path, name); index >= count)
    throw Error(ErrorCode::environment, fmt::format("{}: {} has {} devices", name, path, count),
                fmt::format("the last one is {}", count - 1));
  const LibraryDevice& device = devices.try_emplace(index, index).first->second;
  use_own_stream(device);
  return device;
}

}  // namespace motley
