// For tests that talk over sockets.
#pragma once

#include "motley/base/clock.hpp"
#include "motley/comm/net/byte_stream.hpp"

namespace motley {

// When a test gives up waiting for what should happen at once.
inline Instant soon() { return deadline_in(20); }

}  // namespace motley
