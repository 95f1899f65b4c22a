// For tests: a device with memory of its own, as LibTorch's PrivateUse1. Its pages can be read and written only while
// an operation copies to or from them: a touch from the host faults. New memory is full of NaN. Operations
// run on the processor, on copies.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/engine/device/accelerator.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley::apart {

// Blocks of pages, by address.
class Pages {
 public:
  static Pages& all() {
    static auto* pages = new Pages;  // tensors may outlive everything
    return *pages;
  }
  void* allocate(std::size_t bytes) {
    const std::size_t page = static_cast<std::size_t>(::getpagesize()), size = (bytes + page - 1) / page * page;
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MOTLEY_CHECK(memory != MAP_FAILED);
    std::memset(memory, 0xFF, size);
    MOTLEY_CHECK(::mprotect(memory, size, PROT_NONE) == 0);
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<std::byte*>(memory)] = {size, 0};
    held_ += static_cast<std::int64_t>(size);
    peak_ = std::max(peak_, held_);
    return memory;
  }
  void free(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<std::byte*>(memory));
    ::munmap(memory, block->second.bytes);
    held_ -= static_cast<std::int64_t>(block->second.bytes);
    blocks_.erase(block);
  }
  void open(const void* inside) { change(inside, 1); }
  void close(const void* inside) { change(inside, -1); }
  std::int64_t held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  std::int64_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = held_;
  }

 private:
  struct Block {
    std::size_t bytes = 0;
    int opened = 0;
  };
  void change(const void* inside, int by) {
    const std::lock_guard lock(mutex_);
    auto block = blocks_.upper_bound(static_cast<std::byte*>(const_cast<void*>(inside)));
    MOTLEY_CHECK(block != blocks_.begin());
    --block;
    block->second.opened += by;
    const int access = block->second.opened > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    MOTLEY_CHECK(::mprotect(block->first, block->second.bytes, access) == 0);
  }

  mutable std::mutex mutex_;
  std::map<std::byte*, Block> blocks_;
  std::int64_t held_ = 0, peak_ = 0;
};

// The values of a tensor for as long as this lives, as a tensor of the processor.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor) : tensor_(tensor) {
    if (inside()) Pages::all().open(tensor_.const_data_ptr());
  }
  ~Opened() {
    if (inside()) Pages::all().close(tensor_.const_data_ptr());
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  at::Tensor on_host() const {
    if (tensor_.is_cpu()) return tensor_;
    return at::from_blob(const_cast<void*>(tensor_.const_data_ptr()), tensor_.sizes(), tensor_.strides(),
                         at::TensorOptions(tensor_.scalar_type()));
  }

 private:
  bool inside() const { return tensor_.is_privateuseone() && tensor_.numel() > 0; }
  at::Tensor tensor_;
};

class Allocator final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    const at::Device device(at::kPrivateUse1, 0);
    void* memory = bytes > 0 ? Pages::all().allocate(bytes) : nullptr;
    return {memory, memory, &give_back, device};
  }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    Pages::all().open(to), Pages::all().open(from);
    std::memcpy(to, from, bytes);
    Pages::all().close(to), Pages::all().close(from);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const at::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(at::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = Pages::all().held();
    bytes.peak = Pages::all().peak();
    return stats;
  }
  void resetAccumulatedStats(at::DeviceIndex) override {}
  void resetPeakStats(at::DeviceIndex) override { Pages::all().reset_peak(); }

 private:
  static void give_back(void* memory) {
    if (memory != nullptr) Pages::all().free(memory);
  }
};

// One device, and one stream, on which work is done when its call returns.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return at::kPrivateUse1; }
  at::Device exchangeDevice(at::Device) const override { return getDevice(); }
  at::Device getDevice() const override { return at::Device(at::kPrivateUse1, 0); }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::Stream getStream(at::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void* getStreamNativeHandle(c10::Stream) const override { return nullptr; }
  at::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(at::DeviceIndex) const override {}
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::DeviceIndex deviceCount() const override { return 1; }
  const at::Generator& getDefaultGenerator(at::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Device getDeviceFromPtr(void*) const override { return at::Device(at::kPrivateUse1, 0); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};

inline at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                                std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(at::kPrivateUse1),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           type.value_or(at::kFloat));
}
inline at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                        std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, c10::GetAllocator(at::kPrivateUse1),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type.value_or(at::kFloat),
                                   format);
}
inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const Opened source(from), target(to);
  target.on_host().copy_(source.on_host());
  return to;
}
inline const at::Tensor& resize_in_place(const at::Tensor& tensor, at::IntArrayRef sizes,
                                         std::optional<at::MemoryFormat>) {
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes) + tensor.storage_offset()) * tensor.element_size();
  if (tensor.storage().nbytes() < bytes) {
    MOTLEY_CHECK(tensor.numel() == 0);  // nothing is moved
    tensor.storage().set_data_ptr_noswap(c10::GetAllocator(at::kPrivateUse1)->allocate(bytes));
    tensor.storage().set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}
inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) resize_in_place(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}
inline at::Scalar local_scalar(const at::Tensor& tensor) {
  const Opened source(tensor);
  return source.on_host().clone().item();
}
inline at::Tensor view(const at::Tensor& tensor, at::IntArrayRef sizes) { return at::native::view(tensor, sizes); }
inline at::Tensor as_strided(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                             std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}
inline at::Tensor reshape_alias(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(tensor, sizes, strides);
}
inline at::Tensor unfold(const at::Tensor& tensor, std::int64_t dimension, std::int64_t size, std::int64_t step) {
  return at::native::unfold(tensor, dimension, size, step);
}
inline void on_processor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

inline void register_all() {
  static Allocator allocator;
  static Guard guard;
  static Hooks hooks;
  c10::register_privateuse1_backend("apart");
  c10::SetAllocator(at::kPrivateUse1, &allocator);
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(at::kPrivateUse1)].store(&guard);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  static torch::Library fallback(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&on_processor>());
  static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  own.impl("empty.memory_format", &empty);
  own.impl("empty_strided", &empty_strided);
  own.impl("_copy_from", &copy_from);
  own.impl("_copy_from_and_resize", &copy_from_and_resize);
  own.impl("_local_scalar_dense", &local_scalar);
  own.impl("resize_", &resize_in_place);
  own.impl("view", &view);
  own.impl("as_strided", &as_strided);
  own.impl("_reshape_alias", &reshape_alias);
  own.impl("unfold", &unfold);
}

class ApartDevice final : public Accelerator {
 public:
  ApartDevice() : Accelerator(at::Device(at::kPrivateUse1, 0)) {}
  void* stream() const override { return nullptr; }
  std::optional<std::int64_t> free_bytes() const override { return std::int64_t{1} << 40; }
  std::string kernels() const override { return "aten"; }
  std::shared_ptr<const Ops> make_ops() const override { return lasting(generic_ops()); }
  const Ops& differentiable_ops() const override { return motley::differentiable_ops(); }
};

}  // namespace motley::apart

namespace motley {

inline const ComputeDevice& apart_device() {
  static const apart::ApartDevice* device = [] {
    apart::register_all();
    return new apart::ApartDevice;
  }();
  return *device;
}

}  // namespace motley
