// The driver with workers that only count (tests/programs/fake_worker.cpp): scheduling, cancelling, and above all
// dying.
#include "motley/serving/driver.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <future>
#include <thread>

#include "motley/serving/driver_fixture_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

TEST_F(DriverTest, AnswersEveryRequestThoughMemoryIsTight) {
  DriverSetup options = fake();
  options.micro_batches = 2;
  CallingDriver driver(toy_plan({{1}}, 160), options);  // ten blocks
  EXPECT_TRUE(driver.status().ready);
  std::vector<StreamedAnswer> answers(60);
  const auto prompt = [](std::int32_t i) { return std::vector<std::int32_t>(static_cast<std::size_t>(1 + i % 30), i); };
  for (std::int32_t i = 0; i < 60; ++i)
    driver.generate(ask(prompt(i), 1 + i % 70), answers[static_cast<std::size_t>(i)].callback());
  for (std::int32_t i = 0; i < 60; ++i) {
    const StreamedAnswer& answer = answers[static_cast<std::size_t>(i)];
    ASSERT_EQ(answer.wait(), FinishReason::length);
    EXPECT_EQ(answer.tokens(), expected_tokens(prompt(i), 1 + i % 70)) << i;
    EXPECT_EQ(answer.events_after_the_end(), 0);
  }
  const DriverStatus status = driver.status();
  EXPECT_GT(status.preemptions, 0);
  EXPECT_EQ(status.free_blocks, 10);
  EXPECT_EQ(status.total_blocks, 10);
  EXPECT_GT(status.generated_tokens, 1000);
  EXPECT_GT(status.workers.at(0).steps, 100u);
  EXPECT_EQ(status.workers.at(0).allocated, (Ready{100, 10, 1, 0, "none"}));
}

TEST_F(DriverTest, GoesOnWithFewerKeysAndValuesWhereMemoryIsShort) {
  for (const char* settings : {"room=160", "room=160;room_after=20"}) {
    SCOPED_TRACE(settings);
    DriverSetup options = fake(settings);
    std::vector<std::string> of_memory;
    options.report = [&](const std::string& phase, const std::string& detail) {
      if (phase == "memory") of_memory.push_back(detail);
    };
    std::vector<StreamedAnswer> answers(30);
    {
      CallingDriver driver(toy_plan({{1}}), options);
      for (StreamedAnswer& answer : answers) driver.generate(ask({1, 2, 3}, 40), answer.callback());
      for (const StreamedAnswer& answer : answers) {
        ASSERT_EQ(answer.wait(), FinishReason::length);
        EXPECT_EQ(answer.tokens(), expected_tokens({1, 2, 3}, 40));
        EXPECT_EQ(answer.events_after_the_end(), 0);
      }
      EXPECT_EQ(driver.status().total_blocks, 10);
    }
    EXPECT_THAT(of_memory, testing::Contains(HasSubstr("1 MiB is free")));
  }
}

TEST_F(DriverTest, RunsAllRoutesAndReportsItsStart) {
  for (const char* transport : {"shm", "tcp"}) {
    DriverSetup options = fake("step_ms=1");
    options.fleet = std::make_shared<LocalFleet>(
        LocalFleetOptions{.program = program_beside("fake-worker"), .transport = transport});
    std::vector<std::string> phases;
    options.report = [&](const std::string& phase, const std::string&) { phases.push_back(phase); };
    CallingDriver driver(toy_plan({{2, 3, 1}, {1, 2}}), options);
    EXPECT_EQ(phases.front(), "workers");
    EXPECT_THAT(phases, testing::IsSupersetOf({"weights", "memory"}));
    EXPECT_EQ(phases.back(), "warm-up");
    const auto all_have_run = [&] {
      return std::ranges::all_of(driver.status().workers,
                                 [](const WorkerStatus& worker) { return worker.steps > 10 && worker.busy_s > 0.01; });
    };
    // A route that seems slow on a busy machine gets its share of requests later.
    for (int round = 0; round == 0 || (round < 50 && !all_have_run()); ++round) {
      std::vector<StreamedAnswer> answers(20);
      for (StreamedAnswer& answer : answers) driver.generate(ask({1, 2, 3}, 10), answer.callback());
      for (const StreamedAnswer& answer : answers) {
        EXPECT_EQ(answer.wait(), FinishReason::length);
        EXPECT_EQ(answer.tokens(), expected_tokens({1, 2, 3}, 10));
      }
    }
    for (const WorkerStatus& worker : driver.status().workers) {
      EXPECT_TRUE(worker.alive);
      EXPECT_GT(worker.steps, 10u) << worker.device;
      EXPECT_GT(worker.busy_s, 0.01) << worker.device;
    }
  }
}

TEST_F(DriverTest, CancelEndsARequestAndFreesItsBlocks) {
  CallingDriver driver(toy_plan({{1, 1}}), fake("step_ms=2"));
  StreamedAnswer cancelled, other;
  const std::uint64_t id = driver.generate(ask({1}, 400), cancelled.callback());
  driver.generate(ask({1}, 30), other.callback());
  ASSERT_TRUE(cancelled.wait_for_tokens(3));
  driver.cancel(id);
  driver.cancel(id);
  EXPECT_EQ(cancelled.wait(), FinishReason::cancelled);
  EXPECT_EQ(other.wait(), FinishReason::length);
  EXPECT_TRUE(wait_until([&] { return driver.status().free_blocks == driver.status().total_blocks; }, 5));
  EXPECT_LT(cancelled.tokens().size(), 400u);
  EXPECT_EQ(cancelled.events_after_the_end(), 0);
}

TEST_F(DriverTest, CallbacksMayCallTheDriver) {
  CallingDriver driver(toy_plan({{1}}), fake());
  StreamedAnswer second;
  std::atomic<std::uint64_t> first = 0;
  std::atomic<bool> asked = false;
  first = driver.generate(ask({1}, 500), [&](const GenerateEvent& event) {
    if (event.finished || asked.exchange(true)) return;
    driver.generate(ask({2}, 3), second.callback());
    while (first == 0) std::this_thread::yield();
    driver.cancel(first);
  });
  EXPECT_EQ(second.wait(), FinishReason::length);
}

TEST_F(DriverTest, HandsOutTheEventsOfAStepTogether) {
  CallingDriver driver(toy_plan({{1}}), fake());
  std::vector<StreamedAnswer> answers(8);  // as many as a step takes
  driver.generate(ask({1}, 10), [&, first = answers[0].callback()](const GenerateEvent& event) {
    first(event);
    // The second step has begun without them; the third holds them all.
    if (answers[0].tokens().size() != 1) return;
    for (std::size_t i = 1; i < answers.size(); ++i) driver.generate(ask({1}, 10), answers[i].callback());
  });
  ASSERT_TRUE(answers[0].wait());
  for (const StreamedAnswer& answer : answers) EXPECT_EQ(answer.wait(), FinishReason::length);
  for (const StreamedAnswer& answer : answers) EXPECT_EQ(answer.tokens(), expected_tokens({1}, 10));
  driver.drain(20);
  // A token per request and step; the first request ends two steps before the others.
  EXPECT_EQ(driver.batches(), (std::vector<std::size_t>{1, 1, 8, 8, 8, 8, 8, 8, 8, 9, 7, 14}));
}

TEST_F(DriverTest, RefusesWhenTheQueueIsFull) {
  DriverSetup options = fake("step_ms=20");
  options.max_queue = 3;
  CallingDriver driver(toy_plan({{1}}), options);
  std::vector<StreamedAnswer> answers(40);
  std::size_t accepted = 0;
  try {
    for (; accepted < answers.size(); ++accepted) driver.generate(ask({1}, 5), answers[accepted].callback());
    FAIL() << "all were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit);
    EXPECT_THAT(error.what(), HasSubstr("3 requests wait"));
  }
  EXPECT_GE(accepted, 3u);
  for (std::size_t i = 0; i < accepted; ++i) EXPECT_EQ(answers[i].wait(), FinishReason::length);
}

TEST_F(DriverTest, RefusesBadRequestsAndServesOn) {
  CallingDriver driver(toy_plan({{1}}, 256), fake());
  const std::vector<std::pair<GenerateRequest, const char*>> bad = {
      {ask({}, 1), "the prompt is empty"},
      {ask({1}, -1), "-1 new tokens"},
      {ask({1, 2048}, 1), "token 2048"},
      {ask({-1}, 1), "token -1"},
      {ask(std::vector<std::int32_t>(512, 1), 1), "the model's context is 512"},
      {ask(std::vector<std::int32_t>(256, 1), 1), "room for 256 tokens"}};
  for (const auto& [request, message] : bad) {
    try {
      driver.generate(request, [](const GenerateEvent&) {});
      ADD_FAILURE() << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
  StreamedAnswer answer;
  driver.generate(ask({1}, 1000), answer.callback());
  EXPECT_EQ(answer.wait(), FinishReason::length);
  EXPECT_EQ(answer.tokens().size(), 255u);  // as many as there is room for
}

TEST_F(DriverTest, DrainLetsRequestsEndAndRefusesNewOnes) {
  CallingDriver driver(toy_plan({{1}}), fake("step_ms=2"));
  StreamedAnswer answer;
  driver.generate(ask({1}, 50), answer.callback());
  driver.drain(20);
  EXPECT_EQ(answer.tokens().size(), 50u);
  EXPECT_EQ(answer.wait(0), FinishReason::length);
  try {
    driver.generate(ask({1}, 1), answer.callback());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit);
  }
}

TEST_F(DriverTest, WhatIsOpenAtTheEndIsCancelled) {
  StreamedAnswer answer;
  {
    CallingDriver driver(toy_plan({{1, 1}}), fake("step_ms=20"));
    driver.generate(ask({1}, 500), answer.callback());
    driver.drain(0.1);
    EXPECT_FALSE(answer.wait(0));
  }
  EXPECT_EQ(answer.wait(0), FinishReason::cancelled);
}

TEST_F(DriverTest, AWorkerThatIsKilledEndsEverythingWithItsName) {
  const ServePlan plan = toy_plan({{2, 3, 1}, {1}});
  for (std::size_t victim = 0; victim < 7; ++victim) {
    CallingDriver driver(plan, fake("step_ms=2"));
    std::promise<Error> told;
    driver.on_failure([&](const Error& error) { told.set_value(error); });
    std::vector<StreamedAnswer> answers(30);
    for (StreamedAnswer& answer : answers) driver.generate(ask({1, 2}, 500), answer.callback());
    ASSERT_TRUE(answers[0].wait_for_tokens(5));
    const std::vector<WorkerStatus> workers = driver.status().workers;

    ::kill(workers[victim].process, SIGKILL);
    const std::string expected = fmt::format("{} (rank {} of stage {}) was killed by signal 9", workers[victim].device,
                                             workers[victim].rank, workers[victim].stage);
    for (const StreamedAnswer& answer : answers) {
      ASSERT_EQ(answer.wait(), FinishReason::failed);
      EXPECT_EQ(answer.stop_cause(), expected);
      EXPECT_EQ(answer.events_after_the_end(), 0);
    }
    auto future = told.get_future();
    ASSERT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    const Error error = future.get();
    EXPECT_EQ(error.code(), ErrorCode::peer);
    EXPECT_EQ(error.what(), expected);
    for (const WorkerStatus& worker : workers)
      EXPECT_TRUE(wait_until([&] { return ::kill(worker.process, 0) != 0; }, 20)) << worker.device << " is left";

    EXPECT_FALSE(driver.status().ready);
    EXPECT_EQ(driver.status().failure, expected);
    try {
      driver.generate(ask({1}, 1), [](const GenerateEvent&) {});
      ADD_FAILURE();
    } catch (const Error& refused) {
      EXPECT_EQ(refused.code(), ErrorCode::peer);
    }
    bool told_late = false;
    driver.on_failure([&](const Error&) { told_late = true; });
    EXPECT_TRUE(told_late);
    driver.drain(1);
  }
}

TEST_F(DriverTest, AWorkerThatHangsIsTreatedAsDead) {
  DriverSetup options = fake("step_ms=1");
  options.watchdog_s = 0.5;
  CallingDriver driver(toy_plan({{1, 2, 1}}), options);
  StreamedAnswer answer;
  driver.generate(ask({1}, 500), answer.callback());
  ASSERT_TRUE(answer.wait_for_tokens(2));
  ::kill(driver.status().workers.at(3).process, SIGSTOP);
  EXPECT_EQ(answer.wait(), FinishReason::failed);
  EXPECT_THAT(answer.stop_cause(), HasSubstr("box/3 (rank 0 of stage r0/s2) did not answer step"));
}

struct RefusedStart {
  const char* settings;
  ErrorCode code;
  const char* message;
  const char* hint = "";
};

TEST_F(DriverTest, AWorkerThatDoesNotStartIsQuotedAndNobodyIsLeft) {
  for (const auto& [settings, code, message, hint] :
       {RefusedStart{"refuse=box/1", ErrorCode::limit, "box/1 (rank 1 of stage r0/s0): it does not fit", "buy memory"},
        RefusedStart{"exit=box/2", ErrorCode::peer, "box/2 (rank 0 of stage r0/s1) exited with code 9"},
        RefusedStart{"kill=box/0", ErrorCode::peer, "box/0 (rank 0 of stage r0/s0) was killed by signal 9",
                     "if it was not killed on purpose, the machine may have run out of memory (see `dmesg`); start "
                     "again to load all workers"},
        RefusedStart{"babble=box/1", ErrorCode::peer, "box/1 (rank 1 of stage r0/s0): malformed message"}}) {
    try {
      CallingDriver driver(toy_plan({{2, 1}}), fake(settings));
      ADD_FAILURE() << settings;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << settings;
      EXPECT_THAT(error.what(), HasSubstr(message));
      EXPECT_EQ(error.hint(), hint);
    }
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  }
}

TEST_F(DriverTest, WrongAnswersAreAFailure) {
  for (const char* settings : {"lie=token", "lie=step", "lie=missing"}) {
    try {
      CallingDriver driver(toy_plan({{1}}), fake(settings));
      ADD_FAILURE() << settings;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer) << settings;
      EXPECT_THAT(error.what(), HasSubstr("box/0 (rank 0 of stage r0/s0): "));
    }
  }
}

TEST_F(DriverTest, RefusesAPlanOrOptionsThatCannotRun) {
  DriverSetup missing = fake();
  missing.fleet = std::make_shared<LocalFleet>(LocalFleetOptions{.program = "/nowhere/motley-worker"});
  const auto code_of = [](const ServePlan& plan, const DriverSetup& options) {
    try {
      CallingDriver driver(plan, options);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of(toy_plan({{1}}), missing), ErrorCode::environment);
  ServePlan gap = toy_plan({{1, 1}});
  gap.routes[0].path.pop_back();
  EXPECT_EQ(code_of(gap, fake()), ErrorCode::input);
}

// A process with a driver that serves, until it is killed.
[[noreturn]] void run_driver(int pipe) {
  try {
    CallingDriver driver(toy_plan({{2, 1}}), fake("step_ms=5"));
    driver.generate(ask({1}, 500), [](const GenerateEvent&) {});
    std::vector<int> workers;
    for (const WorkerStatus& worker : driver.status().workers) workers.push_back(worker.process);
    if (::write(pipe, workers.data(), workers.size() * sizeof(int)) > 0)
      for (;;) ::pause();
  } catch (const Error&) {
  }
  ::_exit(1);
}

TEST_F(DriverTest, WorkersDoNotOutliveADriverThatIsKilled) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that they become ours to wait for
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const pid_t process = ::fork();
  if (process == 0) run_driver(pipe[1]);
  ::close(pipe[1]);
  std::array<int, 3> workers{};
  EXPECT_EQ(::read(pipe[0], workers.data(), sizeof workers), static_cast<ssize_t>(sizeof workers));
  ::close(pipe[0]);
  ::kill(process, SIGKILL);
  EXPECT_EQ(::waitpid(process, nullptr, 0), process);
  for (const int worker : workers)
    EXPECT_TRUE(wait_until([&] { return ::waitpid(worker, nullptr, WNOHANG) == worker; }, 20)) << worker;
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// ---- the real worker ----

// Of twelve prompts, each this many tokens longer than the one before it.
std::vector<std::vector<std::int32_t>> greedy_tokens(const ServePlan& plan, const std::string& transport,
                                                     std::size_t longer_by = 9) {
  CallingDriver driver(plan, real(transport));
  std::vector<StreamedAnswer> answers(12);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    std::vector<std::int32_t> prompt;
    for (std::size_t t = 0; t < 3 + longer_by * i; ++t)
      prompt.push_back(static_cast<std::int32_t>((7 + 131 * i + 17 * t) % 2048));
    driver.generate(ask(prompt, 24), answers[i].callback());
  }
  std::vector<std::vector<std::int32_t>> tokens;
  for (const StreamedAnswer& answer : answers) {
    EXPECT_EQ(answer.wait(60), FinishReason::length) << answer.stop_cause();
    tokens.push_back(answer.tokens());
  }
  return tokens;
}

TEST_F(DriverTest, RealWorkersAnswerAlikeHoweverTheModelIsCut) {
  const auto single = greedy_tokens(toy_plan({{1}}), "shm");
  ServePlan chain = toy_plan({{2, 3, 1}}, 320);  // too little for twelve at once
  chain.stages[1].shares = {0.5, 0.25, 0.25};
  EXPECT_EQ(greedy_tokens(chain, "shm"), single);
  EXPECT_EQ(greedy_tokens(chain, "tcp"), single);

  ServePlan shared = toy_plan({{1, 2}, {1, 1}}, 320);  // both routes end in the stage of two
  shared.routes[1].path[1].stage = "r0/s1";
  shared.unused.push_back({shared.stages.back().devices[0], "its stage was taken out"});
  shared.stages.pop_back();
  EXPECT_EQ(greedy_tokens(shared, "shm"), single);
}

// Up to seven chunks of a prompt, which follow one another through the stages while other sequences decode.
TEST_F(DriverTest, PromptsOfSeveralChunksAnswerAlikeOverAnyNumberOfStages) {
  const auto cut = [](const std::vector<int>& degrees) {
    ServePlan plan = toy_plan({degrees}, 2048);
    plan.step.max_tokens = 32;
    return greedy_tokens(plan, "shm", 20);
  };
  const auto single = greedy_tokens(toy_plan({{1}}, 4096), "shm", 20);
  EXPECT_EQ(cut({1, 1}), single);
  EXPECT_EQ(cut({2, 1, 1}), single);
  EXPECT_EQ(cut({1, 1, 1, 1, 1, 1, 1}), single);
}

// The only row of a decode step goes to the last rank of three, and from there to the first, whose times count: what it
// waits for the row belongs to the stage before.
TEST_F(DriverTest, AStagesTimesLeaveOutTheStagesBeforeIt) {
  CallingDriver driver(toy_plan({{1, 3}}), real("shm"));
  StreamedAnswer answer;
  driver.generate(ask({1, 2, 3}, 60), answer.callback());
  ASSERT_EQ(answer.wait(60), FinishReason::length) << answer.stop_cause();
  const PipelineStatus pipeline = driver.status().pipelines.at(0);
  EXPECT_GT(pipeline.alone, 40);
  double between_s = pipeline.measured.back_s;
  for (const auto& crossing : pipeline.measured.crossings) between_s += crossing.time.seconds(1);
  EXPECT_GT(between_s, 2e-5) << "the stages' times take up the whole round trip";
}

// Its neighbours notice, too, and report broken connections; the one that was killed is named.
TEST_F(DriverTest, ARealWorkerThatIsKilledIsNamed) {
  for (const char* transport : {"shm", "tcp"}) {
    CallingDriver driver(toy_plan({{1, 2, 1}}), real(transport));
    std::vector<StreamedAnswer> answers(8);
    for (StreamedAnswer& answer : answers) driver.generate(ask({1, 2}, 500), answer.callback());
    ASSERT_TRUE(answers[0].wait_for_tokens(2));
    ::kill(driver.status().workers.at(2).process, SIGKILL);
    for (const StreamedAnswer& answer : answers) {
      EXPECT_EQ(answer.wait(), FinishReason::failed);
      EXPECT_EQ(answer.stop_cause(), "box/2 (rank 1 of stage r0/s1) was killed by signal 9");
    }
  }
}

}  // namespace
}  // namespace motley
