// What may be wrong with a device, and what is only its memory.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "motley/base/error.hpp"

namespace motley {

class ComputeDevice;

// A call to a device's own library that failed, by that library's number (a cudaError_t).
class DeviceError : public Error {
 public:
  DeviceError(int number, std::string message, std::string hint = {})
      : Error(ErrorCode::environment, std::move(message), std::move(hint)), number_(number) {}
  int number() const { return number_; }

 private:
  int number_;
};

// What an error that came while a device computed calls for.
enum class DeviceFault {
  memory,   // fewer keys and values
  context,  // the end of the process: whatever it asks of the device fails from now on
  gone,     // the same, and no other process gets the device either
  link,     // another launch: what failed lies between this device and another
  program,  // the end of the process: a bug, or something that this build cannot do
};

// What a device says of itself after an error.
struct DeviceHealth {
  bool lives = true;  // its context still does work
  std::optional<std::int64_t> free_bytes = {};
};
// Waits for what was asked of the device, so that an error of work under way shows, too.
DeviceHealth health_of(const ComputeDevice& device);

// By the error's number, where it has one, and its text. Errors come late: a number says what broke, and not which call
// broke it. A broken context says of itself that memory is short, so memory is believed of one that lives alone.
DeviceFault fault_of(std::optional<int> number, std::string_view text, const DeviceHealth& health);
DeviceFault fault_of(const c10::Error& error, const DeviceHealth& health);

// What a worker says of a fault; `step` is the last that it has begun, 0 where there was none.
Error fault_error(DeviceFault fault, const std::string& device, std::uint64_t step, std::string_view text);

// What `free` says, once that is enough or does not change any more: the memory of a process that has ended comes back
// only after a while. Waits 10 s at most.
std::int64_t settled_free_bytes(std::int64_t needed, const std::function<std::int64_t()>& free,
                                std::chrono::milliseconds pause = std::chrono::milliseconds(100));

}  // namespace motley
