#include "motley/comm/membership/group_ledger.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

Epoch epoch_of_three() {
  Epoch epoch{.group = "g", .number = 7, .members = {}, .plan_digest = "digest"};
  for (const char* id : {"m0", "m1", "m2"})
    epoch.members.push_back({.id = id, .incarnation = 3, .host = "h", .address = "127.0.0.1:1"});
  return epoch;
}

bool is_refused(const GroupLedger& ledger, const LedgerRecord& record) {
  GroupLedger copy = ledger;
  try {
    apply_record(copy, record);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    return true;
  }
}

TEST(LedgerRecords, ComeBackAsTheyWentAndDamageIsNamed) {
  GroupLedger ledger;
  ledger.group = "g";
  ledger.current = {epoch_of_three(), 3, {1}};
  for (const LedgerRecord& record :
       {LedgerRecord(LedgerSnapshot{ledger}), LedgerRecord(IncarnationIssued{4, "a", "127.0.0.1:1"}),
        LedgerRecord(EpochProposed{epoch_of_three()}), LedgerRecord(EpochCommitted{7, 3, {0, 1}}),
        LedgerRecord(StepCommitted{7, 4})}) {
    const std::string bytes = encode_record(record);
    EXPECT_EQ(decode_record(bytes), record);
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_THROW(decode_record(bytes.substr(0, size)), Error) << describe(record);
  }
}

// Logs outlive the program that began them.
TEST(LedgerRecords, HaveTheBytesThatLogsHave) {
  GroupLedger ledger;
  ledger.group = "g";
  ledger.last_incarnation = 2;
  ledger.last_number = 8;
  ledger.current = {{"g", 8, {{"a", 2, "h", "x:1"}}, 5, "d"}, 3, {0}};
  ledger.committed_step = 4;
  ledger.committed_epoch = 8;
  const std::string epoch =
      "01000000670800000000000000010000000100000061020000000000000001000000680300000"
      "0783a3105000000000000000100000064";
  for (const auto& [record, bytes] : std::vector<std::pair<LedgerRecord, std::string>>{
           {LedgerSnapshot{ledger},
            "0100010000006702000000000000000800000000000000"
            "00000000000000000000000000000000000000000000000000000000" +
                epoch + "03000000000000000100000000000000" + "04000000000000000800000000000000"},
           {IncarnationIssued{4, "a", "x:1"}, "01010400000000000000010000006103000000783a31"},
           {EpochProposed{ledger.current.epoch}, "0102" + epoch},
           {EpochCommitted{7, 3, {0, 1}}, "010307000000000000000300000000000000020000000000000001000000"},
           {StepCommitted{7, 4}, "010407000000000000000400000000000000"}}) {
    std::string hex;
    for (const char c : encode_record(record)) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
    EXPECT_EQ(hex, bytes) << describe(record);
  }
}

TEST(LedgerRecords, AnotherVersionAndAnotherGroupAreNamed) {
  const auto cause = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      return std::string(error.what());
    }
    return std::string("none");
  };
  std::string newer = encode_record(StepCommitted{7, 4});
  ++newer[0];
  EXPECT_EQ(cause([&] { decode_record(newer); }), "a log record of version 2, this program reads 1");
  GroupLedger other;
  other.group = "h";
  GroupLedger ledger;
  ledger.group = "g";
  EXPECT_EQ(cause([&] { apply_record(ledger, LedgerSnapshot{other}); }),
            "the log's record \"snapshot: epoch 0, step 0\" cannot follow what stands before it: it belongs to group "
            "\"h\"");
  other.group = "g";
  other.committed_step = 9;
  apply_record(ledger, LedgerSnapshot{other});
  EXPECT_EQ(ledger.committed_step, 9U);
}

TEST(LedgerRecords, WhatCannotFollowIsRefused) {
  GroupLedger ledger;
  ledger.group = "g";
  EXPECT_TRUE(is_refused(ledger, StepCommitted{7, 1}));        // no epoch is in force
  EXPECT_TRUE(is_refused(ledger, EpochCommitted{7, 0, {0}}));  // none is proposed
  apply_record(ledger, EpochProposed{epoch_of_three()});
  EXPECT_TRUE(is_refused(ledger, EpochProposed{epoch_of_three()}));  // its number is used
  EXPECT_TRUE(is_refused(ledger, EpochCommitted{7, 0, {3}}));
  apply_record(ledger, EpochCommitted{7, 0, {0, 1}});
  EXPECT_TRUE(is_refused(ledger, EpochCommitted{7, 0, {0}}));
  EXPECT_TRUE(is_refused(ledger, StepCommitted{7, 2}));
  EXPECT_TRUE(is_refused(ledger, StepCommitted{6, 1}));
  apply_record(ledger, StepCommitted{7, 1});
  apply_record(ledger, IncarnationIssued{4, "a", ""});
  EXPECT_TRUE(is_refused(ledger, IncarnationIssued{4, "b", ""}));
  EXPECT_EQ(ledger.committed_step, 1U);
  EXPECT_EQ(ledger.committed_epoch, 7U);
}

TEST(LedgerRecords, OnlyTheNextStepOfTheEpochInForceIsCommitted) {
  GroupLedger ledger;
  ledger.group = "g";
  apply_record(ledger, EpochProposed{epoch_of_three()});
  EXPECT_FALSE(is_refused(ledger, EpochCommitted{7, 5, {0, 2}})) << "members bring checkpoints";
  EXPECT_TRUE(is_refused(ledger, EpochCommitted{7, 5, {3}}));
  EXPECT_TRUE(is_refused(ledger, EpochCommitted{6, 5, {0}}));
  apply_record(ledger, EpochCommitted{7, 5, {0, 2}});
  EXPECT_FALSE(is_refused(ledger, StepCommitted{7, 6}));
  for (const LedgerRecord& record : {LedgerRecord(StepCommitted{7, 5}), LedgerRecord(StepCommitted{7, 7}),
                                     LedgerRecord(StepCommitted{6, 6}), LedgerRecord(StepCommitted{8, 6})})
    EXPECT_TRUE(is_refused(ledger, record)) << describe(record);
  apply_record(ledger, StepCommitted{7, 6});
  apply_record(ledger, StepCommitted{7, 7});
  Epoch next = epoch_of_three();
  EXPECT_TRUE(is_refused(ledger, EpochProposed{next})) << "seven was used";
  next.number = 8;
  apply_record(ledger, EpochProposed{next});
  EXPECT_TRUE(is_refused(ledger, EpochCommitted{8, 8, {0}})) << "step 8 was never committed";
  // Lost steps are given up, and with them who committed them.
  GroupLedger lost = ledger;
  apply_record(lost, EpochCommitted{8, 6, {0}});
  EXPECT_EQ(lost.committed_step, 6U);
  EXPECT_EQ(lost.committed_epoch, 0U);
  apply_record(ledger, EpochCommitted{8, 7, {0}});
  EXPECT_EQ(ledger.committed_step, 7U);
  EXPECT_EQ(ledger.committed_epoch, 7U);
  apply_record(ledger, IncarnationIssued{4, "a", ""});
  EXPECT_TRUE(is_refused(ledger, IncarnationIssued{4, "b", ""}));
  EXPECT_TRUE(is_refused(ledger, IncarnationIssued{3, "b", ""}));
  EXPECT_FALSE(is_refused(ledger, IncarnationIssued{5, "b", ""}));
}

}  // namespace
}  // namespace motley
