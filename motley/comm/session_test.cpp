#include "motley/comm/session.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/coordinator_server.hpp"

namespace motley {
namespace {

// A coordinator on a thread of the test, with a log of its own.
class CoordinatorThread {
 public:
  explicit CoordinatorThread(GroupPolicy policy = {}, std::string listen = "127.0.0.1:0", std::string log_file = {})
      : file_(log_file.empty() ? temporary_file() : std::move(log_file)) {
    CoordinatorServerOptions options;
    options.group = "test";
    options.token = "token";
    options.listen = std::move(listen);
    options.policy = policy;
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_ += line + "\n";
    };
    server_ = std::make_unique<CoordinatorServer>(std::move(options), open_sqlite_store(file_));
    thread_ = std::jthread([this](const std::stop_token& stop) { server_->run(stop); });
  }
  ~CoordinatorThread() {
    thread_.request_stop();
    thread_.join();
    if (::testing::Test::HasFailure()) fmt::print("{}", lines_);
  }
  const std::string& address() const { return server_->address(); }
  const std::string& file() const { return file_; }

  static std::string temporary_file() {
    static std::atomic<int> count{0};
    const auto file = std::filesystem::temp_directory_path() /
                      fmt::format("motley-session-test-{}-{}.log", ::getpid(), count.fetch_add(1));
    std::filesystem::remove(file);
    return file.string();
  }

 private:
  std::string file_;
  std::mutex mutex_;
  std::string lines_;
  std::unique_ptr<CoordinatorServer> server_;
  std::jthread thread_;
};

SessionOptions options_of(const std::string& coordinator, const std::string& id) {
  SessionOptions options;
  options.member.coordinators = {coordinator};
  options.member.group = "test";
  options.member.token = "token";
  options.member.member.id = id;
  return options;
}

// What member `id` gives to step `step`; small integers, so that sums are exact.
float contribution(const std::string& id, std::uint64_t step) {
  return static_cast<float>((std::hash<std::string>{}(id) % 97 + 1) * (step % 13 + 1));
}

// Runs one step; checks the sum against the members of the epoch.
SessionOutcome run_checked_step(Session& session, double timeout_s = 20) {
  float sum = 0, expected = 0;
  const SessionOutcome outcome = session.run(
      [&](SessionStep& step) {
        sum = contribution(step.id, step.step);
        expected = 0;
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
  std::atomic<bool> joined = false;
  const auto stay = [&](const std::string& id) {
    Session session(options_of(coordinator.address(), id));
    int members = 0;
    std::uint64_t last = 0;
    while (!joined || members != 3) {
      const SessionOutcome outcome = run_checked_step(session);
      ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
      EXPECT_GT(outcome.step, last);
      last = outcome.step;
      members = outcome.members;
    }
  };
  std::vector<std::jthread> members;
  for (const std::string id : {"a", "b"}) members.emplace_back([&, id] { stay(id); });
  {
    Session session(options_of(coordinator.address(), "c"));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run_checked_step(session).status, SessionStatus::committed);
  }
  joined = true;
  stay("d");
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
    coordinator = std::make_unique<CoordinatorThread>(GroupPolicy{.minimum_size = 2}, address, file);
  }
}

TEST(Session, AWrongTokenIsNamed) {
  CoordinatorThread coordinator;
  SessionOptions options = options_of(coordinator.address(), "a");
  options.member.token = "another";
  Session session(options);
  const SessionOutcome outcome = run_checked_step(session, 0.3);
  EXPECT_EQ(outcome.status, SessionStatus::timed_out);
  EXPECT_NE(outcome.cause.find("the token is not this group's"), std::string::npos) << outcome.cause;
}

TEST(Session, BelowTheMinimumItWaitsAndSaysSo) {
  CoordinatorThread coordinator({.minimum_size = 2});
  Session session(options_of(coordinator.address(), "a"));
  const SessionOutcome outcome = run_checked_step(session, 0.3);
  EXPECT_EQ(outcome.status, SessionStatus::timed_out);
  EXPECT_EQ(outcome.cause, "1 of at least 2 members are ready");
}

}  // namespace
}  // namespace motley
