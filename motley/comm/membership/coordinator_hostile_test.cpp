// A coordinator among clients that mean it ill.
#include <gmock/gmock.h>

#include "motley/comm/membership/coordinator_thread_test.hpp"
#include "motley/comm/net/hostile_test.hpp"

namespace motley {
namespace {

MemberReport report_of(const std::string& id, std::uint64_t process) {
  MemberReport report;
  report.group = "test";
  report.member = {id, 0, "here", "127.0.0.1:1"};
  report.process = process;
  report.presence = MemberPresence::ready;
  return report;
}

ControlCaller call_coordinator(const std::string& address, const std::optional<TlsContext>& identity = {}) {
  ConnectFailure failure;
  ByteStream stream(connect_tcp(address, soon(), failure));
  if (!stream.open()) throw Error(ErrorCode::peer, failure.cause);
  if (identity) stream.secure_as_client(*identity, soon());
  ControlCaller member(std::move(stream));
  member.send(ControlHello{"test", "token"});
  return member;
}

void expect_directive(ControlCaller& member) {
  const ControlMessage answer = member.answer();
  if (!std::holds_alternative<CoordinatorDirective>(answer)) throw Error(ErrorCode::peer, "not a directive");
}

TEST(CoordinatorUnderAttack, StrangersCostLittleAndKeepNobodyOut) {
  const Authority authority = Authority::create("test");
  for (const bool secured : {false, true}) {
    CoordinatorServerOptions options;
    std::optional<TlsContext> member;
    if (secured) {
      options.identity = authority.issue(std::string(coordinator_name));
      options.authority = authority;
      member = authority.issue("honest");
    }
    const CoordinatorThread coordinator({}, std::move(options));
    const std::string hello = encode_control(ControlHello{"test", "guess"});
    const std::string framed = std::string{static_cast<char>(hello.size()), 0, 0, 0} + hello;
    std::vector<std::string> openings{framed};
    if (secured) openings = {tls_opening()};
    ControlCaller known = call_coordinator(coordinator.address(), member);
    expect_to_endure_hostile_clients(coordinator.address(), openings, [&] {
      ControlCaller newcomer = call_coordinator(coordinator.address(), member);
      newcomer.send(report_of("honest", 1));
      expect_directive(newcomer);
    });
    const std::string log = coordinator.log();
    EXPECT_LT(std::ranges::count(log, '\n'), 1000) << log;
  }
}

// What each holds is bounded, too, once it has shown a credential.
TEST(CoordinatorUnderAttack, AMemberHasFewConnections) {
  const CoordinatorThread coordinator;
  std::list<ControlCaller> of_one_member;
  for (std::uint64_t process = 1; process <= 12; ++process) {
    of_one_member.push_back(call_coordinator(coordinator.address()));
    of_one_member.back().send(report_of("a", process));
    expect_directive(of_one_member.back());
  }
  const auto is_open = [](ControlCaller& member) {
    try {
      for (;;) member.answer(Clock::now());
    } catch (const Error& error) {
      return error.what() == std::string("nothing");
    }
  };
  const auto open = [&] { return std::ranges::count_if(of_one_member, is_open); };
  for (const auto until = soon(); open() > 4 && Clock::now() < until;) std::this_thread::yield();
  EXPECT_EQ(open(), 4);
  EXPECT_TRUE(is_open(of_one_member.back()));
}

TEST(CoordinatorUnderAttack, ItHasNoMoreClientsThanItMay) {
  const CoordinatorThread coordinator({}, {.most_clients = 2});
  std::list<ControlCaller> members;
  for (const char* id : {"a", "b"}) {
    members.push_back(call_coordinator(coordinator.address()));
    members.back().send(report_of(id, 1));
    expect_directive(members.back());
  }
  ControlCaller third = call_coordinator(coordinator.address());
  EXPECT_EQ(std::get<ControlRefusal>(third.answer()).reason, "the coordinator has 2 connections already");
}

TEST(CoordinatorUnderAttack, WhoHasShownTheTokenMustReport) {
  const CoordinatorThread coordinator({}, {.strangers = {.handshake_s = 0.1}});
  ControlCaller silent = call_coordinator(coordinator.address());
  EXPECT_THROW(silent.answer(), Error);
  EXPECT_THAT(coordinator.log(), testing::HasSubstr("it says nothing"));
}

}  // namespace
}  // namespace motley
