// The steady clock: moments, deadlines and seconds between them.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace motley {

using Clock = std::chrono::steady_clock;
using Instant = Clock::time_point;

inline Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

inline double seconds_between(Instant start, Instant end) { return std::chrono::duration<double>(end - start).count(); }
inline double seconds_since(Instant start) { return seconds_between(start, Clock::now()); }

// Since some moment in the past, the same for the whole process.
inline double now_s() { return seconds_since(Instant()); }

// For a wait without a limit.
constexpr Instant no_deadline = Instant::max();

// A century or more is not a deadline.
inline Instant deadline_in(double seconds) { return seconds < 3e9 ? Clock::now() + duration_of(seconds) : no_deadline; }

// Negative once it has passed.
inline double seconds_until(Instant deadline) { return -seconds_since(deadline); }

// For poll(): milliseconds rounded up, so that a wait does not end just before its deadline; 0 once it has passed, -1
// (no limit) for `no_deadline`.
inline int poll_timeout_ms(Instant deadline) {
  if (deadline == no_deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, std::numeric_limits<int>::max()));
}

}  // namespace motley
