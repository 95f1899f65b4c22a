// Kernels that add up what the ranks of a stage have, in memory that all of their devices reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace motley {

// One rank's part of a sum; all ranks run the same ones in the same order. The terms are added in the order of the
// ranks in fp32 and rounded once, as WorkerGroup::all_reduce() does it.
struct SharedSum {
  void* terms = nullptr;  // of the device: fp32 or bf16, in place
  std::int64_t count = 0;
  bool in_bf16 = false;
  int rank = 0;
  // Of all ranks, as this device reaches them: segment_bytes(most_bytes) each, zeros at first.
  std::span<void* const> segments = {};
  std::int64_t most_bytes = 0;  // of terms; a multiple of 16
  int blocks = 0;               // of threads: what most_blocks() says on the device that says least
  bool in_parts = false;        // each rank adds up a part and brings the others' from them
  void* counters = nullptr;     // of the device: counters_bytes, zeros at first
  const void* abort = nullptr;  // a word of pinned memory: where it is not 0, sums end without a result
};

class SumKernels {
 public:
  static constexpr int most_ranks = 8;
  static constexpr std::int64_t counters_bytes = 256;

  virtual ~SumKernels() = default;
  // Devices of one vendor may open each other's memory.
  virtual std::string_view vendor() const = 0;
  virtual int most_blocks() const = 0;
  virtual std::int64_t segment_bytes(std::int64_t most_bytes) const = 0;
  // Where the device finds pinned memory of the host; null where it does not.
  virtual void* address_of(void* pinned) const = 0;
  // Puts it on the stream that the device has for the calling thread.
  virtual void sum(const SharedSum& task) const = 0;
};

}  // namespace motley
