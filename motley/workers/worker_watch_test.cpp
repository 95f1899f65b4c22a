// The watch over workers, with scripted handles. Causes and consequences: worker_set_test.cpp.
#include "motley/workers/worker_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "motley/workers/scripted_handle_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

class WorkerWatchTest : public testing::Test {
 protected:
  void start(const WorkerWatchOptions& options) {
    Workers workers;
    for (std::size_t i = 0; i < scripts_.size(); ++i)
      workers.push_back({.device = "box/" + std::to_string(i),
                         .stage = "s",
                         .rank = static_cast<int>(i),
                         .handle = std::make_unique<ScriptedHandle>(scripts_[i])});
    watch_.emplace(std::move(workers), options);
  }
  std::optional<WorkerWatch::Lost> receive(const WorkerWatch::Take& take = {}) {
    watch_->wait(-1, 1);
    return watch_->receive(take);
  }

  std::vector<Script> scripts_{2};
  std::optional<WorkerWatch> watch_;  // last: it ends the links
};

TEST_F(WorkerWatchTest, PassesOnTheJobsMessages) {
  std::vector<double> parts;
  start({.progress = [&](const std::string& phase, double part) {
    EXPECT_EQ(phase, "weights");
    parts.push_back(part);
  }});
  scripts_[1].to_driver = {Progress{"weights", 0.5}, Alive{{.step = 3, .doing = Doing::meeting}}, JobMessage{}};
  std::vector<std::size_t> took;
  EXPECT_FALSE(receive([&](std::size_t worker, const Message& message) {
    EXPECT_TRUE(std::holds_alternative<JobMessage>(message));
    took.push_back(worker);
  }));
  EXPECT_EQ(took, std::vector<std::size_t>{1});
  EXPECT_EQ(parts, std::vector<double>{0.25});
  EXPECT_EQ(watch_->seen(1).activity.step, 3U);
}

// A full disk of the driver is not the worker's fault.
TEST_F(WorkerWatchTest, OnlyPeerErrorsAreTheWorkersFault) {
  start({});
  const auto throws = [](ErrorCode code) {
    return [code](std::size_t, const Message&) { throw Error(code, "no room is left"); };
  };
  scripts_[0].to_driver = {JobMessage{}};
  EXPECT_THROW(receive(throws(ErrorCode::environment)), Error);
  scripts_[0].to_driver = {JobMessage{}};
  const auto lost = receive(throws(ErrorCode::peer));
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->worker, 0U);
  EXPECT_FALSE(lost->by_itself);
  EXPECT_STREQ(watch_->describe(0).cause.what(), "box/0 (rank 0 of stage s): no room is left");
}

// Its agent reports a moment after its connection has ended.
TEST_F(WorkerWatchTest, WaitsForHowARemoteWorkerEnded) {
  start({.settle_s = 60});
  scripts_[0].to_driver = {Failure{5, "box/1 is gone", ""}};
  scripts_[1].ended = true;
  scripts_[1].exit = killed;
  scripts_[1].known = deadline_in(0.03);
  const auto lost = receive();
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->worker, 1U);
  EXPECT_STREQ(watch_->describe(1).cause.what(), "box/1 (rank 1 of stage s) was killed by signal 9");
}

TEST_F(WorkerWatchTest, AWorkerThatNeverSendsAliveIsLostAfterItsTimeToStart) {
  start({.silence_s = 0.01, .start_s = 0.2});
  std::optional<WorkerLoss> silent;
  while (!silent) {
    scripts_[0].to_driver = {Alive{}};
    EXPECT_FALSE(receive());
    silent = watch_->silent();
    if (silent && silent->devices != std::vector<std::string>{"box/1"}) silent.reset();  // the test was held up
  }
  EXPECT_THAT(silent->cause.what(), HasSubstr("box/1 (rank 1 of stage s) has been silent for "));
}

// Ctrl-Z stops the driver and its workers together.
TEST_F(WorkerWatchTest, SilenceCountsWhileTheDriverListens) {
  start({.silence_s = 0.3});
  scripts_[0].to_driver = {Alive{}};
  EXPECT_FALSE(receive());
  const Instant stopped = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_FALSE(receive());
  EXPECT_FALSE(watch_->silent());
  EXPECT_GT(watch_->listening(), stopped);
  while (!watch_->silent()) EXPECT_FALSE(receive());
  EXPECT_GT(seconds_since(stopped), 0.7);
}

}  // namespace
}  // namespace motley
