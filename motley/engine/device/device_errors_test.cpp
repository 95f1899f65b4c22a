#include "motley/engine/device/device_errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace motley {
namespace {

constexpr DeviceHealth living_device{}, broken_device{.lives = false};
constexpr DeviceHealth full_device{.lives = true, .free_bytes = std::int64_t{20} << 20};
constexpr DeviceHealth roomy_device{.lives = true, .free_bytes = std::int64_t{4} << 30};

struct RecordedError {
  std::optional<int> number;
  const char* text;
  DeviceHealth health;
  DeviceFault fault;
};

// What LibTorch 2.11, cuBLAS, cuDNN, NCCL and the library of kernels say.
const RecordedError recorded_errors[] = {
    {2, "CUDA error: out of memory", living_device, DeviceFault::memory},
    {2, "CUDA error: out of memory", broken_device, DeviceFault::context},
    {2, "out of memory while a kernel is loaded", living_device, DeviceFault::memory},
    {{},
     "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 15.00 MiB free",
     living_device,
     DeviceFault::memory},
    {{}, "CUDA out of memory. Tried to allocate 20.00 MiB.", broken_device, DeviceFault::context},
    {{},
     "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     living_device,
     DeviceFault::memory},
    {{},
     "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     broken_device,
     DeviceFault::context},
    {{},
     "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
     broken_device,
     DeviceFault::context},
    {{},
     "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
     living_device,
     DeviceFault::context},
    {{},
     "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
     roomy_device,
     DeviceFault::context},
    {{},
     "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
     full_device,
     DeviceFault::memory},
    {{}, "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", broken_device, DeviceFault::context},
    {700, "CUDA error: an illegal memory access was encountered", broken_device, DeviceFault::context},
    {{}, "CUDA error: an illegal memory access was encountered", broken_device, DeviceFault::context},
    {700, "cuda:0: CUDA error 700 (an illegal memory access was encountered) while drawing tokens", living_device,
     DeviceFault::context},  // seen from another stream
    {702, "CUDA error: the launch timed out and was terminated", broken_device, DeviceFault::context},
    {710, "CUDA error: device-side assert triggered", broken_device, DeviceFault::context},
    {714, "CUDA error: hardware stack error", broken_device, DeviceFault::context},
    {715, "CUDA error: an illegal instruction was encountered", broken_device, DeviceFault::context},
    {716, "CUDA error: misaligned address", broken_device, DeviceFault::context},
    {717, "CUDA error: operation not supported on global/shared address space", broken_device, DeviceFault::context},
    {718, "CUDA error: invalid program counter", broken_device, DeviceFault::context},
    {719, "CUDA error: unspecified launch failure", broken_device, DeviceFault::context},
    {214, "CUDA error: uncorrectable ECC error encountered", broken_device, DeviceFault::context},
    {220, "CUDA error: uncorrectable NVLink error detected during the execution", broken_device, DeviceFault::context},
    {999, "CUDA error: unknown error", broken_device, DeviceFault::context},
    {{},
     "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`",
     broken_device,
     DeviceFault::context},
    {{}, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", broken_device, DeviceFault::context},
    {100, "CUDA error: no CUDA-capable device is detected", broken_device, DeviceFault::gone},
    {101, "CUDA error: invalid device ordinal", broken_device, DeviceFault::gone},
    {46, "CUDA error: CUDA-capable device(s) is/are busy or unavailable", broken_device, DeviceFault::gone},
    {802, "CUDA error: system not yet initialized", broken_device, DeviceFault::gone},
    {217, "CUDA error: peer access is not supported between these two devices", living_device, DeviceFault::link},
    {201, "CUDA error: invalid device context", living_device, DeviceFault::link},
    {201, "CUDA error: invalid device context", broken_device, DeviceFault::context},
    {{},
     "NCCL error in: nccl.cpp, remote process exited or there was a network error",
     living_device,
     DeviceFault::link},
    {1, "CUDA error: invalid argument", living_device, DeviceFault::program},
    {9, "CUDA error: invalid configuration argument", living_device, DeviceFault::program},
    {209, "CUDA error: no kernel image is available for execution on the device", living_device, DeviceFault::program},
    {{},
     "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0",
     living_device,
     DeviceFault::program},
    {{},
     "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0",
     broken_device,
     DeviceFault::context},
};

TEST(DeviceErrors, AreToldApartByNumberTextAndHealth) {
  for (const RecordedError& error : recorded_errors)
    EXPECT_EQ(fault_of(error.number, error.text, error.health), error.fault)
        << error.number.value_or(0) << " " << error.text << (error.health.lives ? "" : ", of a broken context");
}

TEST(DeviceErrors, OfLibTorchCarryTheirNumber) {
  const c10::SourceLocation nowhere{"", "", 0};
  EXPECT_EQ(fault_of(c10::AcceleratorError(nowhere, 700, "some text"), living_device), DeviceFault::context);
  EXPECT_EQ(fault_of(c10::OutOfMemoryError(nowhere, "some text"), living_device), DeviceFault::memory);
  EXPECT_EQ(fault_of(c10::OutOfMemoryError(nowhere, "some text"), broken_device), DeviceFault::context);
  EXPECT_EQ(fault_of(c10::Error(nowhere, "some text"), living_device), DeviceFault::program);
}

TEST(DeviceErrors, ABrokenContextEndsTheWorkerAsAPeersFailure) {
  const DeviceFault fault = fault_of({}, "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED", broken_device);
  const Error error = fault_error(fault, "box/0", 17, "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED\nCUDA kernel errors");
  EXPECT_EQ(error.code(), ErrorCode::peer);
  EXPECT_STREQ(error.what(), "box/0, at or before step 17: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED");
  EXPECT_STREQ(fault_error(DeviceFault::gone, "box/0", 0, "CUDA error: unknown error").what(),
               "box/0, before its first step: CUDA error: unknown error");
}

// A GPU's memory as it comes back after a process has ended.
class FreedMemory {
 public:
  explicit FreedMemory(std::vector<std::int64_t> bytes) : bytes_(std::move(bytes)) {}
  std::int64_t next() { return bytes_[std::min(looks_++, bytes_.size() - 1)]; }
  std::size_t looks() const { return looks_; }

 private:
  std::vector<std::int64_t> bytes_;
  std::size_t looks_ = 0;
};

TEST(DeviceErrors, WaitsForMemoryThatComesBack) {
  const auto settled = [](FreedMemory& memory) {
    return settled_free_bytes(
        80, [&] { return memory.next(); }, std::chrono::milliseconds(0));
  };
  FreedMemory at_once({90}), slowly({10, 10, 10, 40, 70, 81, 95}), never({10, 30, 50});
  EXPECT_EQ(settled(at_once), 90);
  EXPECT_EQ(at_once.looks(), 1u);
  EXPECT_EQ(settled(slowly), 81);
  EXPECT_EQ(settled(never), 50);
  EXPECT_LT(never.looks(), 30u) << "others have the rest";
  std::int64_t changes = 0;
  EXPECT_EQ(settled_free_bytes(
                80, [&] { return ++changes % 2; }, std::chrono::milliseconds(0)),
            1);
  EXPECT_LE(changes, 101) << "it ends, whatever is said";
}

}  // namespace
}  // namespace motley
