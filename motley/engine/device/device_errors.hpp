// What may be wrong with a device, and what is only its memory.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <functional>

namespace motley {

// An allocation that failed, of LibTorch's or of the libraries that it calls. A broken context says the same of itself
// for ever, so the device is asked once more: `lives` says whether its context still does work.
bool is_of_memory(const c10::Error& error, const std::function<bool()>& lives);

// What `free` says, once that is enough or does not change any more: the memory of a process that has ended comes back
// only after a while. Waits 10 s at most.
std::int64_t settled_free_bytes(std::int64_t needed, const std::function<std::int64_t()>& free,
                                std::chrono::milliseconds pause = std::chrono::milliseconds(100));

}  // namespace motley
