// For tests that talk over sockets.
#pragma once

#include <chrono>

#include "motley/comm/net/byte_stream.hpp"

namespace motley {

// When a test gives up waiting for what should happen at once.
inline ByteStream::Time soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

}  // namespace motley
