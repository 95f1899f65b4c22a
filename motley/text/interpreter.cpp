#include "motley/text/interpreter.hpp"

#include <Python.h>

#include <string>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"

namespace motley {
namespace {

// Python's small-object limit: larger blocks come straight from malloc. Smaller ones are counted but never refused, so
// that the interpreter can still raise and unwind.
constexpr std::size_t small_object_bytes = 512;

struct AllocationBudget {
  bool active = false;
  std::size_t left = 0;

  bool take(std::size_t bytes) {
    if (!active) return true;
    if (bytes > left && bytes > small_object_bytes) return false;
    left -= bytes < left ? bytes : left;
    return true;
  }
};

// Of each thread its own, since threads take turns at any line.
thread_local AllocationBudget budget;
thread_local Instant deadline;

void* counted_malloc(void* inner, std::size_t size) {
  const auto* allocator = static_cast<PyMemAllocatorEx*>(inner);
  return budget.take(size) ? allocator->malloc(allocator->ctx, size) : nullptr;
}

void* counted_calloc(void* inner, std::size_t count, std::size_t size) {
  const auto* allocator = static_cast<PyMemAllocatorEx*>(inner);
  return budget.take(count * size) ? allocator->calloc(allocator->ctx, count, size) : nullptr;
}

void* counted_realloc(void* inner, void* block, std::size_t size) {
  const auto* allocator = static_cast<PyMemAllocatorEx*>(inner);
  return budget.take(size) ? allocator->realloc(allocator->ctx, block, size) : nullptr;
}

void counted_free(void* inner, void* block) {
  const auto* allocator = static_cast<PyMemAllocatorEx*>(inner);
  allocator->free(allocator->ctx, block);
}

void count_allocations(PyMemAllocatorDomain domain, PyMemAllocatorEx& inner) {
  PyMem_GetAllocator(domain, &inner);
  PyMemAllocatorEx counted{&inner, counted_malloc, counted_calloc, counted_realloc, counted_free};
  PyMem_SetAllocator(domain, &counted);
}

void require_success(const PyStatus& status) {
  if (PyStatus_Exception(status))
    throw Error(ErrorCode::environment,
                std::string("Python does not start: ") + (status.err_msg ? status.err_msg : "unknown cause"),
                environment_hint);
}

void start_python() {
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  struct Clear {
    PyConfig* config;
    ~Clear() { PyConfig_Clear(config); }
  } clear{&config};
  config.install_signal_handlers = 0;
  config.write_bytecode = 0;
  // Python finds its packages from where its program lies, here the environment's.
  require_success(PyConfig_SetBytesString(&config, &config.executable, (python_environment() / "bin/python3").c_str()));
  require_success(Py_InitializeFromConfig(&config));

  static PyMemAllocatorEx object_allocator, memory_allocator;
  count_allocations(PYMEM_DOMAIN_OBJ, object_allocator);
  count_allocations(PYMEM_DOMAIN_MEM, memory_allocator);
  PyEval_SaveThread();  // so that every thread can take the lock, this one as well
}

int raise_if_overdue(PyObject*, PyFrameObject*, int, PyObject*) {
  if (Clock::now() < deadline) return 0;
  PyErr_SetString(PyExc_KeyboardInterrupt, "time limit");
  return -1;
}

}  // namespace

PythonLock::PythonLock() {
  // Python is never finalised: extension modules do not survive a second start, and the process is about to end.
  static const bool started = (start_python(), true);
  static_cast<void>(started);
  state_ = PyGILState_Ensure();
}

PythonLock::~PythonLock() { PyGILState_Release(static_cast<PyGILState_STATE>(state_)); }

// A trace function: the ways to interrupt Python from another thread need either its lock, which running code does not
// give away in time, or a signal of the process.
PythonLimits::PythonLimits(std::chrono::milliseconds time, std::size_t bytes) {
  deadline = Clock::now() + time;
  budget = {.active = true, .left = bytes};
  PyEval_SetTrace(raise_if_overdue, nullptr);
}

PythonLimits::~PythonLimits() {
  PyEval_SetTrace(nullptr, nullptr);
  budget.active = false;
}

}  // namespace motley
