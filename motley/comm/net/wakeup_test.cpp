#include "motley/comm/net/wakeup.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <limits>

#include "motley/base/error.hpp"

namespace motley {
namespace {

bool is_set(const Wakeup& wakeup) { return wait_for(wakeup.descriptor(), POLLIN, Clock::now()); }

TEST(Wakeup, IsSetUntilItIsCleared) {
  const Wakeup wakeup;
  wakeup.clear();
  EXPECT_FALSE(is_set(wakeup));
  wakeup.notify();
  wakeup.notify();
  EXPECT_TRUE(is_set(wakeup));
  wakeup.clear();
  EXPECT_FALSE(is_set(wakeup));
}

TEST(Wakeup, AFullEventStaysSet) {
  const Wakeup wakeup(FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  ASSERT_EQ(::eventfd_write(wakeup.descriptor(), std::numeric_limits<eventfd_t>::max() - 1), 0);
  wakeup.notify();
  EXPECT_TRUE(is_set(wakeup));
}

TEST(Wakeup, WhatIsNotAnEventIsAnError) {
  const Wakeup wakeup(FileDescriptor(::open("/dev/full", O_WRONLY | O_CLOEXEC)));
  EXPECT_THROW(wakeup.notify(), Error);
  EXPECT_THROW(wakeup.clear(), Error);
  EXPECT_THROW(Wakeup(FileDescriptor()).notify(), Error);
}

TEST(FileDescriptor, WaitingEndsAtTheDeadline) {
  const Wakeup wakeup;
  EXPECT_FALSE(wait_for(wakeup.descriptor(), POLLIN, deadline_in(0.01)));
  EXPECT_FALSE(wait_for(wakeup.descriptor(), POLLIN, deadline_in(-1)));
  wakeup.notify();
  EXPECT_TRUE(wait_for(wakeup.descriptor(), POLLIN, no_deadline));
  EXPECT_TRUE(wait_for(wakeup.descriptor(), POLLIN, deadline_in(-1)));
}

}  // namespace
}  // namespace motley
