// The process's one Python interpreter. It sees the standard library and the project's environment
// (python_environment()), neither the user's packages nor Python's variables, and it handles no signals.
#pragma once

#include <chrono>
#include <cstddef>

namespace motley {

// Python may be used by a thread that holds one of these; it waits for other threads to yield the interpreter.
class PythonLock {
 public:
  // Starts the interpreter at the first call. Throws an environment error where Python does not start.
  PythonLock();
  ~PythonLock();
  PythonLock(const PythonLock&) = delete;
  PythonLock& operator=(const PythonLock&) = delete;

 private:
  int state_;
};

// While it lives, Python code of this thread gets a KeyboardInterrupt at every line that it begins after `time`, and
// once it has allocated `bytes` in total (given back or not) every larger allocation fails with MemoryError. Made under
// a PythonLock; one per thread at a time.
class PythonLimits {
 public:
  PythonLimits(std::chrono::milliseconds time, std::size_t bytes);
  ~PythonLimits();
  PythonLimits(const PythonLimits&) = delete;
  PythonLimits& operator=(const PythonLimits&) = delete;
};

}  // namespace motley
