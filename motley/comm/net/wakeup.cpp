#include "motley/comm/net/wakeup.hpp"

#include <sys/eventfd.h>

#include <cerrno>

#include "motley/base/error.hpp"

namespace motley {

Wakeup::Wakeup() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw environment_error("cannot create an eventfd");
}

void Wakeup::notify() const {
  // One that is full was notified.
  while (::eventfd_write(event_.get(), 1) != 0)
    if (errno == EAGAIN)
      return;
    else if (errno != EINTR)
      throw environment_error("cannot wake a thread");
}

void Wakeup::clear() const {
  eventfd_t count = 0;
  while (::eventfd_read(event_.get(), &count) != 0)
    if (errno == EAGAIN)
      return;
    else if (errno != EINTR)
      throw environment_error("cannot clear a wake-up event");
}

}  // namespace motley
