#include "motley/comm/membership/coordinator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

bool is_same_process(const Member& a, const Member& b) { return a.id == b.id && a.incarnation == b.incarnation; }

bool is_in(const std::vector<Member>& members, const Member& member) {
  return std::any_of(members.begin(), members.end(), [&](const Member& m) { return is_same_process(m, member); });
}

}  // namespace

Coordinator::Coordinator(GroupPolicy policy, GroupLedger ledger, double now_s)
    : policy_(std::move(policy)), ledger_(std::move(ledger)), proposed_s_(now_s), handled_s_(now_s) {
  for (const Member& member : ledger_.current.epoch.members) {
    Seat seat;
    seat.incarnation = member.incarnation;
    seat.report.member = member;
    seat.monitor.heard(now_s);
    seats_.emplace(member.id, std::move(seat));
  }
}

CoordinatorOutput Coordinator::report(const MemberReport& report, double now_s) {
  CoordinatorOutput output;
  excuse_own_pause(now_s);
  output.answer = admit(report, output);
  if (!output.answer) {
    Seat& seat = seats_.at(report.member.id);
    seat.report = report;
    seat.report.member.incarnation = seat.incarnation;
    seat.heard = true;
    seat.lost_s = -1;
    seat.monitor.heard(now_s);
    output.tell.push_back(report.member.id);
  }
  advance(output, now_s);
  return output;
}

CoordinatorOutput Coordinator::connection_lost(const std::string& id, std::uint64_t process, double now_s) {
  CoordinatorOutput output;
  const auto seat = seats_.find(id);
  if (seat != seats_.end() && seat->second.report.process == process && seat->second.lost_s < 0)
    seat->second.lost_s = now_s;
  advance(output, now_s);
  return output;
}

CoordinatorOutput Coordinator::tick(double now_s) {
  CoordinatorOutput output;
  excuse_own_pause(now_s);
  advance(output, now_s);
  return output;
}

// A coordinator that was stopped, or whose machine slept, has not listened: the silence is its own.
void Coordinator::excuse_own_pause(double now_s) {
  const double pause_s = now_s - handled_s_;
  handled_s_ = now_s;
  if (pause_s < policy_.lease_floor_s / 2) return;
  for (auto& [id, seat] : seats_) {
    seat.monitor.excuse(pause_s);
    if (seat.lost_s >= 0) seat.lost_s += pause_s;
  }
}

CoordinatorDirective Coordinator::answer(const MemberReport& report, SeatAdmission admission,
                                         std::string reason) const {
  CoordinatorDirective directive;
  directive.group = ledger_.group;
  directive.process = report.process;
  directive.incarnation = report.member.incarnation;
  directive.admission = admission;
  directive.reason = std::move(reason);
  directive.epoch = ledger_.current.epoch.number;
  if (directive.epoch > 0 && report.epoch != directive.epoch) directive.start.push_back(ledger_.current);
  directive.committed_step = ledger_.committed_step;
  directive.committed_epoch = ledger_.committed_epoch;
  if (revoked_) directive.revoked = directive.epoch;
  return directive;
}

// Gives the process a seat, unless it has one. Returns what to say to a process that gets none.
std::optional<CoordinatorDirective> Coordinator::admit(const MemberReport& report, CoordinatorOutput& output) {
  const std::string& id = report.member.id;
  if (report.group != ledger_.group)
    return answer(report, SeatAdmission::waiting, fmt::format("this coordinator serves group \"{}\"", ledger_.group));
  const auto found = seats_.find(id);
  if (report.member.incarnation > 0) {
    if (found != seats_.end() && found->second.incarnation == report.member.incarnation &&
        (!found->second.heard || found->second.report.process == report.process))
      return std::nullopt;
    return answer(report, SeatAdmission::fenced,
                  fmt::format("incarnation {} of {} is no longer a member", report.member.incarnation, id));
  }
  if (found != seats_.end()) {
    const Seat& holder = found->second;
    if (holder.heard && holder.report.process == report.process) return std::nullopt;
    if (!holder.heard || holder.lost_s < 0)
      return answer(report, SeatAdmission::waiting,
                    fmt::format("{} is the name of a live member at {}", id, holder.report.member.address));
    evict(id, "another process takes its place", output);
  }
  record(IncarnationIssued{ledger_.last_incarnation + 1, id, report.member.address}, output);
  Seat seat;
  seat.incarnation = ledger_.last_incarnation;
  seats_.emplace(id, std::move(seat));
  return std::nullopt;
}

void Coordinator::record(LedgerRecord record, CoordinatorOutput& output) {
  apply_record(ledger_, record);
  output.notes.push_back(describe(record));
  output.records.push_back(std::move(record));
}

const Coordinator::Seat* Coordinator::seat_of(const Member& member) const {
  const auto found = seats_.find(member.id);
  return found != seats_.end() && found->second.incarnation == member.incarnation ? &found->second : nullptr;
}

bool Coordinator::in_force(const Member& member) const { return is_in(ledger_.current.epoch.members, member); }

void Coordinator::advance(CoordinatorOutput& output, double now_s) {
  const auto before = std::tuple(ledger_, revoked_, waiting_for_);
  expire_leases(output, now_s);
  count_votes(output);
  judge_suspicions(output);
  judge_preparation(output, now_s);
  commit_proposal(output, now_s);
  propose(output, now_s);
  commit_proposal(output, now_s);
  if (before != std::tuple(ledger_, revoked_, waiting_for_)) output.tell = ids();
}

void Coordinator::expire_leases(CoordinatorOutput& output, double now_s) {
  const auto is_leaving = [](const auto& entry) { return entry.second.report.presence == MemberPresence::leaving; };
  const bool all_leave = std::all_of(seats_.begin(), seats_.end(), is_leaving);
  std::vector<std::pair<std::string, std::string>> over;
  for (const auto& [id, seat] : seats_) {
    const double silence_s = now_s - seat.monitor.heard_s();
    const bool leaving = seat.report.presence == MemberPresence::leaving;
    if (all_leave)
      over.emplace_back(id, "all members leave");
    else if (seat.lost_s >= 0 && leaving)
      over.emplace_back(id, "it left");
    else if (seat.lost_s >= 0 && now_s - seat.lost_s > policy_.reconnect_grace_s)
      over.emplace_back(id, "its control connection is lost");
    else if (silence_s > seat.monitor.deadline_s(policy_.lease_floor_s))
      over.emplace_back(id, fmt::format("it has been silent for {:.2f} s", silence_s));
  }
  for (const auto& [id, why] : over) evict(id, why, output);
}

void Coordinator::revoke(const std::string& why, CoordinatorOutput& output) {
  if (revoked_ || ledger_.current.epoch.number == 0) return;
  revoked_ = true;
  ++strikes_;
  output.notes.push_back(fmt::format("epoch {} revoked: {}", ledger_.current.epoch.number, why));
}

void Coordinator::evict(const std::string& id, const std::string& why, CoordinatorOutput& output) {
  const auto seat = seats_.find(id);
  if (seat == seats_.end()) return;
  const Member member{id, seat->second.incarnation, {}, {}};
  seats_.erase(seat);
  output.notes.push_back(fmt::format("{}.{} is gone: {}", id, member.incarnation, why));
  if (!in_force(member)) return;
  revoke(fmt::format("{} is gone", id), output);
}

void Coordinator::put_on_hold(const std::string& id, const std::string& why, CoordinatorOutput& output, double now_s) {
  seats_.at(id).hold_until_s = now_s + policy_.hold_s;
  output.notes.push_back(fmt::format("{} is kept out for {} s: {}", id, policy_.hold_s, why));
}

// A step is committed when every member of the epoch has done its part of it: by this record alone, so that all who
// survive hear the same.
void Coordinator::count_votes(CoordinatorOutput& output) {
  const Epoch& epoch = ledger_.current.epoch;
  if (epoch.number == 0 || revoked_) return;
  const std::uint64_t step = ledger_.committed_step + 1;
  bool all = true;
  for (const Member& member : epoch.members) {
    const Seat* seat = seat_of(member);
    if (seat == nullptr) return;
    const MemberReport& said = seat->report;
    if (said.revoked == epoch.number)
      return revoke(said.suspects.empty()
                        ? fmt::format("{} gave it up", member.id)
                        : fmt::format("{} waited for {} without result", member.id, fmt::join(said.suspects, " ")),
                    output);
    if (said.vote.epoch == epoch.number && said.vote.kind == StepVoteKind::abort)
      return revoke(fmt::format("{}: {}", member.id, describe(said.vote)), output);
    all = all && said.vote.epoch == epoch.number && said.vote.step == step && commits(said.vote.kind);
  }
  if (!all) return;
  record(StepCommitted{epoch.number, step}, output);
  strikes_ = 0;
}

// Suspicion alone is cheap and often wrong: at first the same members try again with fresh connections, which shows
// who can be reached. Only who is suspected by most the second time, or whose control connection is lost besides, goes.
void Coordinator::judge_suspicions(CoordinatorOutput& output) {
  if (!revoked_) return;
  const Epoch epoch = ledger_.current.epoch;
  std::string most_suspected;
  std::size_t most = 0;
  for (const Member& member : epoch.members) {
    const Seat* seat = seat_of(member);
    if (seat == nullptr) continue;
    std::size_t others = 0, suspicions = 0;
    for (const Member& other : epoch.members) {
      const Seat* witness = seat_of(other);
      if (witness == nullptr || other.id == member.id) continue;
      ++others;
      const auto& suspects = witness->report.suspects;
      if (witness->report.revoked == epoch.number &&
          std::find(suspects.begin(), suspects.end(), member.id) != suspects.end())
        ++suspicions;
    }
    if (suspicions > 0 && seat->lost_s >= 0)
      evict(member.id, "its connections to the coordinator and to other members were lost", output);
    else if (strikes_ >= 2 && 2 * suspicions > others && suspicions >= most) {
      most = suspicions;
      most_suspected = member.id;
    }
  }
  if (!most_suspected.empty())
    evict(most_suspected, fmt::format("{} members waited for it again without result", most), output);
}

// Once all have answered or the deadline has passed, the member that is to blame for an epoch that cannot be connected
// is left out of the next proposal: a member by eviction, a joiner for a while.
void Coordinator::judge_preparation(CoordinatorOutput& output, double now_s) {
  if (!is_proposal_open(now_s)) return;
  const Epoch proposal = ledger_.proposal;
  const bool late = now_s - proposed_s_ > policy_.prepare_deadline_s;
  std::map<std::string, std::size_t> blame;
  for (const Member& member : proposal.members) {
    const MemberReport& said = seat_of(member)->report;
    if (said.refused == proposal.number) {
      bool named = false;
      for (const Member& other : proposal.members)
        if (std::find(said.unreachable.begin(), said.unreachable.end(), other.id) != said.unreachable.end()) {
          ++blame[other.id];
          named = true;
        }
      if (!named) ++blame[member.id];
    } else if (said.prepared != proposal.number) {
      if (!late) return;
      blame[member.id] += proposal.members.size();
    }
  }
  std::tuple<std::size_t, bool> worst{0, false};
  const Member* victim = nullptr;
  for (const Member& member : proposal.members) {
    const auto blamed = blame.find(member.id);
    if (blamed == blame.end()) continue;
    const std::tuple weight{blamed->second, !in_force(member)};
    if (weight < worst) continue;
    worst = weight;
    victim = &member;
  }
  if (victim == nullptr) return;
  abandoned_ = proposal.number;
  const std::string why = fmt::format("epoch {} could not connect it", proposal.number);
  if (in_force(*victim))
    evict(victim->id, why, output);
  else
    put_on_hold(victim->id, why, output, now_s);
}

// A proposal is open as long as all in it can still take part, and they may: those that held the state may have died
// since.
bool Coordinator::is_proposal_open(double now_s) const {
  const Epoch& proposal = ledger_.proposal;
  if (proposal.number <= abandoned_) return false;
  const bool all_there = std::all_of(proposal.members.begin(), proposal.members.end(), [&](const Member& member) {
    const Seat* seat = seat_of(member);
    return seat != nullptr && (in_force(member) || (seat->lost_s < 0 && seat->hold_until_s <= now_s));
  });
  return all_there && objection(proposal.members).empty();
}

// A member may be in the middle of the next step: the switch waits for its end. Not, however, for a member that wants
// to leave and takes no part in it.
bool Coordinator::is_step_under_way() const {
  const Epoch& epoch = ledger_.current.epoch;
  if (epoch.number == 0 || revoked_) return false;
  bool begun = false;
  for (const Member& member : epoch.members) {
    const Seat* seat = seat_of(member);
    if (seat == nullptr) return false;
    const bool active = seat->report.epoch == epoch.number && seat->report.active_step == ledger_.committed_step + 1;
    if (!active && seat->report.presence == MemberPresence::leaving) return false;
    begun = begun || active;
  }
  return begun;
}

void Coordinator::commit_proposal(CoordinatorOutput& output, double now_s) {
  if (!is_proposal_open(now_s) || is_step_under_way()) return;
  const Epoch& proposal = ledger_.proposal;
  for (const Member& member : proposal.members) {
    const MemberReport& said = seat_of(member)->report;
    if (said.prepared != proposal.number || said.refused == proposal.number) return;
  }
  const std::uint64_t step = boundary(proposal.members);
  record(EpochCommitted{proposal.number, step, holders(proposal.members, step)}, output);
  revoked_ = false;
}

// Those of the epoch who stay, in their order; behind them those who are ready to join, in the order of their arrival.
std::vector<Member> Coordinator::wanted_members(Leavers leavers, double now_s) const {
  std::vector<Member> wanted, joiners;
  for (const Member& member : ledger_.current.epoch.members) {
    const Seat* seat = seat_of(member);
    if (seat == nullptr || (leavers == Leavers::out && seat->report.presence == MemberPresence::leaving)) continue;
    wanted.push_back(member);
  }
  for (const auto& [id, seat] : seats_) {
    if (in_force({id, seat.incarnation, {}, {}}) || seat.report.presence != MemberPresence::ready) continue;
    if (seat.lost_s < 0 && seat.hold_until_s <= now_s) joiners.push_back(seat.report.member);
  }
  std::sort(joiners.begin(), joiners.end(),
            [](const Member& a, const Member& b) { return a.incarnation < b.incarnation; });
  for (Member& joiner : joiners)
    if (wanted.size() < policy_.maximum_size) wanted.push_back(std::move(joiner));
  return wanted;
}

bool Coordinator::is_change_due(const std::vector<Member>& wanted) const {
  const auto& members = ledger_.current.epoch.members;
  return revoked_ || !std::equal(members.begin(), members.end(), wanted.begin(), wanted.end(), is_same_process);
}

std::uint64_t Coordinator::boundary(const std::vector<Member>& members) const {
  if (ledger_.current.epoch.number > 0 && !holders(members, ledger_.committed_step).empty())
    return ledger_.committed_step;
  std::uint64_t newest = 0;
  for (const Member& member : members) newest = std::max(newest, seat_of(member)->report.state_step);
  return newest;
}

// The ranks that hold the state of `step`, or will as soon as they hear that it is committed. Learners have voted for
// it, but not so. A newer state is of steps that the group has given up.
std::vector<std::uint32_t> Coordinator::holders(const std::vector<Member>& members, std::uint64_t step) const {
  const StepVote last{ledger_.committed_epoch, ledger_.committed_step, StepVoteKind::commit};
  std::vector<std::uint32_t> ranks;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const MemberReport& said = seat_of(members[rank])->report;
    if (said.state_step == step || (said.vote == last && last.step == step))
      ranks.push_back(static_cast<std::uint32_t>(rank));
  }
  return ranks;
}

// Why these may not form an epoch; empty where they may.
std::string Coordinator::objection(const std::vector<Member>& members) const {
  const auto& before = ledger_.current.epoch.members;
  if (members.size() < policy_.minimum_size)
    return fmt::format("{} of at least {} members are ready", members.size(), policy_.minimum_size);
  if (policy_.quorum == QuorumRule::majority) {
    const auto stay = static_cast<std::size_t>(
        std::count_if(before.begin(), before.end(), [&](const Member& member) { return is_in(members, member); }));
    if (!before.empty() && 2 * stay <= before.size())
      return fmt::format("{} of {} members of epoch {} are left, less than a majority", stay, before.size(),
                         ledger_.current.epoch.number);
  }
  std::set<std::uint32_t> stages;
  for (const Member& member : members) stages.insert(seat_of(member)->report.stage);
  for (std::uint32_t stage = 0; stage < policy_.stages; ++stage)
    if (!stages.contains(stage)) return fmt::format("stage {} has no member", stage);
  if (ledger_.current.epoch.number > 0 && policy_.lost_state == LostState::wait &&
      holders(members, ledger_.committed_step).empty())
    return fmt::format("no member holds the state of step {}", ledger_.committed_step);
  return {};
}

void Coordinator::propose(CoordinatorOutput& output, double now_s) {
  waiting_for_.clear();
  std::vector<Member> wanted = wanted_members(Leavers::out, now_s);
  // A member that the others cannot do without, say because it alone holds the state, stays until they can.
  if (!wanted.empty() && !objection(wanted).empty()) wanted = wanted_members(Leavers::in, now_s);
  if (wanted.empty() || !is_change_due(wanted)) return;
  for (const Member& member : ledger_.current.epoch.members)
    if (const Seat* seat = seat_of(member); seat != nullptr && !seat->heard) {
      waiting_for_ = fmt::format("{} has not been heard since the coordinator started", member.id);
      return;
    }
  waiting_for_ = objection(wanted);
  if (!waiting_for_.empty() || is_proposal_open(now_s)) return;
  Epoch proposal = ledger_.current.epoch;
  proposal.group = ledger_.group;
  proposal.number = ledger_.last_number + 1;
  proposal.members = wanted;
  record(EpochProposed{std::move(proposal)}, output);
  proposed_s_ = now_s;
}

CoordinatorDirective Coordinator::directive(const std::string& id) const {
  const Seat& seat = seats_.at(id);
  CoordinatorDirective directive = answer(seat.report, SeatAdmission::admitted, waiting_for_);
  directive.incarnation = seat.incarnation;
  const Epoch& proposal = ledger_.proposal;
  if (proposal.number > std::max(seat.report.prepared, seat.report.refused) &&
      is_in(proposal.members, {id, seat.incarnation, {}, {}}))
    directive.proposal.push_back(proposal);
  return directive;
}

MemberState Coordinator::state(const std::string& id) const {
  const auto found = seats_.find(id);
  if (found == seats_.end()) return MemberState::gone;
  const Seat& seat = found->second;
  const Member member{id, seat.incarnation, {}, {}};
  if (in_force(member)) {
    bool suspected = seat.lost_s >= 0 || !seat.heard;
    for (const auto& [other, witness] : seats_) {
      const auto& suspects = witness.report.suspects;
      suspected = suspected || (witness.report.revoked == ledger_.current.epoch.number &&
                                std::find(suspects.begin(), suspects.end(), id) != suspects.end());
    }
    return suspected ? MemberState::suspect : MemberState::active;
  }
  if (seat.report.presence == MemberPresence::joining) return MemberState::joining;
  const bool prepared = ledger_.proposal.number > 0 && seat.report.prepared == ledger_.proposal.number;
  return prepared ? MemberState::standby : MemberState::synced;
}

std::string Coordinator::fingerprint() const {
  std::string bytes = encode_record(LedgerSnapshot{ledger_});
  WireWriter writer(bytes);
  for (const auto& [id, seat] : seats_) {
    writer(seat.incarnation);
    bytes += encode_control(seat.report);
    writer(static_cast<std::uint8_t>(seat.heard));
    writer(seat.lost_s);
    writer(seat.hold_until_s);
  }
  writer(static_cast<std::uint8_t>(revoked_));
  writer(strikes_);
  writer(abandoned_);
  return bytes + waiting_for_;
}

std::vector<std::string> Coordinator::ids() const {
  std::vector<std::string> ids;
  for (const auto& [id, seat] : seats_) ids.push_back(id);
  return ids;
}

}  // namespace motley
