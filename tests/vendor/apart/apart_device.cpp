// A library for tests: a device with memory of its own, as LibTorch's PrivateUse1, which the host cannot touch, and
// whose streams run late. It stands in for a GPU where there is none: code that reads a tensor without asking the
// device faults, and a wait that is missing gives wrong values. In the environment:
//
//   MOTLEY_APART_SEED     of the random times by which tasks are late
//   MOTLEY_APART_LATE_US  the longest of them, 50 if not given
//   MOTLEY_APART_BYTES    the memory of each device
//   MOTLEY_APART_RATES    bytes per second of copies: "d2h=1e9,h2d=1e9", either or both
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>

#include "tests/vendor/apart/memory.hpp"
#include "tests/vendor/apart/streams.hpp"

namespace motley::apart {
namespace {

// What `void*` is to LibTorch: the latest place that was recorded.
struct Event {
  std::shared_ptr<const Mark> mark;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override { return device_of(exchange_device(device.index())); }
  c10::Device getDevice() const override { return device_of(current_device()); }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_from_pool(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream_from_pool(device.index()); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(c10::Stream stream) const override { return &stream_of(stream); }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { stream_of(stream).wait(); }
  void synchronizeDevice(c10::DeviceIndex index) const override { wait_for_device(index); }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    allocator().recordStream(pointer, stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->mark = mark_end(stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (const auto mark = mark_of(event)) stream_of(stream).put([mark] { mark->wait(); }, Start::at_once);
  }
  bool queryEvent(void* event) const override {
    const auto mark = mark_of(event);
    return mark == nullptr || mark->reached();
  }
  void synchronizeEvent(void* event) const override {
    if (const auto mark = mark_of(event)) mark->wait();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

 private:
  static std::shared_ptr<const Mark> mark_of(void* event) {
    return event != nullptr ? static_cast<Event*>(event)->mark : nullptr;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchange_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  c10::Device getDeviceFromPtr(void* address) const override {
    const Memory* memory = Memory::around(address);
    TORCH_CHECK(memory != nullptr, address, " is not an address of the stand-in device");
    return device_of(memory->index());
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
};

[[maybe_unused]] const bool registered = [] {
  (void)is_measured();
  c10::register_privateuse1_backend("apart");
  c10::SetAllocator(c10::kPrivateUse1, &allocator());
  c10::impl::registerDeviceGuard(c10::kPrivateUse1, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace motley::apart
