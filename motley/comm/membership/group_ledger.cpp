#include "motley/comm/membership/group_ledger.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "motley/comm/net/wire.hpp"

namespace motley {

namespace {

constexpr std::uint8_t ledger_version = 1;

[[noreturn]] void impossible(const LedgerRecord& record, std::string_view why) {
  throw input_error(
      fmt::format("the log's record \"{}\" cannot follow what stands before it: {}", describe(record), why),
      "the log is damaged or from another program; a group without a log starts from the beginning");
}

struct Applying {
  GroupLedger& ledger;
  const LedgerRecord& record;

  void operator()(const LedgerSnapshot& snapshot) const {
    if (snapshot.ledger.group != ledger.group)
      impossible(record, fmt::format("it belongs to group \"{}\"", snapshot.ledger.group));
    ledger = snapshot.ledger;
  }
  void operator()(const IncarnationIssued& issued) const {
    if (issued.incarnation <= ledger.last_incarnation) impossible(record, "an incarnation that was issued before");
    ledger.last_incarnation = issued.incarnation;
  }
  void operator()(const EpochProposed& proposed) const {
    if (proposed.epoch.group != ledger.group)
      impossible(record, fmt::format("it belongs to group \"{}\"", proposed.epoch.group));
    if (proposed.epoch.number <= ledger.last_number) impossible(record, "a number that was used before");
    if (proposed.epoch.members.empty()) impossible(record, "it has no members");
    ledger.last_number = proposed.epoch.number;
    ledger.proposal = proposed.epoch;
  }
  void operator()(const EpochCommitted& committed) const {
    if (committed.number != ledger.proposal.number || committed.number <= ledger.current.epoch.number)
      impossible(record, "it was not the last proposal");
    // Before the first epoch nothing is committed: members bring checkpoints. Later, lost steps may be given up.
    if (committed.boundary > ledger.committed_step && ledger.current.epoch.number > 0)
      impossible(record, "it begins after a step that was never committed");
    for (const std::uint32_t rank : committed.holders)
      if (rank >= ledger.proposal.members.size()) impossible(record, "a holder that is not a rank");
    ledger.current = {std::move(ledger.proposal), committed.boundary, committed.holders};
    ledger.proposal = {};
    if (committed.boundary != ledger.committed_step) ledger.committed_epoch = 0;
    ledger.committed_step = committed.boundary;
  }
  void operator()(const StepCommitted& committed) const {
    if (committed.epoch != ledger.current.epoch.number) impossible(record, "another epoch is in force");
    if (committed.step != ledger.committed_step + 1) impossible(record, "another step is next");
    ledger.committed_step = committed.step;
    ledger.committed_epoch = committed.epoch;
  }
};

struct Describing {
  std::string operator()(const LedgerSnapshot& m) const {
    return fmt::format("snapshot: epoch {}, step {}", m.ledger.current.epoch.number, m.ledger.committed_step);
  }
  std::string operator()(const IncarnationIssued& m) const {
    return fmt::format("incarnation {} for {} at {}", m.incarnation, m.id, m.address);
  }
  std::string operator()(const EpochProposed& m) const {
    std::vector<std::string> names;
    for (const Member& member : m.epoch.members) names.push_back(fmt::format("{}.{}", member.id, member.incarnation));
    return fmt::format("epoch {} proposed: {}", m.epoch.number, fmt::join(names, " "));
  }
  std::string operator()(const EpochCommitted& m) const {
    return fmt::format("epoch {} in force after step {}", m.number, m.boundary);
  }
  std::string operator()(const StepCommitted& m) const {
    return fmt::format("step {} committed in epoch {}", m.step, m.epoch);
  }
};

}  // namespace

void apply_record(GroupLedger& ledger, const LedgerRecord& record) { std::visit(Applying{ledger, record}, record); }

std::string describe(const LedgerRecord& record) { return std::visit(Describing{}, record); }

std::string encode_record(const LedgerRecord& record) {
  std::string bytes;
  WireWriter writer(bytes);
  writer(ledger_version);
  writer(record);
  return bytes;
}

LedgerRecord decode_record(std::string_view bytes) {
  try {
    WireReader reader(bytes);
    std::uint8_t version = 0;
    reader(version);
    if (version != ledger_version)
      throw input_error(fmt::format("a log record of version {}, this program reads {}", version, ledger_version),
                        "run the version of motley that wrote it, or start a new log: motley group serve --store FILE");
    LedgerRecord record;
    reader(record);
    reader.finish();
    return record;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::input) throw;
    throw input_error(fmt::format("log record: {}", error.message()), "the log is damaged or from another program");
  }
}

}  // namespace motley
