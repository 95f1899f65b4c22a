// A member's side of the membership protocol, as a value: no sockets, no clock, no threads.
//
// Directives of the coordinator, revocations flooded by other members and what happens in this process go in; what this
// process has to do comes out, in order. report() is what the coordinator is to hear: the driver of the value sends it
// whenever it has changed, and as a heartbeat.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "motley/comm/membership/membership_messages.hpp"

namespace motley {

// Connect to the members of this epoch while the present one goes on; then call prepared() or refuse(). What was
// prepared for an earlier proposal is of no use any more.
struct PrepareEpoch {
  Epoch epoch;
  bool operator==(const PrepareEpoch&) const = default;
};
// From now on operations belong to this epoch. Those who are not among the holders fetch the state of the boundary
// before the first of them; all take part in that, so that all run the same operations.
struct EnterEpoch {
  EpochStart start;
  int rank = 0;
  bool operator==(const EnterEpoch&) const = default;
};
// Operations of this epoch end at once; pass it on to these ranks.
struct RevokeEpoch {
  std::uint64_t epoch = 0;
  std::vector<std::uint32_t> flood;
  bool operator==(const RevokeEpoch&) const = default;
};
enum class StepFate : std::uint8_t {
  committed,  // by all
  aborted,    // by all: none of its results counts
  unknown     // this process was left out before it could hear: it fetches the state from others
};
// What became of the step that this process has voted on. Comes once for each vote.
struct StepVerdict {
  StepVote vote;
  StepFate fate = StepFate::aborted;
  bool operator==(const StepVerdict&) const = default;
};
// This incarnation is over. rejoin() asks for a new one.
struct FencedOut {
  std::string reason;
  bool operator==(const FencedOut&) const = default;
};
using MembershipAction = std::variant<PrepareEpoch, EnterEpoch, RevokeEpoch, StepVerdict, FencedOut>;
using MembershipActions = std::vector<MembershipAction>;

// Ranks that a revocation is passed on to: those 1, 2, 4, ... places before and behind. Whichever have died, the others
// stay connected, and every one is reached after at most log2(n) hops.
std::vector<std::uint32_t> flood_neighbours(std::uint32_t rank, std::uint32_t size);

class Membership {
 public:
  // `member.incarnation` is not read. `state_step`: of the checkpoint that this process starts from; 0: none.
  Membership(std::string group, Member member, std::uint64_t process, std::uint32_t stage, std::uint64_t state_step);

  MembershipActions directive(const CoordinatorDirective& directive);
  // Another member says that the epoch is over.
  MembershipActions peer_revoked(std::uint64_t epoch);

  void ready() { report_.presence = MemberPresence::ready; }
  void leave() { report_.presence = MemberPresence::leaving; }
  // The answers to PrepareEpoch. Late ones, to a proposal that has been replaced, change nothing.
  void prepared(std::uint64_t epoch);
  void refuse(std::uint64_t epoch, std::vector<std::string> unreachable);
  // The state of `step` is here: fetched, or read from a checkpoint.
  void holds(std::uint64_t step);
  // Step next_step() begins. Must be in an epoch that is not revoked.
  void begin_step();
  // This process's part of the step begun is done, or failed because of `suspects` (ids). After an abort the epoch is
  // over. Only a vote to commit, not one to learn, makes this process hold the step's state where it is committed.
  MembershipActions vote(StepVoteKind kind, std::vector<std::string> suspects);
  // An operation outside any step failed.
  MembershipActions suspect(std::vector<std::string> suspects);
  // After FencedOut: the same place in the group, as another process.
  void rejoin(std::uint64_t process);

  const MemberReport& report() const { return report_; }
  MemberState state() const;
  // The epoch in force here; nullptr where this process is in none.
  const EpochStart* start() const { return rank_ < 0 ? nullptr : &known_; }
  int rank() const { return rank_; }
  // The newest epoch in force that was heard of; number 0: none. A joiner fetches state from its members.
  const EpochStart& known() const { return known_; }
  bool revoked() const { return start() != nullptr && report_.revoked >= known_.epoch.number; }
  bool in_doubt() const { return report_.vote.kind != StepVoteKind::none && !settled_; }
  std::uint64_t next_step() const { return committed_step_ + 1; }
  std::uint64_t committed_step() const { return committed_step_; }
  // Why the coordinator lets nothing go on, in its words.
  const std::string& waiting_for() const { return waiting_for_; }

  bool operator==(const Membership&) const = default;
  // The same bytes for values that act alike.
  std::string fingerprint() const;

 private:
  void settle(const CoordinatorDirective& directive, MembershipActions& actions);
  void conclude(StepFate fate, MembershipActions& actions);
  void revoke(std::vector<std::string> suspects, MembershipActions& actions);
  void end_incarnation(const std::string& reason, MembershipActions& actions);

  MemberReport report_;
  EpochStart known_;            // the newest epoch in force heard of
  int rank_ = -1;               // in it; negative: not in it
  std::uint64_t proposal_ = 0;  // the newest heard of
  std::uint64_t committed_step_ = 0;
  bool settled_ = true;  // the vote's verdict is known
  bool fenced_ = false;
  std::string waiting_for_;
};

}  // namespace motley
