#include "motley/workers/activity_log.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

void wait_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

TEST(ActivityLog, AddsUpTheTimeOfComputing) {
  ActivityLog log;
  wait_a_moment();
  log.set(1, 7, Doing::computing);
  wait_a_moment();
  log.set(Doing::receiving, 3);
  const double computed_s = log.computed_s();
  EXPECT_GE(computed_s, 0.005);
  wait_a_moment();
  EXPECT_GE(log.get().for_s, 0.005);
  log.set(Doing::computing);
  EXPECT_EQ(log.computed_s(), computed_s);
  EXPECT_EQ(log.get().step, 7U);
  EXPECT_EQ(log.get().epoch, 1U);
}

// What another thread reads is the time of the one that computes.
TEST(ActivityLog, TellsTheProcessorTimeOfTheThread) {
  ActivityLog log;
  std::atomic<bool> blocked = false;
  std::thread thread([&] {
    log.set(1, 7, Doing::computing);
    while (log.get().processor_s < 0.002) continue;
    blocked.wait(false);
  });
  while (log.get().processor_s < 0.002) wait_a_moment();
  for (double before = 0; before != log.get().processor_s; wait_a_moment()) before = log.get().processor_s;
  blocked = true;
  blocked.notify_all();
  thread.join();
}

TEST(ActivityLog, OperationsOfAGroupAreWaits) {
  LinkedGroups groups("shm", 2);
  ActivityLog log;
  groups[1]->tell(log, {4, 6});
  std::array<std::byte, 8> sent{}, received{};
  std::thread thread([&] {
    log.set(1, 7, Doing::computing);
    groups[1]->receive(received, 0);
    log.set(Doing::waiting_for_steps);
  });
  while (log.get().doing != Doing::receiving) wait_a_moment();
  EXPECT_EQ(log.get().peer, 4);
  EXPECT_EQ(log.get().step, 7U);
  groups[0]->send(sent, 1);
  thread.join();
  EXPECT_EQ(log.get().doing, Doing::waiting_for_steps);
}

}  // namespace
}  // namespace motley
