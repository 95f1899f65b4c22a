// The management library that comes with NVIDIA's driver (NVML), opened at run time: its functions by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace motley {

// What its functions return (nvmlReturn_t); all others are of no interest here.
enum class NvmlAnswer : int {
  done = 0,
  not_supported = 3,
  not_found = 6,
  too_small = 7,  // the room for what it would write
  timed_out = 10,
  missing = 13,  // this library does not have the function
  gpu_is_lost = 15,
  needs_reset = 16,
};

// nvmlDevice_t
using NvmlDevice = void*;
struct NvmlMemory {  // nvmlMemory_t
  unsigned long long total = 0, free = 0, used = 0;
};
struct NvmlProcess {  // nvmlProcessInfo_t, version 2
  unsigned process = 0;
  unsigned long long used_bytes = 0;
  unsigned gpu_instance = 0, compute_instance = 0;
};
struct NvmlEvent {  // nvmlEventData_t
  NvmlDevice device = nullptr;
  unsigned long long type = 0, data = 0;
  unsigned gpu_instance = 0, compute_instance = 0;
};
struct NvmlField {  // nvmlFieldValue_t
  unsigned field = 0, scope = 0;
  long long at_us = 0, took_us = 0;
  int type = 0, answer = 0;
  unsigned long long value = 0;  // a union: the low bytes where it is a smaller number
};

class Nvml {
 public:
  // Throws an environment error where the library is missing or does not start.
  explicit Nvml(const std::string& library);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  template <class... A>
  NvmlAnswer ask(const char* name, A... arguments) const {
    auto* function = reinterpret_cast<int (*)(A...)>(find(name));
    return function == nullptr ? NvmlAnswer::missing : static_cast<NvmlAnswer>(function(arguments...));
  }
  // Throws an environment error where the answer is another than `done`.
  template <class... A>
  void call(const char* name, A... arguments) const {
    if (const NvmlAnswer answer = ask(name, arguments...); answer != NvmlAnswer::done) fail(name, answer);
  }

 private:
  struct Close {
    void operator()(void* library) const;
  };

  void* find(const char* name) const;
  [[noreturn]] static void fail(const char* name, NvmlAnswer answer);

  std::unique_ptr<void, Close> library_;
};

}  // namespace motley
