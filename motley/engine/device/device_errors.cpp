#include "motley/engine/device/device_errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "motley/engine/device/compute_device.hpp"

namespace motley {
namespace {

constexpr int most_looks = 100;  // at what is free
constexpr int still_looks = 20;  // without a change, after which nothing more is expected

// Below this a library may lack memory for its handle, of which it says no more than that it has not begun.
constexpr std::int64_t handle_bytes = std::int64_t{256} << 20;

// cudaError_t, by what cudaGetErrorString() says of it: not every error of LibTorch carries the number.
struct NamedError {
  int number;
  const char* words;
  DeviceFault fault;
};
constexpr NamedError named_errors[] = {
    {2, "out of memory", DeviceFault::memory},
    {46, "device(s) is/are busy or unavailable", DeviceFault::gone},
    {100, "no CUDA-capable device is detected", DeviceFault::gone},
    {101, "invalid device ordinal", DeviceFault::gone},
    {201, "invalid device context", DeviceFault::link},
    {208, "resource already mapped", DeviceFault::link},
    {214, "uncorrectable ECC error encountered", DeviceFault::context},
    {217, "peer access is not supported between these two devices", DeviceFault::link},
    {220, "uncorrectable NVLink error detected", DeviceFault::context},
    {700, "an illegal memory access was encountered", DeviceFault::context},
    {702, "the launch timed out and was terminated", DeviceFault::context},
    {709, "context is destroyed", DeviceFault::context},
    {710, "device-side assert triggered", DeviceFault::context},
    {714, "hardware stack error", DeviceFault::context},
    {715, "an illegal instruction was encountered", DeviceFault::context},
    {716, "misaligned address", DeviceFault::context},
    {717, "operation not supported on global/shared address space", DeviceFault::context},
    {718, "invalid program counter", DeviceFault::context},
    {719, "unspecified launch failure", DeviceFault::context},
    {802, "system not yet initialized", DeviceFault::gone},
    {999, "unknown error", DeviceFault::context},
};

bool says(std::string_view text, std::string_view words) { return text.find(words) != std::string_view::npos; }

std::optional<DeviceFault> named_fault(std::optional<int> number, std::string_view text) {
  const bool of_cuda = says(text, "CUDA");
  const auto* const named = std::ranges::find_if(named_errors, [&](const NamedError& error) {
    return number ? error.number == *number : of_cuda && says(text, error.words);
  });
  return named == std::end(named_errors) ? std::nullopt : std::optional(named->fault);
}

// The number that an error of LibTorch carries.
std::optional<int> number_of(const c10::Error& error) {
  constexpr int no_memory = 2;
  if (const auto* of_device = dynamic_cast<const c10::AcceleratorError*>(&error)) return of_device->get_error_code();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return no_memory;
  return std::nullopt;
}

}  // namespace

DeviceHealth health_of(const ComputeDevice& device) {
  DeviceHealth health{.lives = device.lives()};
  if (health.lives) health.free_bytes = device.free_bytes();
  return health;
}

DeviceFault fault_of(std::optional<int> number, std::string_view text, const DeviceHealth& health) {
  const std::optional<DeviceFault> named = named_fault(number, text);
  if (named == DeviceFault::gone || named == DeviceFault::context) return *named;
  if (!health.lives) return DeviceFault::context;
  if (named) return *named;
  if (says(text, "STATUS_ALLOC_FAILED")) return DeviceFault::memory;
  if (says(text, "STATUS_NOT_INITIALIZED"))
    return health.free_bytes && *health.free_bytes < handle_bytes ? DeviceFault::memory : DeviceFault::context;
  if (says(text, "NCCL")) return DeviceFault::link;
  return DeviceFault::program;
}

DeviceFault fault_of(const c10::Error& error, const DeviceHealth& health) {
  return fault_of(number_of(error), error.what_without_backtrace(), health);
}

Error fault_error(DeviceFault fault, const std::string& device, std::uint64_t step, std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));  // LibTorch adds advice for its own developers
  const std::string when = step == 0 ? "before its first step" : fmt::format("at or before step {}", step);
  const std::string message = fmt::format("{}, {}: {}", device, when, line);
  switch (fault) {
    case DeviceFault::memory: return {ErrorCode::environment, message, "end what else uses the device's memory"};
    case DeviceFault::context:
      return {ErrorCode::peer, message, "the kernel's log (`dmesg`, lines with Xid) shows what the GPU itself says"};
    case DeviceFault::gone:
      return {ErrorCode::peer, message, "check that `nvidia-smi` lists the device and that no other program owns it"};
    case DeviceFault::link: return {ErrorCode::peer, message};
    case DeviceFault::program: break;
  }
  return {ErrorCode::internal, message};
}

std::int64_t settled_free_bytes(std::int64_t needed, const std::function<std::int64_t()>& free,
                                std::chrono::milliseconds pause) {
  std::int64_t bytes = free();
  for (int looks = 0, still = 0; bytes < needed && looks < most_looks && still < still_looks; ++looks) {
    std::this_thread::sleep_for(pause);
    const std::int64_t now = free();
    still = now == bytes ? still + 1 : 0;
    bytes = now;
  }
  return bytes;
}

}  // namespace motley
