// `motley serve`: workers, text and the HTTP server of one plan, from start to orderly end.
#pragma once

#include "motley/comm/net/stop_signals.hpp"
#include "motley/plan/serve.hpp"
#include "motley/server/serve_settings.hpp"

namespace motley {

// Serves until the first signal, then lets requests under way end, and returns 0; a second signal, or one while the
// workers start, ends the process. Throws what hinders the start. When a worker dies, requests wait while workers start
// again or another plan takes effect; where none does, they get an error and it throws a peer error. No worker process
// is left behind.
int serve_plan(ServePlan plan, Fleet& fleet, StopSignals& signals, ServeSettings settings);

}  // namespace motley
