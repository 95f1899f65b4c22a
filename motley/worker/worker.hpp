// The process of one device: it does what the driver's first message asks for, serving or training.
#pragma once

#include "motley/comm/transport/fabric.hpp"
#include "motley/workers/control_connection.hpp"

namespace motley {

// Until the driver's end of the connection closes: returns the exit code. The first message is Launch, and it serves
// steps; or TrainLaunch, and it trains (trainer/step/train_worker.hpp); or CallDriver, and it does the same on a
// control connection of its own. `fabric` reaches workers that Launch names by address; nullptr where it brings
// descriptors.
int run_worker(ControlConnection& control, Fabric* fabric = nullptr);

}  // namespace motley
