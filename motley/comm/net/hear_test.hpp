// For tests and fuzzers that answer a handshake on a thread of their own.
#pragma once

#include <poll.h>

#include <string>

#include "motley/base/error.hpp"
#include "motley/comm/net/handshake.hpp"

namespace motley {

inline HeardHello hear(ByteStream& stream, const std::string& key, Instant until) {
  Hearing hearing;
  hearing.begin(stream);
  for (;;) {
    if (auto heard = hearing.advance(stream, key)) return *std::move(heard);
    if (!wait_for(stream.descriptor(), POLLIN, until)) throw Error(ErrorCode::peer, "no answer in time");
  }
}

}  // namespace motley
