// What a group's coordinator must never forget: the chain of epochs and the steps committed in them.
//
// It is the sum of a log of records, each of which is on disk before anybody is told of it. Replaying any prefix gives
// a state from which the group can go on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "motley/comm/membership/membership_messages.hpp"

namespace motley {

struct GroupLedger {
  BoundedText<max_name_bytes> group;
  std::uint64_t last_incarnation = 0;  // issued to anybody
  std::uint64_t last_number = 0;       // of an epoch, proposed or in force: none is used for two lists
  Epoch proposal;                      // the one of `last_number`, until it is in force
  EpochStart current;                  // epoch number 0: none yet
  std::uint64_t committed_step = 0;
  std::uint64_t committed_epoch = 0;  // in which that step was committed
  bool operator==(const GroupLedger&) const = default;
};

struct IncarnationIssued {
  std::uint64_t incarnation = 0;
  BoundedText<max_name_bytes> id;
  BoundedText<max_name_bytes> address;
  bool operator==(const IncarnationIssued&) const = default;
};
struct EpochProposed {
  Epoch epoch;
  bool operator==(const EpochProposed&) const = default;
};
struct EpochCommitted {
  std::uint64_t number = 0;
  std::uint64_t boundary = 0;
  BoundedList<std::uint32_t, max_group_members> holders;
  bool operator==(const EpochCommitted&) const = default;
};
struct StepCommitted {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  bool operator==(const StepCommitted&) const = default;
};
// The sum of all records before it, which may then be forgotten.
struct LedgerSnapshot {
  GroupLedger ledger;
  bool operator==(const LedgerSnapshot&) const = default;
};
using LedgerRecord = std::variant<LedgerSnapshot, IncarnationIssued, EpochProposed, EpochCommitted, StepCommitted>;

// Throws an input error where the record cannot follow: a log of another group, a number used twice, a step out of
// turn.
void apply_record(GroupLedger& ledger, const LedgerRecord& record);

std::string encode_record(const LedgerRecord& record);
LedgerRecord decode_record(std::string_view bytes);  // throws an input error on anything malformed

// In one line, for logs.
std::string describe(const LedgerRecord& record);

}  // namespace motley
