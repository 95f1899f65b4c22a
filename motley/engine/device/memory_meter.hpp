// How much of a device's memory tensors take, and the most that they took.
#pragma once

#include <cstdint>

namespace motley {

class MemoryMeter {
 public:
  virtual ~MemoryMeter() = default;
  virtual std::int64_t bytes() = 0;
  // Since the last call of reset_peak(), or the start.
  virtual std::int64_t peak_bytes() = 0;
  virtual void reset_peak() = 0;
};

}  // namespace motley
