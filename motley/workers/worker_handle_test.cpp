#include "motley/workers/worker_handle.hpp"

#include <gtest/gtest.h>

#include "motley/comm/net/wakeup.hpp"

namespace motley {
namespace {

// No event will ever come of it.
class QuietHandle final : public WorkerHandle {
 public:
  explicit QuietHandle(bool pending) : pending_(pending) {}
  void send(std::string_view) override {}
  void flush() override { ++flushed; }
  std::vector<Message> receive() override { return {}; }
  bool ended() const override { return false; }
  std::optional<WorkerExit> exit() override { return ends ? std::optional(WorkerExit{}) : std::nullopt; }
  std::vector<pollfd> events() const override { return {{never_.descriptor(), POLLIN, 0}}; }
  bool pending() const override { return pending_; }
  void close() override {}
  void kill() override {}
  int process() const override { return 0; }

  int flushed = 0;
  bool ends = true;

 private:
  const bool pending_;
  Wakeup never_;
};

TEST(WaitForWorkers, WhatHasArrivedAlreadyIsNotWaitedFor) {
  Workers workers;
  for (const bool pending : {false, true, false})
    workers.push_back({.device = "box/0", .stage = {}, .handle = std::make_unique<QuietHandle>(pending)});
  EXPECT_EQ(wait_for_workers(workers, -1, 3600), std::vector<std::size_t>{1});
  EXPECT_EQ(static_cast<QuietHandle&>(*workers[0].handle).flushed, 0);
  EXPECT_EQ(static_cast<QuietHandle&>(*workers[1].handle).flushed, 1);
}

// As where a call to the driver of a lost device does not return.
TEST(EndWorkers, AProcessThatCannotBeEndedIsWaitedForSomeSeconds) {
  Workers workers;
  workers.push_back({.device = "box/0", .stage = {}, .handle = std::make_unique<QuietHandle>(false)});
  static_cast<QuietHandle&>(*workers[0].handle).ends = false;
  end_workers(workers, 0);  // returns
}

TEST(WaitForWorkers, AnotherDescriptorEndsTheWait) {
  Workers workers;
  workers.push_back({.device = "box/0", .stage = {}, .handle = std::make_unique<QuietHandle>(false)});
  Wakeup wake;
  wake.notify();
  EXPECT_TRUE(wait_for_workers(workers, wake.descriptor(), 3600).empty());
}

}  // namespace
}  // namespace motley
