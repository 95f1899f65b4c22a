// Requests outlive plans and workers: the plan changes, and workers die, in the middle of answers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <deque>
#include <memory>
#include <utility>

#include "motley/serving/driver_fixture_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

class DriverChange : public DriverTest {};

// One stage per device that is left of `whole`, as long as one is.
Replan pipeline_over_the_rest(const ServePlan& whole) {
  return [whole](const ServePlan&, const std::set<std::string>& lost) -> std::optional<ServePlan> {
    std::vector<std::string> devices;
    for (const std::string& device : worker_devices(whole))
      if (!lost.contains(device)) devices.push_back(device);
    if (devices.empty()) return std::nullopt;
    return placed_on(toy_plan({std::vector<int>(devices.size(), 1)}), whole, devices);
  };
}

bool serves(const CallingDriver& driver, std::uint64_t epoch) {
  return wait_until(
      [&] {
        const DriverStatus status = driver.status();
        return status.ready && status.epoch == epoch;
      },
      30);
}

Tokens prompt_of(std::int32_t i) { return Tokens(static_cast<std::size_t>(1 + i % 30), 3 + i); }

TEST_F(DriverChange, AnswersAreTheSameWhateverPlansTakeTurns) {
  DriverSetup options = fake("step_ms=1");
  options.micro_batches = 2;
  CallingDriver driver(toy_plan({{1, 2, 1}}, 160), options);
  constexpr std::int32_t requests = 24;
  std::deque<StreamedAnswer> answers(requests);
  const auto length = [](std::int32_t i) { return 40 + 3 * i; };
  for (std::int32_t i = 0; i < requests / 2; ++i)
    driver.generate(ask(prompt_of(i), length(i)), answers[static_cast<std::size_t>(i)].callback());
  ASSERT_TRUE(answers[0].wait_for_tokens(3));
  driver.change_plan(toy_plan({{1}, {1, 1}}, 192));
  for (std::int32_t i = requests / 2; i < requests; ++i)  // while it takes effect
    driver.generate(ask(prompt_of(i), length(i)), answers[static_cast<std::size_t>(i)].callback());
  ASSERT_TRUE(serves(driver, 2));
  driver.change_plan(toy_plan({{3}}, 256));
  ASSERT_TRUE(serves(driver, 3));
  for (std::int32_t i = 0; i < requests; ++i) {
    const StreamedAnswer& answer = answers[static_cast<std::size_t>(i)];
    ASSERT_EQ(answer.wait(60), FinishReason::length) << answer.stop_cause();
    EXPECT_EQ(answer.tokens(), expected_tokens(prompt_of(i), length(i))) << i;
    EXPECT_EQ(answer.events_after_the_end(), 0);
  }
  const DriverStatus status = driver.status();
  EXPECT_EQ(status.plan->stages.size(), 1u);
  EXPECT_EQ(status.workers.size(), 3u);
  EXPECT_EQ(status.waiting.size(), 1u);
  EXPECT_EQ(status.held, 0);
  std::int64_t expected = 0;
  for (std::int32_t i = 0; i < requests; ++i) expected += length(i);
  EXPECT_EQ(status.generated_tokens, expected);  // none twice
}

TEST_F(DriverChange, ALostWorkerIsPlannedAroundUntilNoneIsLeft) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  DriverSetup options = fake("step_ms=2");
  options.replan = pipeline_over_the_rest(whole);
  std::atomic<int> failures = 0;
  CallingDriver driver(whole, options);
  driver.on_failure([&](const Error&) { ++failures; });
  StreamedAnswer first, second, last;
  driver.generate(ask({1, 2}, 60), first.callback());
  ASSERT_TRUE(first.wait_for_tokens(5));
  ::kill(driver.status().workers.at(1).process, SIGKILL);
  ASSERT_TRUE(serves(driver, 2));
  EXPECT_EQ(worker_devices(*driver.status().plan), (std::vector<std::string>{"box/0", "box/2"}));
  EXPECT_EQ(first.wait(), FinishReason::length);
  EXPECT_EQ(first.tokens(), expected_tokens({1, 2}, 60));

  driver.generate(ask({3}, 60), second.callback());
  ASSERT_TRUE(second.wait_for_tokens(5));
  ::kill(driver.status().workers.at(0).process, SIGKILL);
  EXPECT_EQ(second.wait(), FinishReason::length);
  EXPECT_EQ(second.tokens(), expected_tokens({3}, 60));
  EXPECT_EQ(driver.status().epoch, 3u);
  EXPECT_EQ(failures, 0);

  driver.generate(ask({4}, 1000), last.callback());
  ASSERT_TRUE(last.wait_for_tokens(2));
  ::kill(driver.status().workers.at(0).process, SIGKILL);
  EXPECT_EQ(last.wait(), FinishReason::failed);
  EXPECT_EQ(last.stop_cause(), "box/2 (rank 0 of stage r0/s0) was killed by signal 9");
  EXPECT_TRUE(wait_until([&] { return failures == 1; }, 20));
  EXPECT_EQ(driver.status().phase, DeploymentPhase::failed);
}

TEST_F(DriverChange, AWorkerThatHangsIsPlannedAround) {
  const ServePlan whole = toy_plan({{1, 1}});
  DriverSetup options = fake("step_ms=1");
  options.watchdog_s = 0.5;
  options.replan = pipeline_over_the_rest(whole);
  CallingDriver driver(whole, options);
  StreamedAnswer answer;
  driver.generate(ask({1}, 300), answer.callback());
  ASSERT_TRUE(answer.wait_for_tokens(2));
  ::kill(driver.status().workers.at(1).process, SIGSTOP);  // of the stage that answers
  EXPECT_EQ(answer.wait(30), FinishReason::length) << answer.stop_cause();
  EXPECT_EQ(answer.tokens(), expected_tokens({1}, 300));
  EXPECT_EQ(worker_devices(*driver.status().plan), std::vector<std::string>{"box/0"});
}

// With a rule that lets it: the same plan, and the same tokens. A device whose workers only die is planned around.
TEST_F(DriverChange, AWorkerThatDiesStartsAgain) {
  const ServePlan whole = toy_plan({{1, 1}});
  DriverSetup options = fake("step_ms=2");
  options.replan = pipeline_over_the_rest(whole);
  options.restart = {.deaths = 3, .first_wait_s = 0.05};
  CallingDriver driver(whole, options);
  StreamedAnswer first, second;
  driver.generate(ask({1, 2}, 60), first.callback());
  ASSERT_TRUE(first.wait_for_tokens(5));
  ::kill(driver.status().workers.at(1).process, SIGKILL);
  EXPECT_EQ(first.wait(), FinishReason::length) << first.stop_cause();
  EXPECT_EQ(first.tokens(), expected_tokens({1, 2}, 60));
  EXPECT_EQ(driver.status().epoch, 2u);
  EXPECT_EQ(worker_devices(*driver.status().plan), worker_devices(whole));

  for (std::uint64_t epoch = 2; epoch < 5; ++epoch) {  // nothing is asked for
    ASSERT_TRUE(serves(driver, epoch));
    ::kill(driver.status().workers.at(1).process, SIGKILL);
  }
  ASSERT_TRUE(serves(driver, 5));
  EXPECT_EQ(worker_devices(*driver.status().plan), std::vector<std::string>{"box/0"});
  driver.generate(ask({3}, 20), second.callback());
  EXPECT_EQ(second.wait(), FinishReason::length) << second.stop_cause();
  EXPECT_EQ(second.tokens(), expected_tokens({3}, 20));
}

TEST_F(DriverChange, ALostDeviceIsPlannedInAgain) {
  const ServePlan whole = toy_plan({{1, 1}});
  DriverSetup options = fake("step_ms=2");
  options.replan = pipeline_over_the_rest(whole);
  options.restart.away_s = 0.3;
  CallingDriver driver(whole, options);
  StreamedAnswer answer;
  driver.generate(ask({1}, 500), answer.callback());
  ASSERT_TRUE(answer.wait_for_tokens(5));
  ::kill(driver.status().workers.at(1).process, SIGKILL);
  ASSERT_TRUE(serves(driver, 3));
  EXPECT_EQ(worker_devices(*driver.status().plan), worker_devices(whole));
  EXPECT_EQ(answer.wait(), FinishReason::length) << answer.stop_cause();
  EXPECT_EQ(answer.tokens(), expected_tokens({1}, 500));
}

// Workers that refuse are lost like others: the function is asked again, and without one the deployment ends.
TEST_F(DriverChange, APlanWhoseWorkersDoNotStartIsALoss) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  const ServePlan one = placed_on(toy_plan({{1}}), whole, {"box/0"});
  DriverSetup options = fake("refuse=box/1");
  {
    options.replan = pipeline_over_the_rest(whole);
    CallingDriver driver(one, options);
    StreamedAnswer answer;
    driver.generate(ask({1}, 300), answer.callback());
    driver.change_plan(whole);
    EXPECT_EQ(answer.wait(), FinishReason::length) << answer.stop_cause();
    EXPECT_EQ(answer.tokens(), expected_tokens({1}, 300));
    ASSERT_TRUE(serves(driver, 3));
    EXPECT_EQ(worker_devices(*driver.status().plan), (std::vector<std::string>{"box/0", "box/2"}));
  }
  CallingDriver driver(one, fake("step_ms=10;refuse=box/1"));  // it is not done before they refuse
  StreamedAnswer answer;
  driver.generate(ask({1}, 1000), answer.callback());
  driver.change_plan(whole);
  EXPECT_EQ(answer.wait(), FinishReason::failed);
  EXPECT_EQ(answer.stop_cause(), "box/1 (rank 0 of stage r0/s1): it does not fit");
  EXPECT_THROW(driver.change_plan(one), Error);
}

TEST_F(DriverChange, ARequestThatNoLongerFitsIsToldSo) {
  CallingDriver driver(toy_plan({{1}}), fake("step_ms=1"));
  StreamedAnswer large, small;
  driver.generate(ask(Tokens(80, 5), 400), large.callback());
  driver.generate(ask({1}, 40), small.callback());
  ASSERT_TRUE(large.wait_for_tokens(2) && small.wait_for_tokens(2));
  driver.change_plan(toy_plan({{1}}, 64));
  EXPECT_EQ(large.wait(), FinishReason::no_room);
  EXPECT_THAT(large.stop_cause(), HasSubstr("no route of the new plan has room for more than 64 tokens"));
  EXPECT_EQ(small.wait(), FinishReason::length);
  EXPECT_EQ(small.tokens(), expected_tokens({1}, 40));
}

TEST_F(DriverChange, RefusesAPlanThatCannotTakeOver) {
  CallingDriver driver(toy_plan({{1}}), fake());
  ServePlan gap = toy_plan({{1, 1}});
  gap.routes[0].path.pop_back();
  EXPECT_THROW(driver.change_plan(gap), Error);
  EXPECT_TRUE(driver.status().ready);
}

TEST_F(DriverChange, MayEndOrDrainInTheMiddleOfAChange) {
  for (const double drain_s : {0.0, 20.0}) {
    StreamedAnswer answer;
    {
      CallingDriver driver(toy_plan({{1, 1}}), fake("step_ms=2"));
      const std::uint64_t cancelled = driver.generate(ask({9}, 500), [](const GenerateEvent&) {});
      driver.generate(ask({1}, 50), answer.callback());
      ASSERT_TRUE(answer.wait_for_tokens(1));
      driver.change_plan(toy_plan({{2}}));
      driver.cancel(cancelled);
      if (drain_s > 0) driver.drain(drain_s);
    }
    EXPECT_EQ(answer.wait(0), drain_s > 0 ? FinishReason::length : FinishReason::cancelled);
  }
}

// ---- workers that stay ----

// Killed in turn, and started again: the others keep their processes and what they know of the prompt.
TEST_F(DriverChange, WorkersStayWhenAnotherDies) {
  DriverSetup options = fake("step_ms=1");
  options.restart.deaths = 100;
  CallingDriver driver(toy_plan({{1, 2, 1}}), options);
  const auto processes = [&] {
    std::vector<int> all;
    for (const WorkerStatus& worker : driver.status().workers) all.push_back(worker.process);
    return all;
  };
  Tokens prompt;
  for (std::int32_t i = 0; i < 100; ++i) prompt.push_back(1 + i);
  StreamedAnswer answer;
  driver.generate(ask(prompt, 300), answer.callback());
  std::int64_t of_first = 0;
  for (std::uint64_t epoch = 2; epoch < 6; ++epoch) {
    ASSERT_TRUE(answer.wait_for_tokens(answer.tokens().size() + 5));
    const std::vector<int> before = processes();
    const std::size_t victim = epoch - 2;
    ::kill(before.at(victim), SIGKILL);
    ASSERT_TRUE(serves(driver, epoch));
    ASSERT_TRUE(answer.wait_for_tokens(answer.tokens().size() + 1));  // it has been replayed
    auto replayed = driver.status().replayed_tokens;
    EXPECT_GT(replayed["r0/s0"], of_first + 99) << victim;
    EXPECT_EQ(replayed["r0/s1"] > 0, epoch > 2) << victim;
    EXPECT_EQ(replayed["r0/s2"] > 0, epoch > 4) << victim;
    of_first = replayed["r0/s0"];
    const std::vector<int> after = processes();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after.at(i) == before[i], i != victim) << victim;
  }
  EXPECT_EQ(answer.wait(30), FinishReason::length) << answer.stop_cause();
  EXPECT_EQ(answer.tokens(), expected_tokens(prompt, 300));
}

// ---- a plan whose workers are prepared ----

class DriverPreparation : public DriverChange {
 protected:
  // Done, or failed, as the test says.
  struct Said {
    std::atomic<bool> done = false, fails = false;
    std::atomic<int> begun = 0, ended = 0, looks = 0;
    std::set<std::string> running;
    bool next = false;  // what begins next is scripted; of the driver's thread
  };
  class Scripted final : public WorkerStart {
   public:
    explicit Scripted(Said& said) : said_(said) { ++said_.begun; }
    ~Scripted() override { ++said_.ended; }
    bool take(Workers&) override {
      ++said_.looks;
      if (said_.fails) throw Error(ErrorCode::peer, "box/7 cannot be started");
      return said_.done;
    }

   private:
    Said& said_;
  };
  // Real workers, but for what begins after the driver has reported one of these phases.
  class ScriptedFleet final : public Fleet {
   public:
    explicit ScriptedFleet(Said& said) : said_(said) {}
    std::unique_ptr<WorkerStart> begin(const std::vector<std::string>& starting,
                                       const std::vector<std::string>& running, const WorkerReads& reads) override {
      if (!std::exchange(said_.next, false)) return workers_->begin(starting, running, reads);
      said_.running = {running.begin(), running.end()};
      return std::make_unique<Scripted>(said_);
    }
    bool is_here() const override { return true; }

   private:
    Said& said_;
    const std::shared_ptr<Fleet> workers_ = fake_workers();
  };

  DriverSetup options(const std::string& scripted_after = "prepare") {
    DriverSetup options = fake();
    options.restart.deaths = 100;
    options.fleet = std::make_shared<ScriptedFleet>(said_);
    options.report = [this, scripted_after](const std::string& phase, const std::string& detail) {
      if (phase == scripted_after) said_.next = true;
      const std::lock_guard lock(mutex_);
      reports_ += phase + ": " + detail + "\n";
    };
    return options;
  }
  bool reported(const std::string& text) {
    return wait_until(
        [&] {
          const std::lock_guard lock(mutex_);
          return reports_.find(text) != std::string::npos;
        },
        20);
  }
  bool looked(int times) {
    return wait_until([&] { return said_.looks >= times; }, 20);
  }

  Said said_;
  std::mutex mutex_;
  std::string reports_;
};

TEST_F(DriverPreparation, TheOldPlanServesUntilItIsDone) {
  CallingDriver driver(toy_plan({{1, 1}}), options());
  StreamedAnswer answer;
  driver.generate(ask({1, 2}, 200), answer.callback());
  driver.change_plan(toy_plan({{1}}));
  ASSERT_TRUE(looked(3));
  EXPECT_EQ(said_.running, std::set<std::string>{"box/0"});
  EXPECT_EQ(driver.status().epoch, 1u);
  // Where this thread is slow, the answer is nearly there.
  ASSERT_TRUE(answer.wait_for_tokens(std::min<std::size_t>(answer.tokens().size() + 5, 200)));
  said_.done = true;
  ASSERT_TRUE(serves(driver, 2));
  EXPECT_EQ(answer.wait(30), FinishReason::length);
  EXPECT_EQ(answer.tokens(), expected_tokens({1, 2}, 200));
  EXPECT_EQ(said_.ended, 1);
}

// They are asked for once the plan serves, and loaded when its machines have them; a plan without has none.
TEST_F(DriverPreparation, StandbyWeightsAreLoadedAfterServingHasBegun) {
  ServePlan plan = toy_plan({{1, 1}});
  plan.stages[1].standby_weights = {{{0, 1}}};
  CallingDriver driver(plan, options("warm-up"));
  ASSERT_TRUE(looked(2));
  StreamedAnswer answer;
  driver.generate(ask({1, 2}, 20), answer.callback());
  EXPECT_EQ(answer.wait(), FinishReason::length);
  const auto held = [&] {
    const std::vector<WorkerStatus> workers = driver.status().workers;
    return std::pair(workers.at(0).standby_bytes, workers.at(1).standby_bytes);
  };
  EXPECT_EQ(held(), std::pair(std::int64_t{0}, std::int64_t{0}));
  said_.done = true;
  EXPECT_TRUE(wait_until([&] { return held() == std::pair(std::int64_t{0}, std::int64_t{1}); }, 20));
  driver.change_plan(toy_plan({{1}}));
  ASSERT_TRUE(serves(driver, 2));
  EXPECT_EQ(said_.begun, said_.ended);
}

TEST_F(DriverPreparation, WithoutStandbyWeightsItServesOn) {
  ServePlan plan = toy_plan({{1, 1}});
  plan.stages[1].standby_weights = {{{0, 1}}};
  said_.fails = true;
  CallingDriver driver(plan, options("warm-up"));
  EXPECT_TRUE(reported("standby: weights are not there: box/7 cannot be started"));
  StreamedAnswer answer;
  driver.generate(ask({1, 2}, 20), answer.callback());
  EXPECT_EQ(answer.wait(), FinishReason::length);
}

TEST_F(DriverPreparation, WhereItFailsNothingChanges) {
  said_.fails = true;
  CallingDriver driver(toy_plan({{1, 1}}), options());
  driver.change_plan(toy_plan({{1}}));
  EXPECT_TRUE(reported("plan: no change: box/7 cannot be started"));
  EXPECT_EQ(driver.status().epoch, 1u);
  EXPECT_TRUE(driver.status().ready);
  said_.fails = false, said_.done = true;
  driver.change_plan(toy_plan({{1}}));
  EXPECT_TRUE(serves(driver, 2));
}

TEST_F(DriverPreparation, AnotherTakesItsPlace) {
  CallingDriver driver(toy_plan({{1, 1}}), options());
  driver.change_plan(toy_plan({{1}}));
  ASSERT_TRUE(looked(1));
  driver.change_plan(toy_plan({{2}}));
  ASSERT_TRUE(wait_until([&] { return said_.begun == 2 && said_.ended == 1; }, 20));
  said_.done = true;
  ASSERT_TRUE(serves(driver, 2));
  EXPECT_EQ(worker_devices(*driver.status().plan).size(), 2u);
}

// What was lost is not waited for.
TEST_F(DriverPreparation, ALossEndsIt) {
  CallingDriver driver(toy_plan({{1, 1}}), options());
  driver.change_plan(toy_plan({{1}}));
  ASSERT_TRUE(looked(1));
  ::kill(driver.status().workers.at(1).process, SIGKILL);
  ASSERT_TRUE(serves(driver, 2));
  EXPECT_EQ(worker_devices(*driver.status().plan), std::vector<std::string>{"box/0"});
  EXPECT_EQ(said_.ended, 1);
}

TEST_F(DriverPreparation, TheEndEndsIt) {
  {
    CallingDriver driver(toy_plan({{1, 1}}), options());
    driver.change_plan(toy_plan({{1}}));
    ASSERT_TRUE(looked(1));
  }
  EXPECT_EQ(said_.ended, 1);
}

// ---- the real worker ----

// Greedy, and drawn with a seed.
std::vector<GenerateRequest> some_requests() {
  std::vector<GenerateRequest> requests;
  for (std::int32_t i = 0; i < 6; ++i) {
    Tokens prompt;
    for (std::int32_t t = 0; t < 3 + 7 * i; ++t) prompt.push_back((7 + 131 * i + 17 * t) % 2048);
    requests.push_back(ask(prompt, 60));
    if (i % 2 == 0) continue;
    requests.back().sampling.temperature = 0.9f;
    requests.back().sampling.top_p = 0.95f;
    requests.back().sampling.frequency_penalty = 0.2f;
    requests.back().sampling.seed = 1000 + static_cast<std::uint64_t>(i);
  }
  return requests;
}

// Their answers, where `disturb` runs once the first has some tokens.
std::vector<Tokens> answers_of(const ServePlan& plan, const Replan& replan,
                               const std::function<void(CallingDriver&)>& disturb) {
  DriverSetup options = real("shm");
  options.replan = replan;
  CallingDriver driver(plan, options);
  const std::vector<GenerateRequest> requests = some_requests();
  std::deque<StreamedAnswer> answers(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) driver.generate(requests[i], answers[i].callback());
  EXPECT_TRUE(answers.front().wait_for_tokens(4, 60));
  if (disturb) disturb(driver);
  std::vector<Tokens> tokens;
  for (const StreamedAnswer& answer : answers) {
    EXPECT_EQ(answer.wait(60), FinishReason::length) << answer.stop_cause();
    EXPECT_EQ(answer.events_after_the_end(), 0);
    tokens.push_back(answer.tokens());
  }
  return tokens;
}

TEST_F(DriverChange, TheModelsAnswersAreThoseOfAnUndisturbedRun) {
  const ServePlan whole = toy_plan({{1, 1, 1}});
  const std::vector<Tokens> expected = answers_of(whole, {}, {});
  for (const Tokens& tokens : expected) ASSERT_EQ(tokens.size(), 60u);
  EXPECT_EQ(answers_of(whole, {},
                       [](CallingDriver& driver) {
                         driver.change_plan(toy_plan({{1}}));
                         EXPECT_TRUE(serves(driver, 2));
                         driver.change_plan(toy_plan({{1, 1}, {1}}));
                       }),
            expected);
  EXPECT_EQ(answers_of(whole, pipeline_over_the_rest(whole),
                       [](CallingDriver& driver) {
                         ::kill(driver.status().workers.at(1).process, SIGKILL);
                         EXPECT_TRUE(wait_until([&] { return driver.status().epoch == 2; }, 30));
                       }),
            expected);
}

}  // namespace
}  // namespace motley
