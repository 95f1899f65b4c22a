#include "motley/comm/session/session.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/authority/authority.hpp"
#include "motley/comm/membership/coordinator_thread_test.hpp"

namespace motley {
namespace {

// What member `id` gives to step `step`; small integers, so that sums are exact.
float contribution(const std::string& id, std::uint64_t step) {
  return static_cast<float>((std::hash<std::string>{}(id) % 97 + 1) * (step % 13 + 1));
}

// Runs one step; checks the sum against the members of the epoch.
SessionOutcome run_checked_step(Session& session, double timeout_s = 20, std::vector<Member>* members = nullptr) {
  float sum = 0, expected = 0;
  const SessionOutcome outcome = session.run(
      [&](SessionStep& step) {
        sum = contribution(step.id, step.step);
        expected = 0;
        if (members != nullptr) *members = step.start.epoch.members;
        for (const Member& member : step.start.epoch.members) expected += contribution(member.id, step.step);
        return step.communicator.all_reduce(std::as_writable_bytes(std::span(&sum, 1)), CollectiveElement::fp32,
                                            {.timeout_s = 5});
      },
      {.timeout_s = timeout_s});
  if (outcome.status == SessionStatus::committed) {
    EXPECT_EQ(sum, expected);
  }
  return outcome;
}

TEST(Session, StepsAreCommittedByAll) {
  CoordinatorThread coordinator({.minimum_size = 3});
  std::vector<std::jthread> members;
  for (const std::string id : {"a", "b", "c"})
    members.emplace_back([&, id] {
      Session session(options_of(coordinator.address(), id));
      for (std::uint64_t step = 1; step <= 20; ++step) {
        const SessionOutcome outcome = run_checked_step(session);
        ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
        EXPECT_EQ(outcome.step, step);
        EXPECT_EQ(outcome.members, 3);
      }
    });
}

TEST(Session, SurvivorsGoOnAndAJoinerComesIn) {
  CoordinatorThread coordinator({.minimum_size = 2});
  // Until the last of them has taken part in a step: all stop after the same one.
  const auto stay = [&](const std::string& id) {
    Session session(options_of(coordinator.address(), id));
    std::vector<Member> members;
    std::uint64_t last = 0;
    while (std::ranges::none_of(members, [](const Member& member) { return member.id == "d"; })) {
      const SessionOutcome outcome = run_checked_step(session, 20, &members);
      ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
      EXPECT_GT(outcome.step, last);
      last = outcome.step;
    }
  };
  std::vector<std::jthread> members;
  for (const std::string id : {"a", "b"}) members.emplace_back([&, id] { stay(id); });
  {
    Session session(options_of(coordinator.address(), "c"));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run_checked_step(session).status, SessionStatus::committed);
  }
  stay("d");
  for (std::jthread& member : members) member.join();
}

TEST(Session, ACoordinatorMayDieAndComeBack) {
  auto coordinator = std::make_unique<CoordinatorThread>(GroupPolicy{.minimum_size = 2});
  const std::string address = coordinator->address(), file = coordinator->file();
  std::atomic<std::uint64_t> reached = 0;
  std::vector<std::jthread> members;
  for (const std::string id : {"a", "b"})
    members.emplace_back([&, id] {
      Session session(options_of(address, id));
      for (std::uint64_t step = 1; step <= 30; ++step) {
        const SessionOutcome outcome = run_checked_step(session);
        ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
        EXPECT_EQ(outcome.step, step);
        reached = step;
      }
    });
  for (int restart = 1; restart <= 2; ++restart) {
    while (reached < static_cast<std::uint64_t>(10 * restart)) std::this_thread::yield();
    coordinator.reset();
    coordinator = std::make_unique<CoordinatorThread>(GroupPolicy{.minimum_size = 2},
                                                      CoordinatorServerOptions{.listen = address}, file);
  }
}

TEST(Session, OneMayEndWhileItConnects) {
  CoordinatorThread coordinator;
  std::atomic<bool> done = false;
  std::jthread member([&] {
    Session session(options_of(coordinator.address(), "a"));
    while (!done) ASSERT_EQ(run_checked_step(session).status, SessionStatus::committed);
  });
  for (int i = 0; i < 300; ++i) {
    Session joiner(options_of(coordinator.address(), fmt::format("joiner {}", i)));
    std::this_thread::sleep_for(std::chrono::microseconds(50 * (i % 100)));
  }
  done = true;
}

// That a session of these options says, sooner or later, that it waits because of this.
bool waits_because(const SessionOptions& options, const std::string& cause) {
  Session session(options);
  const auto until = deadline_in(20);
  while (Clock::now() < until) {
    const SessionOutcome outcome = run_checked_step(session, 0.05);
    EXPECT_EQ(outcome.status, SessionStatus::timed_out);
    if (outcome.cause.find(cause) != std::string::npos) return true;
  }
  return false;
}

TEST(Session, AWrongTokenIsNamed) {
  CoordinatorThread coordinator;
  SessionOptions options = options_of(coordinator.address(), "a");
  options.member.token = "another";
  EXPECT_TRUE(waits_because(options, "the token is not this group's"));
}

TEST(Session, BelowTheMinimumItWaitsAndSaysSo) {
  CoordinatorThread coordinator({.minimum_size = 2});
  EXPECT_TRUE(waits_because(options_of(coordinator.address(), "a"), "1 of at least 2 members are ready"));
}

// Both the control connections and those between members, with certificates of the group's own authority.
TEST(Session, UnderTls) {
  const Authority authority = Authority::create("test");
  CoordinatorThread coordinator({.minimum_size = 2}, {.identity = authority.issue("coordinator")});
  std::vector<std::jthread> members;
  for (const std::string id : {"a", "b"})
    members.emplace_back([&, id] {
      SessionOptions options = options_of(coordinator.address(), id);
      options.member.identity = authority.issue(id);
      options.fabric.encryption = Encryption::always;
      Session session(std::move(options));
      for (int step = 0; step < 5; ++step) {
        const SessionOutcome outcome = run_checked_step(session);
        ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
      }
    });
}

TEST(Session, AnothersCertificateIsRefused) {
  const Authority authority = Authority::create("test"), stranger = Authority::create("test");
  CoordinatorThread coordinator({}, {.identity = authority.issue("coordinator")});
  SessionOptions options = options_of(coordinator.address(), "a");
  options.member.identity = authority.issue("b");
  EXPECT_TRUE(waits_because(options, "the certificate is of \"b\""));
  options.member.identity = stranger.issue("a");
  EXPECT_EQ(run_checked_step(*std::make_unique<Session>(options), 0.5).status, SessionStatus::timed_out);
  options.member.identity = authority.issue("a");
  EXPECT_EQ(run_checked_step(*std::make_unique<Session>(options)).status, SessionStatus::committed);
}

// Its certificate is of the group, and yet it would learn the token and decide who takes part.
TEST(Session, AMemberIsNotTakenForTheCoordinator) {
  const Authority authority = Authority::create("test");
  CoordinatorThread impostor({}, {.identity = authority.issue("mallory")});
  SessionOptions options = options_of(impostor.address(), "a");
  options.member.identity = authority.issue("a");
  EXPECT_TRUE(waits_because(options, "names \"mallory\", not \"coordinator\""));
}

// What a step has computed is thrown away as a whole, and computed again in the next epoch.
TEST(Session, AThrowingBodyAbortsTheStepForAll) {
  CoordinatorThread coordinator({.minimum_size = 2});
  std::atomic<int> bodies = 0;
  std::vector<std::jthread> members;
  for (const std::string id : {"a", "b"})
    members.emplace_back([&, id] {
      Session session(options_of(coordinator.address(), id));
      if (id == "a") {
        EXPECT_THROW(session.run([](SessionStep&) -> OperationOutcome { throw 7; }), int);
      }
      const SessionOutcome outcome = session.run([&](SessionStep& step) {
        ++bodies;
        return step.communicator.barrier({.timeout_s = 5});
      });
      EXPECT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
      EXPECT_EQ(outcome.step, 1U);
      EXPECT_GT(outcome.epoch, 1U);
    });
  members.clear();
  EXPECT_GE(bodies, 2);
}

// Joiners receive what they lack before their first step; those who have it give it, in the same operation.
TEST(Session, JoinersFetchTheState) {
  CoordinatorThread coordinator;
  std::atomic<bool> begun = false, done = false;
  const auto take_part = [&](const std::string& id, int steps) {
    double state = 0;  // the sum of the numbers of all steps
    SessionOptions options = options_of(coordinator.address(), id);
    options.fetch_state = [&](SessionStep& step) {
      return step.communicator.broadcast(std::as_writable_bytes(std::span(&state, 1)),
                                         static_cast<int>(step.start.holders.front()), {.timeout_s = 5});
    };
    Session session(std::move(options));
    for (int i = 0; i < steps || (steps == 0 && !done); ++i) {
      const SessionOutcome outcome = run_checked_step(session);
      ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
      const auto step = static_cast<double>(outcome.step);
      state += step;
      EXPECT_EQ(state, step * (step + 1) / 2) << id;
      begun = true;
    }
    session.leave(10);
  };
  std::jthread first([&] { take_part("a", 0); });
  // One that came and left before would take the state with it.
  while (!begun) std::this_thread::yield();
  for (const std::string id : {"b", "c", "d"}) take_part(id, 3);
  done = true;
}

}  // namespace
}  // namespace motley
