// What a set of workers reports, with links that a test writes.
#include "motley/workers/worker_set.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/workers/scripted_handle_test.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

class WorkerSetTest : public testing::Test {
 protected:
  static constexpr std::uint64_t epoch = 4;

  // Two stages: box/0 and box/1, then box/2.
  explicit WorkerSetTest(const WorkerSetOptions& options = {.watchdog_s = 0.05})
      : plan_(std::make_shared<const ServePlan>(toy_plan({{2, 1}}))), scripts_(3) {
    Workers workers;
    std::size_t next = 0;
    for (const Stage& stage : plan_->stages)
      for (std::size_t rank = 0; rank < stage.devices.size(); ++rank)
        workers.push_back({.device = stage.devices[rank],
                           .stage = stage.id,
                           .rank = static_cast<int>(rank),
                           .handle = std::make_unique<ScriptedHandle>(scripts_[next++])});
    set_.emplace(plan_, epoch, std::move(workers), options);
  }

  // All workers are ready.
  void start() {
    for (Script& script : scripts_) script.to_driver.push_back(Ready{.epoch = epoch});
    EXPECT_FALSE(receive());
  }
  std::optional<WorkerLoss> receive() {
    set_->wait(nothing_.descriptor());
    return set_->receive([this](const StepResult& result, const StepSeconds& measured) {
      measured_.push_back(measured);
      results_.push_back(result.step);
    });
  }
  void answer(std::size_t worker, std::uint64_t step) {
    scripts_[worker].to_driver.push_back(
        StepResult{.step = step, .compute_s = 0.5, .wait_s = 0.25, .stage_wait_s = 0.125, .tokens = {}});
  }
  static Step step_of(std::uint64_t number) { return {number, 0, {{.sequence = 1, .position = 0, .count = 3}}}; }

  std::shared_ptr<const ServePlan> plan_;
  std::vector<Script> scripts_;
  Wakeup nothing_;
  std::vector<std::uint64_t> results_;
  std::vector<StepSeconds> measured_;
  std::optional<WorkerSet> set_;  // last: it ends the links
};

TEST_F(WorkerSetTest, IsReadyWhenAllAreAndPassesAnswersOfTheLastStage) {
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(set_->ready());
    scripts_[i].to_driver.push_back(Ready{.weight_bytes = 10, .epoch = epoch});
    EXPECT_FALSE(receive());
  }
  EXPECT_TRUE(set_->ready());
  set_->warmed_up();
  set_->send(step_of(1));
  for (const Script& script : scripts_) EXPECT_EQ(script.steps, std::vector<Step>{step_of(1)});
  answer(0, 1);
  answer(1, 1);
  EXPECT_FALSE(receive());
  EXPECT_TRUE(results_.empty());
  EXPECT_FALSE(set_->idle());
  answer(2, 1);
  EXPECT_FALSE(receive());
  EXPECT_EQ(results_, std::vector<std::uint64_t>{1});
  EXPECT_TRUE(set_->idle());
  const WorkerStatus status = set_->status().at(1);
  EXPECT_EQ(status.device, "box/1");
  EXPECT_EQ(status.allocated.weight_bytes, 10);
  EXPECT_EQ(status.busy_s, 0.5);
  EXPECT_EQ(status.steps, 1u);
}

// Rank 0 of a stage speaks for it. A step that others follow before its answer was not alone.
TEST_F(WorkerSetTest, TellsWhatAStepTookOnEveryStage) {
  start();
  set_->send(step_of(1));
  answer(0, 1);
  answer(1, 1);
  answer(2, 1);
  EXPECT_FALSE(receive());
  ASSERT_EQ(measured_.size(), 1u);
  EXPECT_EQ(measured_[0].stage_s, (std::vector<double>{0.625, 0.625}));
  EXPECT_EQ(measured_[0].device_s, (std::map<std::string, double>{{"box/0", 0.5}, {"box/1", 0.5}, {"box/2", 0.5}}));
  ASSERT_TRUE(measured_[0].alone_s);
  EXPECT_GE(*measured_[0].alone_s, 0);

  set_->send(step_of(2));
  set_->send(step_of(3));
  answer(2, 2);
  answer(0, 3);
  answer(2, 3);
  EXPECT_FALSE(receive());
  ASSERT_EQ(measured_.size(), 3u);
  EXPECT_EQ(measured_[1].stage_s, (std::vector<double>{0, 0.625})) << "the first stage has not reported";
  EXPECT_FALSE(measured_[1].alone_s);
  EXPECT_FALSE(measured_[2].alone_s);
}

TEST_F(WorkerSetTest, TellsWhatIsComputedNow) {
  start();
  set_->send(step_of(1));
  scripts_[0].to_driver.push_back(Alive{{.epoch = epoch, .step = 1, .doing = Doing::computing, .for_s = 3}});
  scripts_[1].to_driver.push_back(Alive{{.epoch = epoch, .step = 1, .doing = Doing::meeting, .peer = 0, .for_s = 3}});
  scripts_[2].to_driver.push_back(Alive{{.epoch = epoch - 1, .step = 1, .doing = Doing::computing, .for_s = 3}});
  EXPECT_FALSE(receive());
  ASSERT_EQ(set_->at_work().size(), 1u);
  EXPECT_EQ(set_->at_work()[0].device, "box/0");
  EXPECT_EQ(set_->at_work()[0].step, 1u);
  EXPECT_EQ(set_->at_work()[0].for_s, 3);
  answer(0, 1);
  EXPECT_FALSE(receive());
  EXPECT_TRUE(set_->at_work().empty());
}

// A neighbour of a dead worker reports an error, too; the dead worker is named.
TEST_F(WorkerSetTest, TheCauseIsNotAConsequence) {
  scripts_[0].to_driver.push_back(Failure{5, "box/2 is gone", ""});
  scripts_[2].exit = killed;
  auto loss = receive();
  ASSERT_TRUE(loss);
  EXPECT_STREQ(loss->cause.what(), "box/2 (rank 0 of stage r0/s1) was killed by signal 9");
  EXPECT_EQ(loss->devices, std::vector<std::string>{"box/2"});
  EXPECT_FALSE(set_->status().at(2).alive);
}

TEST_F(WorkerSetTest, AnErrorOfItsOwnIsTheCause) {
  scripts_[0].to_driver.push_back(Failure{5, "box/1 is gone", ""});
  scripts_[1].to_driver.push_back(Failure{4, "it does not fit", "buy memory"});
  const auto loss = receive();
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->cause.code(), ErrorCode::limit);
  EXPECT_STREQ(loss->cause.what(), "box/1 (rank 1 of stage r0/s0): it does not fit");
  EXPECT_EQ(loss->cause.hint(), "buy memory");
}

TEST_F(WorkerSetTest, OneThatLeavesSilentlyIsTheCause) {
  scripts_[0].to_driver.push_back(Failure{5, "box/1 is gone", ""});
  scripts_[1].ended = true;
  scripts_[1].exit = exited(0);
  EXPECT_STREQ(receive()->cause.what(), "box/1 (rank 1 of stage r0/s0) exited with code 0");
}

// A worker elsewhere: how it ended is not known.
TEST_F(WorkerSetTest, AnEndedConnectionIsACauseWhereNoOtherIsKnown) {
  scripts_[1].ended = true;
  scripts_[1].exit = WorkerExit{};
  EXPECT_STREQ(receive()->cause.what(), "box/1 (rank 1 of stage r0/s0) closed its control connection");
}

TEST_F(WorkerSetTest, ConsequencesAloneNameTheFirst) {
  scripts_[1].to_driver.push_back(Failure{5, "box/2 is gone", ""});
  scripts_[2].malformed = true;
  EXPECT_STREQ(receive()->cause.what(), "box/1 (rank 1 of stage r0/s0): box/2 is gone");
}

TEST_F(WorkerSetTest, WhatTheDriverDoesNotUnderstandIsHeldAgainstTheWorker) {
  start();
  set_->send(step_of(1));
  answer(2, 1);
  set_->wait(nothing_.descriptor());
  const auto loss =
      set_->receive([](const StepResult&, const StepSeconds&) { throw Error(ErrorCode::peer, "a token too many"); });
  ASSERT_TRUE(loss);
  EXPECT_STREQ(loss->cause.what(), "box/2 (rank 0 of stage r0/s1): a token too many");
}

TEST_F(WorkerSetTest, AnswersInTheWrongOrderAreAFailure) {
  start();
  for (const std::uint64_t step : {1, 2}) set_->send(step_of(step));
  answer(2, 2);
  answer(2, 1);
  EXPECT_THAT(receive()->cause.what(), HasSubstr("it answered step 1 after step 2"));
}

TEST_F(WorkerSetTest, AMessageOfTheDriverIsAFailure) {
  scripts_[0].to_driver.push_back(Step{});
  EXPECT_THAT(receive()->cause.what(), HasSubstr("a message that workers do not send"));
}

TEST_F(WorkerSetTest, TheFirstStageWithoutAnAnswerHangs) {
  start();
  set_->warmed_up();
  set_->send(step_of(1));
  answer(0, 1);
  std::optional<WorkerLoss> loss;
  while (!loss) loss = receive();
  EXPECT_THAT(loss->cause.what(), HasSubstr("box/1 (rank 1 of stage r0/s0) did not answer step 1 within 0."));
  EXPECT_EQ(loss->devices, std::vector<std::string>{"box/1"});
}

// Rank 0 of the last stage that it passes answers.
TEST_F(WorkerSetTest, AStepGoesNoFurtherThanItsParts) {
  start();
  Step step = step_of(1);
  step.sequences[0].stages = 1;
  set_->send(step);
  EXPECT_EQ(scripts_[0].steps, std::vector<Step>{step});
  EXPECT_EQ(scripts_[1].steps, std::vector<Step>{step});
  EXPECT_TRUE(scripts_[2].steps.empty());
  answer(0, 1);
  EXPECT_FALSE(receive());
  EXPECT_EQ(results_, std::vector<std::uint64_t>{1});

  Step mixed = step_of(2);
  mixed.sequences.push_back(step.sequences[0]);
  set_->send(mixed);
  EXPECT_EQ(scripts_[2].steps, std::vector<Step>{mixed});
}

// ---- workers that stay ----

TEST_F(WorkerSetTest, WhatIsSaidOfAnEarlierEpochIsIgnored) {
  scripts_[0].to_driver = {StepResult{.step = 77}, Interrupted{epoch - 1, "box/2 is gone"}, Ready{.epoch = epoch - 1}};
  EXPECT_FALSE(receive());
  EXPECT_FALSE(set_->ready());
  start();
  EXPECT_TRUE(set_->ready());
  EXPECT_TRUE(results_.empty());
  scripts_[0].to_driver.push_back(Ready{.epoch = epoch});
  EXPECT_THAT(receive()->cause.what(), HasSubstr("an unexpected message"));
}

TEST_F(WorkerSetTest, WhoIsInterruptedIsNotTheCause) {
  scripts_[0].to_driver.push_back(Interrupted{epoch, "lost rank 2"});
  scripts_[2].exit = killed;
  EXPECT_EQ(receive()->devices, std::vector<std::string>{"box/2"});
}

// As where a GPU's context breaks: its worker ends by the code of a peer's failure, and the others go on.
TEST_F(WorkerSetTest, WhoHasEndedIsTheCauseBeforeThoseThatAreInterrupted) {
  scripts_[0].to_driver.push_back(Interrupted{epoch, "lost rank 2", {2}});
  scripts_[2].to_driver.push_back(Failure{5, "at or before step 3: an illegal memory access", ""});
  scripts_[2].exit = exited(5);
  scripts_[2].ended = true;
  const auto loss = receive();
  EXPECT_EQ(loss->devices, std::vector<std::string>{"box/2"});
  EXPECT_THAT(loss->cause.what(), HasSubstr("at or before step 3: an illegal memory access"));
  EXPECT_FALSE(loss->at_once);
}

TEST_F(WorkerSetTest, WhoIsInterruptedIsNamedWhereNobodyElseIs) {
  scripts_[0].to_driver.push_back(Interrupted{epoch, "lost rank 2: no answer"});
  const auto loss = receive();
  EXPECT_STREQ(loss->cause.what(), "box/0 (rank 0 of stage r0/s0): lost rank 2: no answer");
  EXPECT_EQ(loss->devices, std::vector<std::string>{"box/0"});
}

TEST_F(WorkerSetTest, TellsHowManyKeysAndValuesFitWhereMemoryIsShort) {
  scripts_[2].to_driver.push_back(Interrupted{epoch, "1 MiB is free", {}, 160});
  scripts_[0].to_driver.push_back(Interrupted{epoch, "lost rank 2"});
  const auto loss = receive();
  EXPECT_EQ(loss->kv_tokens, 160);
  EXPECT_EQ(loss->devices, std::vector<std::string>{"box/2"});
  EXPECT_EQ(loss->cause.code(), ErrorCode::environment);
}

TEST_F(WorkerSetTest, TellsSinceWhenEachStageKeepsItsCache) {
  for (std::size_t i = 0; i < 3; ++i) scripts_[i].to_driver.push_back(Ready{.epoch = epoch, .cache_epoch = 1 + i});
  EXPECT_FALSE(receive());
  EXPECT_EQ(set_->cache_epochs(), (std::map<std::string, std::uint64_t>{{"r0/s0", 2}, {"r0/s1", 3}}));
}

TEST_F(WorkerSetTest, WorkersThatAreTakenLive) {
  Workers workers = set_->take_workers();
  EXPECT_EQ(workers.size(), 3u);
  set_.reset();
  for (const Script& script : scripts_) EXPECT_FALSE(script.closed || script.exit);
}

// ---- signs of life ----

class SilentWorkersTest : public WorkerSetTest {
 protected:
  SilentWorkersTest() : WorkerSetTest({.watchdog_s = 3600, .silence_s = 0.1}) {}
};

TEST_F(SilentWorkersTest, OneThatSaidThatItLivesAndFallsSilentIsLost) {
  scripts_[1].to_driver.push_back(Alive{});
  std::optional<WorkerLoss> loss;
  while (!loss) loss = receive();
  EXPECT_THAT(loss->cause.what(), HasSubstr("box/1 (rank 1 of stage r0/s0) has been silent for 0."));
  EXPECT_EQ(loss->cause.code(), ErrorCode::peer);
  EXPECT_EQ(loss->devices, std::vector<std::string>{"box/1"});
  EXPECT_FALSE(loss->gone);
}

TEST_F(SilentWorkersTest, OneThatNeverSaidSoIsNot) {
  scripts_[1].to_driver.push_back(Ready{.epoch = epoch});
  for (const Instant until = deadline_in(0.3); seconds_until(until) > 0;) ASSERT_FALSE(receive());
}

// Whatever a worker says shows that it lives.
TEST_F(SilentWorkersTest, AnyMessageIsASignOfLife) {
  scripts_[0].to_driver.push_back(Alive{});
  std::uint64_t step = 0;
  for (const Instant until = deadline_in(0.3); seconds_until(until) > 0;) {
    set_->send(step_of(++step));
    for (std::size_t worker = 0; worker < 3; ++worker) answer(worker, step);
    ASSERT_FALSE(receive());
  }
}

// ---- links ----

class StalledLinkTest : public WorkerSetTest {
 protected:
  StalledLinkTest() : WorkerSetTest({.watchdog_s = 3600, .silence_s = 3600, .stall_s = 0.1}) {
    start();
    set_->send(step_of(1));
  }
  void does(std::size_t worker, Doing doing, std::int32_t peer, double for_s, std::uint64_t of = epoch) {
    scripts_[worker].to_driver.push_back(Alive{{.epoch = of, .step = 1, .doing = doing, .peer = peer, .for_s = for_s}});
  }
  std::optional<WorkerLoss> loss_within(double seconds) {
    for (const Instant until = deadline_in(seconds); seconds_until(until) > 0;)
      if (auto loss = receive()) return loss;
    return std::nullopt;
  }
};

TEST_F(StalledLinkTest, WhatWasSentAndDoesNotArriveIsTheLinks) {
  answer(0, 1);
  does(2, Doing::receiving, 0, 60);
  const auto loss = loss_within(20);
  ASSERT_TRUE(loss);
  EXPECT_THAT(loss->cause.what(),
              HasSubstr("the link from box/0 to box/2 is lost: step 1 has not come through for 60."));
  EXPECT_EQ(loss->devices.size(), 1u);
  EXPECT_TRUE(loss->at_once);
  EXPECT_FALSE(loss->gone);
}

TEST_F(StalledLinkTest, WhatCannotBeSentIsTheLinks) {
  does(0, Doing::sending, 2, 60);
  does(2, Doing::receiving, 0, 60);
  EXPECT_THAT(loss_within(20)->cause.what(), HasSubstr("the link from box/0 to box/2 is lost"));
}

TEST_F(StalledLinkTest, WhoWaitsForOneThatComputesOrForAnEarlierEpochBlamesNobody) {
  does(0, Doing::computing, -1, 60);
  does(2, Doing::receiving, 0, 60);
  EXPECT_FALSE(loss_within(0.3));
  answer(0, 1);
  does(2, Doing::receiving, 0, 60, epoch - 1);
  EXPECT_FALSE(loss_within(0.3));
  does(2, Doing::receiving, 77, 60);
  EXPECT_FALSE(loss_within(0.3));
  does(2, Doing::computing, -1, 60);
  EXPECT_FALSE(loss_within(0.3));
}

TEST_F(WorkerSetTest, WhoCannotReachALivingWorkerHasLostTheLink) {
  scripts_[2].to_driver.push_back(Interrupted{epoch, "cannot reach rank 0", {0}});
  const auto loss = receive();
  EXPECT_STREQ(loss->cause.what(), "the link from box/0 to box/2 is lost: cannot reach rank 0");
  EXPECT_TRUE(loss->at_once);
}

TEST_F(WorkerSetTest, ASuspectThatHasDiedIsTheCause) {
  scripts_[2].to_driver.push_back(Interrupted{epoch, "lost rank 0", {0, 99, -5}});
  scripts_[0].exit = killed;
  scripts_[0].ended = true;
  const auto loss = receive();
  EXPECT_EQ(loss->devices, std::vector<std::string>{"box/0"});
  EXPECT_FALSE(loss->at_once);
}

// ---- machines that are gone ----

TEST_F(WorkerSetTest, AMachineIsGoneWithAllItsWorkers) {
  for (const std::size_t i : {0, 2}) scripts_[i].exit = WorkerExit{WorkerExit::How::machine, 0};
  scripts_[1].to_driver.push_back(Failure{5, "box/0 is gone", ""});
  const auto loss = receive();
  ASSERT_TRUE(loss);
  EXPECT_STREQ(loss->cause.what(), "box/0 (rank 0 of stage r0/s0) is on a machine that is gone");
  EXPECT_EQ(loss->devices, (std::vector<std::string>{"box/0", "box/2"}));
  EXPECT_TRUE(loss->gone);
}

TEST_F(WorkerSetTest, AWorkerThatWasKilledElsewhereIsNotGone) {
  scripts_[1].ended = true;
  scripts_[1].exit = killed;  // as its agent says
  const auto loss = receive();
  EXPECT_EQ(loss->devices, std::vector<std::string>{"box/1"});
  EXPECT_FALSE(loss->gone);
}

TEST_F(WorkerSetTest, EndingClosesAndThenKills) {
  scripts_[2].stays = true;
  set_->end();
  for (const Script& script : scripts_) EXPECT_TRUE(script.closed && script.exit);
  EXPECT_EQ(scripts_[2].exit->number, 9);
  EXPECT_FALSE(set_->status().at(0).alive);
}

}  // namespace
}  // namespace motley
