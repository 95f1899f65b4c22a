// The process of one device: it does what the driver's first message asks for, serving or training.
#pragma once

#include "motley/comm/transport/fabric.hpp"
#include "motley/workers/control_connection.hpp"

namespace motley {

// `control` is the connection to the process that has started the worker; it ends with that, or with its driver. The
// first message is CallDriver. Returns the exit code.
int run_worker(ControlConnection& control);

// Does the job (job.hpp) that the driver's first message begins, until the driver's end of the connection closes; then
// the process ends.
[[noreturn]] void serve_driver(ControlConnection& driver, const CallDriver& self, Fabric& fabric);

}  // namespace motley
