// A member that lies about itself, its answers or its times is named, and nothing of it is believed.
#include "motley/probe/links/member_probe.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "motley/base/error.hpp"
#include "motley/comm/collective/world_test.hpp"
#include "motley/probe/fit/probe_schedule.hpp"

namespace motley {
namespace {

constexpr double seconds = 0.1;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// What members say of themselves, as they send it.
struct Introduction {
  std::uint64_t settings = 14695981039346656037ULL;  // the digest of no settings
  double time_s = seconds;
  std::int64_t memory_bytes = std::int64_t{1} << 30;
};

void introduce(Communicator& group, const Introduction& own) {
  std::array<Introduction, 2> all{};
  all[1] = own;
  group.all_gather(std::as_writable_bytes(std::span(all)), {});
}

// Until the last question; `lie` is added to every answer.
void answer_pings(Communicator& group, std::uint64_t lie) {
  group.barrier({});
  for (std::uint64_t more = 1; more == 1;) {
    if (group.recv(std::as_writable_bytes(std::span(&more, 1)), 0, {}).status != OperationStatus::ok) return;
    const std::uint64_t answer = more + lie;
    if (group.send(std::as_bytes(std::span(&answer, 1)), 0, {}).status != OperationStatus::ok) return;
  }
}

// The first exchange of bytes, with a time of the liar's own making.
void report_time(Communicator& group, double time_s) {
  std::array<double, 4> times{};
  group.all_gather(std::as_writable_bytes(std::span(times)), {});  // of the round trips
  std::vector<std::int64_t> in(2, 0), out(2, 0);
  const auto first = next_exchange({.members = 2, .seconds = seconds}, {});
  for (const auto& flow : first.value().flows) (flow.from == 1 ? in[0] : out[0]) = flow.bytes;
  const std::vector<std::byte> sent(static_cast<std::size_t>(in[0]));
  std::vector<std::byte> received(static_cast<std::size_t>(out[0]));
  group.barrier({});
  group.barrier({});
  group.all_to_all(sent, in, received, out, {});
  times = {0, 0, time_s, 0};
  group.all_gather(std::as_writable_bytes(std::span(times)), {});
}

// What member 0 says of member 1.
template <class Member>
std::string complaint(const Member& member) {
  std::string cause = "none";
  TestWorld("shm", 2).run([&](Communicator& group) {
    if (group.rank() == 1) return member(group);
    try {
      probe_members(group, {.seconds = seconds, .settings = {}, .date = {}, .report = {}});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer);
      cause = error.what();
    }
  });
  return cause;
}

TEST(MemberProbe, WhatAMemberSaysOfItselfIsChecked) {
  const auto with = [](const Introduction& own) {
    return complaint([&](Communicator& group) { introduce(group, own); });
  };
  EXPECT_EQ(with({.memory_bytes = -1}), "member 1 claims -1 bytes of memory");
  EXPECT_EQ(with({.memory_bytes = (1 << 20) - 1}), "member 1 claims 1048575 bytes of memory");
  EXPECT_EQ(with({.memory_bytes = (std::int64_t{1} << 50) + 1}), "member 1 claims 1125899906842625 bytes of memory");
  EXPECT_EQ(with({.time_s = nan}), "member 1 wants to measure for nan s, member 0 for 0.1 s");
  EXPECT_EQ(with({.settings = 1}), "member 1 has other options than member 0");
  EXPECT_TRUE(with({}).starts_with("the probe ended early (")) << "and is gone: " << with({});
}

TEST(MemberProbe, AnswersAreThoseToTheQuestions) {
  EXPECT_EQ(complaint([](Communicator& group) {
              introduce(group, {});
              answer_pings(group, 1);
            }),
            "member 1 answers 2 to 1");
}

TEST(MemberProbe, TimesAreTimes) {
  const auto with = [](double time_s) {
    return complaint([&](Communicator& group) {
      introduce(group, {});
      answer_pings(group, 0);
      report_time(group, time_s);
    });
  };
  EXPECT_EQ(with(nan), "member 1 reports a time of nan s");
  EXPECT_EQ(with(-1), "member 1 reports a time of -1 s");
  EXPECT_EQ(with(3601), "member 1 reports a time of 3601 s");
  EXPECT_TRUE(with(0.001).starts_with("the probe ended early (")) << "after a sound time";
}

}  // namespace
}  // namespace motley
