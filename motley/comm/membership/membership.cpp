#include "motley/comm/membership/membership.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/comm/net/wire.hpp"

namespace motley {

std::vector<std::uint32_t> flood_neighbours(std::uint32_t rank, std::uint32_t size) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t distance = 1; distance < size; distance *= 2) {
    ranks.push_back((rank + distance) % size);
    ranks.push_back((rank + size - distance) % size);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Membership::Membership(std::string group, Member member, std::uint64_t process, std::uint32_t stage,
                       std::uint64_t state_step) {
  report_.group = std::move(group);
  report_.member = std::move(member);
  report_.member.incarnation = 0;
  report_.process = process;
  report_.stage = stage;
  report_.state_step = state_step;
}

MembershipActions Membership::directive(const CoordinatorDirective& directive) {
  MembershipActions actions;
  Member& self = report_.member;
  if (fenced_ || directive.group != report_.group || directive.process != report_.process) return actions;
  if (directive.epoch < known_.epoch.number) return actions;
  if (self.incarnation != 0 && directive.incarnation != self.incarnation) return actions;
  waiting_for_ = directive.reason;
  if (directive.epoch > known_.epoch.number) {
    if (directive.start.empty() || directive.start.front().epoch.number != directive.epoch) return actions;
    committed_step_ = directive.committed_step;
  } else {
    committed_step_ = std::max(committed_step_, directive.committed_step);
  }
  settle(directive, actions);
  if (directive.admission == SeatAdmission::fenced) end_incarnation(directive.reason, actions);
  if (directive.admission != SeatAdmission::admitted) return actions;
  self.incarnation = directive.incarnation;

  if (directive.epoch > known_.epoch.number) {
    known_ = directive.start.front();
    report_.epoch = directive.epoch;
    const auto& members = known_.epoch.members;
    const auto place = std::find_if(members.begin(), members.end(), [&](const Member& member) {
      return member.id == self.id && member.incarnation == self.incarnation;
    });
    if (place == members.end()) {
      if (rank_ >= 0) end_incarnation(fmt::format("epoch {} goes on without it", directive.epoch), actions);
    } else {
      rank_ = static_cast<int>(place - members.begin());
      report_.suspects.clear();
      report_.active_step = 0;
      actions.push_back(EnterEpoch{known_, rank_});
    }
  }
  if (rank_ >= 0 && directive.revoked == known_.epoch.number) revoke({}, actions);
  if (!directive.proposal.empty() && directive.proposal.front().number > proposal_) {
    proposal_ = directive.proposal.front().number;
    actions.push_back(PrepareEpoch{directive.proposal.front()});
  }
  return actions;
}

// The chain of epochs alone tells: the step was committed in the epoch of the vote if the last committed step is not
// before it and of the same epoch; it was not if a later epoch began before it. A process that was left out in between
// cannot tell its own attempt from a later one.
void Membership::settle(const CoordinatorDirective& directive, MembershipActions& actions) {
  if (!in_doubt()) return;
  const StepVote& vote = report_.vote;
  if (directive.committed_epoch == vote.epoch && directive.committed_step >= vote.step)
    conclude(StepFate::committed, actions);
  else if (directive.epoch > vote.epoch && !directive.start.empty())
    conclude(directive.start.front().boundary < vote.step ? StepFate::aborted : StepFate::unknown, actions);
}

void Membership::conclude(StepFate fate, MembershipActions& actions) {
  settled_ = true;
  report_.active_step = 0;
  if (fate == StepFate::committed && report_.vote.kind == StepVoteKind::commit) report_.state_step = report_.vote.step;
  actions.push_back(StepVerdict{report_.vote, fate});
}

void Membership::revoke(std::vector<std::string> suspects, MembershipActions& actions) {
  if (rank_ < 0 || revoked()) return;
  report_.revoked = known_.epoch.number;
  report_.suspects = std::move(suspects);
  const auto size = static_cast<std::uint32_t>(known_.epoch.members.size());
  actions.push_back(RevokeEpoch{report_.revoked, flood_neighbours(static_cast<std::uint32_t>(rank_), size)});
}

void Membership::end_incarnation(const std::string& reason, MembershipActions& actions) {
  if (rank_ >= 0 && !revoked()) {
    report_.revoked = known_.epoch.number;
    actions.push_back(RevokeEpoch{report_.revoked, {}});
  }
  rank_ = -1;
  report_.active_step = 0;
  fenced_ = true;
  actions.push_back(FencedOut{reason});
}

MembershipActions Membership::peer_revoked(std::uint64_t epoch) {
  MembershipActions actions;
  if (rank_ >= 0 && known_.epoch.number == epoch) revoke({}, actions);
  return actions;
}

void Membership::prepared(std::uint64_t epoch) {
  if (epoch == proposal_) report_.prepared = epoch;
}

void Membership::refuse(std::uint64_t epoch, std::vector<std::string> unreachable) {
  if (epoch != proposal_) return;
  report_.refused = epoch;
  report_.unreachable = std::move(unreachable);
}

void Membership::holds(std::uint64_t step) { report_.state_step = step; }

void Membership::begin_step() {
  MOTLEY_CHECK(rank_ >= 0 && !revoked() && !in_doubt());
  report_.active_step = next_step();
}

MembershipActions Membership::vote(StepVoteKind kind, std::vector<std::string> suspects) {
  MembershipActions actions;
  MOTLEY_CHECK(rank_ >= 0 && kind != StepVoteKind::none && report_.active_step == next_step() && !in_doubt());
  // What ended well here may have failed elsewhere: that is why the epoch was revoked.
  if (revoked()) kind = StepVoteKind::abort;
  report_.vote = {known_.epoch.number, next_step(), kind};
  settled_ = false;
  if (kind == StepVoteKind::abort) {
    if (revoked() && report_.suspects.empty()) report_.suspects = suspects;
    revoke(std::move(suspects), actions);
    conclude(StepFate::aborted, actions);
  }
  return actions;
}

MembershipActions Membership::suspect(std::vector<std::string> suspects) {
  MembershipActions actions;
  if (revoked() && report_.suspects.empty()) report_.suspects = suspects;
  revoke(std::move(suspects), actions);
  return actions;
}

void Membership::rejoin(std::uint64_t process) {
  MOTLEY_CHECK(fenced_);
  fenced_ = false;
  report_.process = process;
  report_.member.incarnation = 0;
  report_.presence = MemberPresence::joining;
  report_.suspects.clear();
}

std::string Membership::fingerprint() const {
  std::string bytes = encode_control(report_);
  WireWriter writer(bytes);
  writer(known_.epoch.number);
  writer(known_.boundary);
  for (const Member& member : known_.epoch.members) writer(member.incarnation);
  for (const std::uint32_t holder : known_.holders) writer(holder);
  writer(rank_);
  writer(proposal_);
  writer(committed_step_);
  writer(static_cast<std::uint8_t>(settled_));
  writer(static_cast<std::uint8_t>(fenced_));
  return bytes;
}

MemberState Membership::state() const {
  if (fenced_) return MemberState::gone;
  if (rank_ >= 0) return revoked() ? MemberState::suspect : MemberState::active;
  if (report_.presence == MemberPresence::joining) return MemberState::joining;
  return proposal_ > known_.epoch.number && report_.prepared == proposal_ ? MemberState::standby : MemberState::synced;
}

}  // namespace motley
