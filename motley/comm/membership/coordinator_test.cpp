#include "motley/comm/membership/coordinator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "motley/comm/membership/membership.hpp"

namespace motley {
namespace {

// A group whose messages arrive at once, under a clock that the test moves.
class Group {
 public:
  explicit Group(GroupPolicy policy) : policy_(policy) {
    ledger_.group = "g";
    coordinator.emplace(policy, ledger_, 0);
  }

  Membership& join(const std::string& id, std::uint32_t stage = 0, std::uint64_t state_step = 0) {
    auto [place, is_new] =
        members.insert_or_assign(id, Membership("g", Member{id, 0, "h", "at-" + id}, ++processes_, stage, state_step));
    place->second.ready();
    return place->second;
  }

  // Everybody who is not mute reports; connects unless `broken`; until nothing changes.
  void settle() {
    for (int round = 0; round < 12; ++round)
      for (auto& [id, member] : members) {
        if (mute.contains(id)) continue;
        const CoordinatorOutput output = coordinator->report(member.report(), now_s);
        keep(output);
        if (output.answer) act(id, *output.answer);
        for (const std::string& told : output.tell)
          if (!mute.contains(told) && coordinator->state(told) != MemberState::gone)
            act(told, coordinator->directive(told));
      }
  }

  void act(const std::string& id, const CoordinatorDirective& directive) {
    Membership& member = members.at(id);
    for (const MembershipAction& action : member.directive(directive)) {
      actions[id].push_back(action);
      if (const auto* prepare = std::get_if<PrepareEpoch>(&action)) {
        std::vector<std::string> unreachable;
        for (const Member& other : prepare->epoch.members)
          if (broken.contains({id, other.id}) || broken.contains({other.id, id})) unreachable.push_back(other.id);
        if (unreachable.empty())
          member.prepared(prepare->epoch.number);
        else
          member.refuse(prepare->epoch.number, unreachable);
      }
      const auto* enter = std::get_if<EnterEpoch>(&action);
      if (enter != nullptr && !learners.contains(id)) member.holds(enter->start.boundary);
    }
  }

  void pass(double seconds) {
    for (const double until_s = now_s + seconds; now_s < until_s;) {
      now_s += 0.1;
      keep(coordinator->tick(now_s));
      settle();
    }
  }

  void keep(const CoordinatorOutput& output) {
    for (const LedgerRecord& record : output.records) apply_record(ledger_, record);
  }

  void lose(const std::string& id) {
    mute.insert(id);
    keep(coordinator->connection_lost(id, members.at(id).report().process, now_s));
  }

  void restart() { coordinator.emplace(policy_, ledger_, now_s); }

  // All who are in the epoch do the next step.
  void step(StepVoteKind kind = StepVoteKind::commit) {
    for (auto& [id, member] : members)
      if (member.start() != nullptr && !mute.contains(id)) member.begin_step();
    for (auto& [id, member] : members)
      if (member.start() != nullptr && !mute.contains(id))
        member.vote(learners.contains(id) ? StepVoteKind::learn : kind, {});
    settle();
  }

  std::vector<std::string> list() const {
    std::vector<std::string> ids;
    for (const Member& member : coordinator->ledger().current.epoch.members) ids.push_back(member.id);
    return ids;
  }
  std::uint64_t number() const { return coordinator->ledger().current.epoch.number; }
  std::uint64_t committed() const { return coordinator->ledger().committed_step; }

  std::optional<Coordinator> coordinator;
  std::map<std::string, Membership> members;
  std::map<std::string, MembershipActions> actions;
  std::set<std::string> mute, learners;
  std::set<std::pair<std::string, std::string>> broken;
  double now_s = 0;

 private:
  GroupPolicy policy_;
  GroupLedger ledger_;
  std::uint64_t processes_ = 0;
};

using Ids = std::vector<std::string>;

TEST(Coordinator, BelowTheMinimumItWaits) {
  Group group({.minimum_size = 2});
  group.join("a");
  group.settle();
  EXPECT_EQ(group.number(), 0U);
  EXPECT_EQ(group.members.at("a").waiting_for(), "1 of at least 2 members are ready");
  EXPECT_EQ(group.coordinator->state("a"), MemberState::synced);
  group.join("b");
  group.settle();
  EXPECT_EQ(group.list(), (Ids{"a", "b"}));
  group.step();
  EXPECT_EQ(group.committed(), 1U);
  group.lose("b");
  group.pass(1);
  EXPECT_EQ(group.list(), (Ids{"a", "b"}));  // given up, but no other can follow
  EXPECT_TRUE(group.coordinator->revoked());
  group.join("c");
  group.settle();
  EXPECT_EQ(group.list(), (Ids{"a", "c"}));
}

TEST(Coordinator, OfEveryStageOneMember) {
  Group group({.stages = 2});
  group.join("a", 0);
  group.join("b", 0);
  group.settle();
  EXPECT_EQ(group.coordinator->waiting_for(), "stage 1 has no member");
  group.join("c", 1);
  group.settle();
  EXPECT_EQ(group.list(), (Ids{"a", "b", "c"}));
}

TEST(Coordinator, WithoutAMajorityItWaits) {
  Group group({.quorum = QuorumRule::majority});
  for (const char* id : {"a", "b", "c", "d"}) group.join(id);
  group.settle();
  group.pass(0.3);
  EXPECT_EQ(group.list().size(), 4U);
  group.lose("a");
  group.lose("b");
  group.pass(1);
  EXPECT_TRUE(group.coordinator->revoked());
  EXPECT_EQ(group.coordinator->waiting_for().substr(0, 6), "2 of 4");
}

TEST(Coordinator, SilenceIsForgivenForALease) {
  Group group({.lease_floor_s = 1});
  group.join("a");
  group.join("b");
  group.settle();
  group.pass(2);
  const std::uint64_t number = group.number();
  group.mute.insert("b");
  const double silent_s = group.now_s;
  group.pass(0.9);
  EXPECT_EQ(group.number(), number);
  EXPECT_FALSE(group.coordinator->revoked());
  while (group.number() == number && group.now_s < silent_s + 5) group.pass(0.1);
  EXPECT_LE(group.now_s - silent_s, 1.2);  // the deadline and a fifth
  EXPECT_EQ(group.list(), Ids{"a"});
  // The zombie comes back, is fenced, and takes part as a new member.
  group.mute.clear();
  group.settle();
  EXPECT_EQ(group.members.at("b").state(), MemberState::gone);
  group.members.at("b").rejoin(99);
  group.members.at("b").ready();
  group.settle();
  EXPECT_EQ(group.list(), (Ids{"a", "b"}));
  EXPECT_EQ(group.members.at("b").report().member.incarnation, 3U);
}

TEST(Coordinator, ItsOwnPauseIsNobodysFault) {
  Group group({.lease_floor_s = 1});
  group.join("a");
  group.join("b");
  group.settle();
  group.pass(1);
  group.now_s += 100;  // its machine slept
  group.keep(group.coordinator->tick(group.now_s));
  group.settle();
  EXPECT_FALSE(group.coordinator->revoked());
}

TEST(Coordinator, ALivingMembersNameIsNotGivenAway) {
  Group group({});
  group.join("a");
  group.settle();
  Membership other("g", Member{"a", 0, "h", "elsewhere"}, 77, 0, 0);
  const auto refused = group.coordinator->report(other.report(), group.now_s);
  ASSERT_TRUE(refused.answer);
  EXPECT_EQ(refused.answer->admission, SeatAdmission::waiting);
  EXPECT_EQ(refused.answer->reason, "a is the name of a live member at at-a");
  group.lose("a");  // now it may have it
  EXPECT_FALSE(group.coordinator->report(other.report(), group.now_s).answer);
}

TEST(Coordinator, AJoinerThatCannotBeConnectedTearsNothingDown) {
  Group group({.hold_s = 2});
  group.join("a");
  group.settle();
  group.join("b");
  group.settle();
  group.step();
  EXPECT_EQ(group.list(), (Ids{"a", "b"}));
  const std::uint64_t number = group.number();
  group.broken = {{"b", "c"}};
  group.join("c");
  group.settle();
  EXPECT_EQ(group.number(), number);
  EXPECT_FALSE(group.coordinator->revoked());
  group.step();
  EXPECT_EQ(group.committed(), 2U);
  group.broken.clear();
  group.pass(2.5);
  EXPECT_EQ(group.list(), (Ids{"a", "b", "c"}));
}

TEST(Coordinator, WhoCannotBeReachedByTheOthersGoes) {
  Group group({});
  group.join("a");
  group.join("b");
  group.join("c");
  group.settle();
  group.pass(0.5);
  ASSERT_EQ(group.list(), (Ids{"a", "b", "c"}));
  // Its data connections are dead, its control connection is not.
  group.broken = {{"a", "b"}, {"b", "c"}};
  group.step(StepVoteKind::abort);
  group.pass(0.5);
  EXPECT_EQ(group.list(), (Ids{"a", "c"}));
  group.step();
  EXPECT_EQ(group.committed(), 1U);
}

TEST(Coordinator, AFailedStepIsTriedAgainByTheSameMembers) {
  Group group({});
  group.join("a");
  group.join("b");
  group.settle();
  group.pass(0.3);
  const std::uint64_t number = group.number();
  group.step(StepVoteKind::abort);
  EXPECT_EQ(group.committed(), 0U);
  EXPECT_GT(group.number(), number);
  EXPECT_EQ(group.list().size(), 2U);
  group.step();
  EXPECT_EQ(group.committed(), 1U);
}

// It answers, it connects, but it never does its part: suspected by most twice, it goes.
TEST(Coordinator, WhoIsWaitedForInVainTwiceGoes) {
  Group group({});
  for (const char* id : {"a", "b", "c"}) group.join(id);
  group.settle();
  group.pass(0.3);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(group.list().size(), 3U) << round;
    for (const char* id : {"a", "c"}) {
      group.members.at(id).begin_step();
      group.members.at(id).vote(StepVoteKind::abort, {"b"});
    }
    group.settle();
  }
  EXPECT_EQ(group.list(), (Ids{"a", "c"}));
}

TEST(Coordinator, TheSwitchWaitsForTheStepUnderWay) {
  Group group({});
  group.join("a");
  group.settle();
  Membership& a = group.members.at("a");
  a.begin_step();
  group.settle();
  group.join("b");
  group.settle();
  EXPECT_EQ(group.list(), Ids{"a"});
  EXPECT_EQ(group.coordinator->state("b"), MemberState::standby);
  a.vote(StepVoteKind::commit, {});
  group.settle();
  EXPECT_EQ(group.committed(), 1U);
  EXPECT_EQ(group.list(), (Ids{"a", "b"}));
  EXPECT_EQ(group.coordinator->ledger().current.boundary, 1U);
  EXPECT_EQ(group.coordinator->ledger().current.holders, std::vector<std::uint32_t>{0});
}

TEST(Coordinator, WhoAloneHoldsTheStateStaysUntilOthersDo) {
  Group group({});
  group.join("a");
  group.settle();
  group.step();
  group.join("b");
  group.mute.insert("a");
  group.settle();
  group.members.at("a").leave();
  group.mute.clear();
  group.pass(0.3);
  EXPECT_EQ(group.list(), Ids{"b"});
  EXPECT_EQ(group.members.at("b").report().state_step, 1U);
  EXPECT_EQ(group.members.at("a").state(), MemberState::gone);
}

TEST(Coordinator, ALearnersVoteCountsAndMakesItNoHolder) {
  Group group({});
  group.learners = {"b", "c"};
  group.join("a");
  group.settle();
  group.step();
  group.join("b");
  group.settle();
  group.step();
  EXPECT_EQ(group.committed(), 2U);
  EXPECT_EQ(group.members.at("a").report().state_step, 2U);
  EXPECT_EQ(group.members.at("b").report().state_step, 0U);
  group.join("c");
  group.settle();
  EXPECT_EQ(group.list(), (Ids{"a", "b", "c"}));
  EXPECT_EQ(group.coordinator->ledger().current.holders, std::vector<std::uint32_t>{0});
  // It alone had the state; then another has learned it.
  group.lose("a");
  group.pass(1);
  EXPECT_EQ(group.coordinator->waiting_for(), "no member holds the state of step 2");
  group.members.at("c").holds(2);
  group.settle();
  EXPECT_EQ(group.list(), (Ids{"b", "c"}));
  EXPECT_EQ(group.coordinator->ledger().current.holders, std::vector<std::uint32_t>{1});
}

TEST(Coordinator, WhenEverybodyLeavesNobodyWaits) {
  Group group({.minimum_size = 2});
  group.join("a");
  group.join("b");
  group.settle();
  group.members.at("a").leave();
  group.settle();
  EXPECT_EQ(group.members.at("a").state(), MemberState::active);  // the other one cannot do without it
  group.members.at("b").leave();
  group.settle();
  EXPECT_EQ(group.members.at("a").state(), MemberState::gone);
  EXPECT_EQ(group.members.at("b").state(), MemberState::gone);
}

TEST(Coordinator, LostStateIsADecision) {
  for (const LostState rule : {LostState::wait, LostState::rewind}) {
    Group group({.lost_state = rule});
    group.join("a");
    group.settle();
    for (int i = 0; i < 3; ++i) group.step();
    group.lose("a");
    group.pass(1);
    group.join("b", 0, 2);  // from a checkpoint of step 2
    group.settle();
    if (rule == LostState::rewind) {
      EXPECT_EQ(group.list(), Ids{"b"});
      EXPECT_EQ(group.committed(), 2U);
      group.join("d", 0, 3);  // from a step that is no longer one
      group.settle();
      EXPECT_EQ(group.list(), (Ids{"b", "d"}));
      EXPECT_EQ(group.coordinator->ledger().current.holders, std::vector<std::uint32_t>{0});
      continue;
    }
    EXPECT_EQ(group.coordinator->waiting_for(), "no member holds the state of step 3");
    group.join("c", 0, 3);
    group.settle();
    EXPECT_EQ(group.list(), (Ids{"b", "c"}));
    EXPECT_EQ(group.coordinator->ledger().current.holders, std::vector<std::uint32_t>{1});
  }
}

TEST(Coordinator, AGroupBeginsAtItsNewestCheckpoint) {
  Group group({.minimum_size = 2});
  group.join("a", 0, 40);
  group.join("b");
  group.settle();
  EXPECT_EQ(group.coordinator->ledger().current.boundary, 40U);
  EXPECT_EQ(group.members.at("b").next_step(), 41U);
}

TEST(Coordinator, RestartedItGoesOnInTheSameEpoch) {
  Group group({});
  group.join("a");
  group.join("b");
  group.settle();
  group.pass(0.3);
  group.step();
  const std::uint64_t number = group.number();
  // One has voted, the other not yet, when the coordinator dies.
  for (const char* id : {"a", "b"}) group.members.at(id).begin_step();
  group.members.at("a").vote(StepVoteKind::commit, {});
  group.settle();
  group.restart();
  group.settle();
  EXPECT_EQ(group.number(), number);
  group.members.at("b").vote(StepVoteKind::commit, {});
  group.settle();
  EXPECT_EQ(group.committed(), 2U);
  EXPECT_EQ(group.number(), number);
  EXPECT_EQ(group.members.at("a").report().state_step, 2U);
}

TEST(Coordinator, RestartedItWaitsALeaseForEveryMember) {
  Group group({.lease_floor_s = 1});
  group.join("a");
  group.join("b");
  group.settle();
  group.pass(0.3);
  group.mute.insert("b");
  group.restart();
  group.settle();
  const std::uint64_t number = group.number();
  group.pass(0.8);
  EXPECT_EQ(group.number(), number);
  group.pass(0.5);
  EXPECT_EQ(group.list(), Ids{"a"});
}

TEST(HeartbeatMonitor, LearnsWhatIsNormal) {
  HeartbeatMonitor monitor;
  EXPECT_EQ(monitor.deadline_s(1), 1);
  for (int i = 0; i < 20; ++i) monitor.heard(0.2 * i);
  EXPECT_EQ(monitor.deadline_s(1), 1);
  EXPECT_NEAR(monitor.deadline_s(0), 0.2, 1e-9);
  double now_s = 10;
  for (int i = 0; i < 20; ++i) monitor.heard(now_s += i % 2 == 0 ? 1.0 : 2.0);
  // Median and MAD of eight gaps of 1 s and eight of 2 s, the upper of the two middle ones: 2 and 1.
  EXPECT_NEAR(monitor.deadline_s(1), 2 + 8 * 1, 1e-9);
}

TEST(Membership, NeighboursReachEverybodyInLogarithmicTime) {
  for (std::uint32_t size = 1; size <= 33; ++size) {
    std::set<std::uint32_t> reached{0};
    std::uint32_t hops = 0;
    for (; reached.size() < size; ++hops) {
      const auto before = reached;
      for (const std::uint32_t rank : before)
        for (const std::uint32_t next : flood_neighbours(rank, size)) reached.insert(next);
    }
    EXPECT_LE(1U << hops, std::max(1U, 2 * size)) << size;
  }
}

TEST(Membership, OldDirectivesChangeNothing) {
  Group group({});
  group.join("a");
  group.settle();
  const CoordinatorDirective old = group.coordinator->directive("a");
  group.join("b");
  group.settle();
  group.step();
  Membership& a = group.members.at("a");
  const Membership before = a;
  EXPECT_TRUE(a.directive(old).empty());
  EXPECT_EQ(a.report(), before.report());
  CoordinatorDirective foreign = group.coordinator->directive("a");
  foreign.group = "another";
  foreign.admission = SeatAdmission::fenced;
  EXPECT_TRUE(a.directive(foreign).empty());
  EXPECT_EQ(a, before);
}

}  // namespace
}  // namespace motley
