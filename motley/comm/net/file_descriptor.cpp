#include "motley/comm/net/file_descriptor.hpp"

#include <poll.h>

#include <cerrno>

#include "motley/base/error.hpp"

namespace motley {

bool wait_for(int descriptor, short events, Instant until) {
  for (;;) {
    pollfd waiting{descriptor, events, 0};
    const int ready = ::poll(&waiting, 1, poll_timeout_ms(until));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw environment_error("cannot wait for a descriptor");
    if (ready == 0 && Clock::now() >= until) return false;
  }
}

}  // namespace motley
