// Jobs side by side, of which each result depends on nothing but its number.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace motley {

// Calls job(0) ... job(jobs - 1) on up to this many threads, this one included. Of exceptions the one with the lowest
// number is thrown on, when all are done.
template <typename Job>
void in_parallel(std::size_t jobs, int threads, const Job& job) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> failures(jobs);
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs; i = next++) {
      try {
        job(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  const std::size_t wanted = std::min<std::size_t>(jobs, static_cast<std::size_t>(std::max(1, threads)));
  for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(work);
  work();
  for (auto& other : others) other.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace motley
