// What a piece of work costs: C++'s allocations, and the thread's processor time. The program that includes this counts
// by its own operator new, so one file of a test program includes it.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <new>

namespace motley {

inline std::atomic<std::size_t> live_bytes = 0, peak_live_bytes = 0, allocated_bytes = 0;

struct Cost {
  std::size_t peak_bytes = 0;   // at once, beyond what was there before
  std::size_t total_bytes = 0;  // given back or not
  double processor_s = 0;
};

inline double processor_time_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Work>
Cost cost_of(Work work) {
  const std::size_t live = live_bytes, allocated = allocated_bytes;
  peak_live_bytes = live;
  const double start_s = processor_time_s();
  work();
  return {peak_live_bytes - live, allocated_bytes - allocated, processor_time_s() - start_s};
}

// The least of up to five runs, of which the first is done; the first below `enough_s` ends them. What else the machine
// does, and memory that it has to find, only add to a run.
template <class Again>
double least_processor_s(const Cost& first, double enough_s, Again again) {
  double least_s = first.processor_s;
  for (int run = 1; run < 5 && least_s >= enough_s; ++run) least_s = std::min(least_s, again().processor_s);
  return least_s;
}

}  // namespace motley

void* operator new(std::size_t size) {
  void* block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  const std::size_t bytes = malloc_usable_size(block);
  motley::allocated_bytes += bytes;
  const std::size_t live = motley::live_bytes += bytes;
  std::size_t peak = motley::peak_live_bytes;
  while (live > peak && !motley::peak_live_bytes.compare_exchange_weak(peak, live)) {
  }
  return block;
}

void operator delete(void* block) noexcept {
  motley::live_bytes -= malloc_usable_size(block);
  std::free(block);
}

void operator delete(void* block, std::size_t) noexcept { operator delete(block); }
