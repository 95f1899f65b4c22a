#include "motley/engine/cpu/cpu_meter.hpp"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>

namespace motley {
namespace {

std::atomic<std::int64_t> held{0}, peak{0};
at::Allocator* beneath = nullptr;

void give_back(void* memory) {
  if (memory == nullptr) return;
  held -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  beneath->raw_deleter()(memory);
}

class MeteredAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    at::DataPtr memory = beneath->allocate(bytes);
    void* at = memory.release_context();
    const auto size = static_cast<std::int64_t>(at != nullptr ? ::malloc_usable_size(at) : 0);
    const std::int64_t now = held += size;
    for (std::int64_t most = peak; most < now && !peak.compare_exchange_weak(most, now);) {
    }
    return {at, at, &give_back, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

class CpuMeter final : public MemoryMeter {
 public:
  CpuMeter() {
    static MeteredAllocator metered;
    beneath = c10::GetCPUAllocator();
    constexpr std::uint8_t over_the_default = 1;
    c10::SetCPUAllocator(&metered, over_the_default);
  }
  std::int64_t bytes() override { return held; }
  std::int64_t peak_bytes() override { return peak; }
  void reset_peak() override { peak = held.load(); }
};

}  // namespace

MemoryMeter& cpu_meter() {
  static CpuMeter meter;
  return meter;
}

}  // namespace motley
