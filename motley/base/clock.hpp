// Seconds of the clock that nobody sets.
#pragma once

#include <chrono>

namespace motley {

inline std::chrono::steady_clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Since some moment in the past, the same for all of a process.
inline double now_s() { return seconds_since(std::chrono::steady_clock::time_point()); }

}  // namespace motley
