// Order among the threads of a process that ask one device: each has a stream of its own, and streams run side by side.
#pragma once

#include <c10/core/Event.h>

#include <memory>

#include "motley/engine/device/compute_device.hpp"

namespace motley {

// This thread's work on the device goes to a stream of its own from now on. The default stream cannot be recorded
// (Ops::run()), and would make threads wait for each other.
void use_own_stream(const ComputeDevice& device);

// A moment in what a thread asks of a device; null where work is done as it is asked.
using StreamMoment = std::shared_ptr<c10::Event>;

// Behind all that this thread has asked of the device so far.
StreamMoment moment_on(const ComputeDevice& device);
// What this thread asks of the device from now on begins after that moment. The host does not wait.
void come_after(const StreamMoment& moment, const ComputeDevice& device);
// The host waits, and leaves its processor to others where that takes long.
void wait_until(const StreamMoment& moment);

// This thread goes on with values that another has made. A device's allocator keeps memory for the stream that it was
// allocated on, and what other streams still do with it once it is freed counts only where they were recorded.
void take_over(const at::Tensor& values, const ComputeDevice& device);

}  // namespace motley
