// The coordinator's side of the membership protocol, as a value: no sockets, no clock, no disk.
//
// Reports of members and the passing of time go in; records to be logged and the names of members to be told come out.
// Its driver logs the records, and only then sends directive() to those named. Should logging fail, the driver
// goes on with the value from before: members repeat their reports.
//
// A change of epoch: the new list is logged as a proposal; its members prepare (connect) while the old epoch goes on;
// when all have, it comes into force at the end of the step under way, or at once where the old epoch is revoked.
// Should preparing fail, nothing has been torn down.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/comm/membership/group_ledger.hpp"
#include "motley/comm/membership/membership_messages.hpp"

namespace motley {

// How long a silence is normal for one peer. Remembers the last gaps between signs of life. A gap is suspicious when it
// exceeds median + 8 MAD of them (MAD: the median distance from the median, which single outliers do not move), and
// never below the floor.
class HeartbeatMonitor {
 public:
  // Times must not fall.
  void heard(double now_s) {
    if (heard_s_ >= 0) {
      gaps_s_[next_] = now_s - heard_s_;
      next_ = (next_ + 1) % gaps_s_.size();
      count_ = std::min(count_ + 1, gaps_s_.size());
    }
    heard_s_ = now_s;
  }
  // Another's fault that nothing was heard for so long: the last sign of life counts as later.
  void excuse(double pause_s) {
    if (heard_s_ >= 0) heard_s_ += pause_s;
  }
  double heard_s() const { return heard_s_; }

  double deadline_s(double floor_s) const {
    if (count_ == 0) return floor_s;
    auto sorted = gaps_s_;
    const double median_s = middle(sorted);
    for (std::size_t i = 0; i < count_; ++i) sorted[i] = std::abs(sorted[i] - median_s);
    return std::max(floor_s, median_s + 8 * middle(sorted));
  }
  bool operator==(const HeartbeatMonitor&) const = default;

 private:
  static constexpr std::size_t remembered = 16;
  double middle(std::array<double, remembered>& values) const {
    const auto half = values.begin() + static_cast<std::ptrdiff_t>(count_ / 2);
    std::nth_element(values.begin(), half, values.begin() + static_cast<std::ptrdiff_t>(count_));
    return *half;
  }

  std::array<double, remembered> gaps_s_{};
  std::size_t next_ = 0, count_ = 0;
  double heard_s_ = -1;
};

enum class QuorumRule {
  none,     // any members that satisfy the other rules: the coordinator's log alone decides
  majority  // more than half of the epoch before
};

// When no member is left that holds the state of the last committed step.
enum class LostState {
  wait,   // for a process that does, say one that starts from a checkpoint of it
  rewind  // go on from the newest state that a member holds
};

struct GroupPolicy {
  std::uint32_t minimum_size = 1;
  std::uint32_t maximum_size = 1024;
  std::uint32_t stages = 1;  // an epoch needs a member of each
  QuorumRule quorum = QuorumRule::none;
  LostState lost_state = LostState::wait;
  double lease_floor_s = 1;        // shortest silence that evicts a member; 3 where members are far apart
  double reconnect_grace_s = 0.3;  // for a lost control connection to come back
  double prepare_deadline_s = 5;   // to connect an epoch
  double hold_s = 2;               // before a joiner that could not be connected is tried again
  bool operator==(const GroupPolicy&) const = default;
};

struct CoordinatorOutput {
  std::vector<LedgerRecord> records;           // to be logged, all or none, before anything is sent
  std::vector<std::string> tell;               // ids of members whose directive is due
  std::optional<CoordinatorDirective> answer;  // to the sender of the report, where it has no seat
  std::vector<std::string> notes;              // decisions, for the log that people read
};

class Coordinator {
 public:
  // `ledger` is the log's sum; members of its epoch have a lease to be heard again.
  Coordinator(GroupPolicy policy, GroupLedger ledger, double now_s);

  CoordinatorOutput report(const MemberReport& report, double now_s);
  // The control connection over which the process was last heard is gone.
  CoordinatorOutput connection_lost(const std::string& id, std::uint64_t process, double now_s);
  CoordinatorOutput tick(double now_s);

  // What the member is to know now. It must have a seat.
  CoordinatorDirective directive(const std::string& id) const;

  const GroupLedger& ledger() const { return ledger_; }
  const GroupPolicy& policy() const { return policy_; }
  bool revoked() const { return revoked_; }
  // Of the process that holds the seat; gone where there is none.
  MemberState state(const std::string& id) const;
  std::vector<std::string> ids() const;
  // Why no epoch is proposed although one is needed; empty where all is well.
  const std::string& waiting_for() const { return waiting_for_; }

  bool operator==(const Coordinator&) const = default;
  // The same bytes for values that act alike while the clock stands still.
  std::string fingerprint() const;

 private:
  struct Seat {
    std::uint64_t incarnation = 0;
    MemberReport report;  // the last one
    bool heard = false;   // not yet since the coordinator began
    HeartbeatMonitor monitor;
    double lost_s = -1;        // since when its connection is lost; negative: it is not
    double hold_until_s = -1;  // not proposed before
    bool operator==(const Seat&) const = default;
  };
  bool in_force(const Member& member) const;
  const Seat* seat_of(const Member& member) const;  // nullptr where another incarnation sits there, or none

  std::optional<CoordinatorDirective> admit(const MemberReport& report, CoordinatorOutput& output);
  CoordinatorDirective answer(const MemberReport& report, SeatAdmission admission, std::string reason) const;
  void record(LedgerRecord record, CoordinatorOutput& output);
  void excuse_own_pause(double now_s);
  void advance(CoordinatorOutput& output, double now_s);
  void expire_leases(CoordinatorOutput& output, double now_s);
  void judge_suspicions(CoordinatorOutput& output);
  void judge_preparation(CoordinatorOutput& output, double now_s);
  void count_votes(CoordinatorOutput& output);
  void commit_proposal(CoordinatorOutput& output, double now_s);
  void propose(CoordinatorOutput& output, double now_s);
  void revoke(const std::string& why, CoordinatorOutput& output);
  void evict(const std::string& id, const std::string& why, CoordinatorOutput& output);
  void put_on_hold(const std::string& id, const std::string& why, CoordinatorOutput& output, double now_s);
  bool is_change_due(const std::vector<Member>& wanted) const;
  bool is_proposal_open(double now_s) const;
  bool is_step_under_way() const;
  enum class Leavers { out, in };
  std::vector<Member> wanted_members(Leavers leavers, double now_s) const;
  std::uint64_t boundary(const std::vector<Member>& members) const;
  std::vector<std::uint32_t> holders(const std::vector<Member>& members, std::uint64_t step) const;
  std::string objection(const std::vector<Member>& members) const;

  GroupPolicy policy_;
  GroupLedger ledger_;
  std::map<std::string, Seat> seats_;
  bool revoked_ = false;         // the epoch in force
  std::uint32_t strikes_ = 0;    // epochs revoked since the last committed step
  std::uint64_t abandoned_ = 0;  // the newest proposal that could not be connected
  double proposed_s_;
  double handled_s_ = 0;
  std::string waiting_for_;
};

}  // namespace motley
