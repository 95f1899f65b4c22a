// Work of a thread that must not end the process, whatever is short: memory, threads, descriptors.
#pragma once

#include <chrono>
#include <exception>
#include <thread>

namespace motley {

// What `work` throws is given to `report`, and followed by a pause, so that a loop around this does not spin. True
// where nothing was thrown.
template <class Work, class Report>
bool survive(const Work& work, const Report& report) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    try {
      report(error);
    } catch (const std::exception&) {
      // There is not even memory to say so.
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return false;
}

}  // namespace motley
