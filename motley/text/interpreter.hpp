// The process's one Python interpreter, on a thread of its own. It sees the standard library and the project's
// environment (python_environment()), neither the user's packages nor Python's variables, and it handles no signals.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "motley/text/serial_queue.hpp"

namespace motley {

class Interpreter {
 public:
  // Starts it at the first call. Throws an environment error where Python does not start.
  static std::shared_ptr<Interpreter> instance();

  // Python may be touched in jobs of this queue alone; they hold its lock.
  SerialQueue& queue() { return queue_; }

 private:
  Interpreter();
  SerialQueue queue_;
};

// While it lives, Python code gets a KeyboardInterrupt at every line that it begins after `time`, and once it has
// allocated `bytes` in total (given back or not) every larger allocation fails with MemoryError. To be made on the
// interpreter's thread; no two at once.
class PythonLimits {
 public:
  PythonLimits(std::chrono::milliseconds time, std::size_t bytes);
  ~PythonLimits();
  PythonLimits(const PythonLimits&) = delete;
  PythonLimits& operator=(const PythonLimits&) = delete;
};

}  // namespace motley
