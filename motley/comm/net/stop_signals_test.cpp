#include "motley/comm/net/stop_signals.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "motley/comm/net/deadline_test.hpp"

namespace motley {
namespace {

// Until another thread has ended the process, which a broken test does not wait for.
void wait_for_the_end() {
  std::this_thread::sleep_for(duration_of(seconds_until(soon())));
  std::_Exit(99);
}

TEST(StopSignals, AreCountedWhereNothingElseIsAskedFor) {
  const StopSignals signals;
  pollfd came{signals.descriptor(), POLLIN, 0};
  EXPECT_EQ(signals.count(), 0);
  EXPECT_EQ(::poll(&came, 1, 0), 0);
  std::raise(SIGINT);
  std::raise(SIGTERM);
  EXPECT_EQ(signals.count(), 2);
  EXPECT_EQ(::poll(&came, 1, 0), 1);
}

TEST(StopSignals, EndTheProcessAlsoWhereTheyCameBefore) {
  const auto later = [] {
    StopSignals signals([] { return 7; });
    std::raise(SIGTERM);
    wait_for_the_end();
  };
  EXPECT_EXIT(later(), testing::ExitedWithCode(7), "");
  const auto before = [] {
    StopSignals signals;
    std::raise(SIGTERM);
    signals.end_process_by([] { return 8; });
    std::_Exit(99);
  };
  EXPECT_EXIT(before(), testing::ExitedWithCode(8), "");
}

// What `end` uses may go once it is not used any more: a signal that came meanwhile has ended the process.
TEST(StopSignals, NoneIsLostWhereTheEndIsTakenBack) {
  const auto taken_back = [] {
    StopSignals signals([] { return 7; });
    std::raise(SIGTERM);
    signals.end_process_by({});
    std::_Exit(99);
  };
  EXPECT_EXIT(taken_back(), testing::ExitedWithCode(7), "");
}

TEST(StopSignals, TheFirstOfAnArmedProcessIsForItAndTheSecondEndsIt) {
  const auto two = [] {
    StopSignals signals([] { return 7; });
    const Wakeup first;
    signals.arm([&] { first.notify(); });
    std::raise(SIGINT);
    if (!wait_for(first.descriptor(), POLLIN, soon())) std::_Exit(98);
    std::raise(SIGINT);
    wait_for_the_end();
  };
  EXPECT_EXIT(two(), testing::ExitedWithCode(7), "");
}

TEST(StopSignals, ALateProcessIsEnded) {
  const auto late = [](bool disarmed) {
    StopSignals signals([] { return 7; });
    signals.end_within(disarmed ? 1 : 0.01, [] { std::fputs("too late", stderr); });
    if (disarmed) signals.disarm();
    if (disarmed) std::_Exit(5);
    wait_for_the_end();
  };
  EXPECT_EXIT(late(false), testing::ExitedWithCode(7), "too late");
  EXPECT_EXIT(late(true), testing::ExitedWithCode(5), "");
}

TEST(StopSignals, WhenTheyGoSignalsEndTheProcessAsEver) {
  const auto gone = [] {
    { const StopSignals signals; }
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(gone(), testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace motley
