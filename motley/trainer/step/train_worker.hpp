// The worker process's part of a training run: what the driver's messages (layout/train_messages.hpp) ask for.
#pragma once

#include <functional>

#include "motley/comm/transport/fabric.hpp"
#include "motley/workers/activity_log.hpp"
#include "motley/workers/control_connection.hpp"

namespace motley {

// Answers on `control` what `next` brings, which waits; TrainLaunch first. Ends by an exception alone.
void train_steps(ControlConnection& control, const std::function<Message()>& next, const CallDriver& self,
                 const ComputeDevice& device, Fabric& fabric, ActivityLog& activity);

}  // namespace motley
