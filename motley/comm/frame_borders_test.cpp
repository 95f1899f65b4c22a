// What a header may say that has a sound checksum: nothing beyond what this program knows.
#include <gtest/gtest.h>

#include <cstring>

#include "motley/base/error.hpp"
#include "motley/comm/collective_frame.hpp"
#include "motley/comm/group_ledger.hpp"
#include "motley/comm/handshake.hpp"

namespace motley {
namespace {

// Of a header with one byte changed, and the checksum made anew.
std::string complaint(std::size_t place, std::uint8_t value) {
  CollectiveFrame frame;
  frame.shape = {.call = CollectiveCall::all_reduce, .bytes = 64};
  CollectiveHeader header;
  encode_header(frame, header);
  header[place] = static_cast<std::byte>(value);
  const std::uint32_t checksum = crc32c(std::span(header).first(header.size() - sizeof(std::uint32_t)));
  std::memcpy(header.data() + header.size() - sizeof checksum, &checksum, sizeof checksum);
  try {
    decode_header(header);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    return error.what();
  }
  return "none";
}

TEST(FrameBorders, FieldsBeyondWhatIsKnownAreRefused) {
  constexpr std::size_t version = 4, kind = 6, call = 7, shape = 32, length = 56;
  EXPECT_EQ(complaint(version, 1), "none");
  EXPECT_EQ(complaint(version, 2), "malformed frame header: version 2, this program speaks 1");
  EXPECT_EQ(complaint(version, 0), "malformed frame header: version 0, this program speaks 1");
  const auto last_kind = static_cast<std::uint8_t>(FrameKind::beat);
  EXPECT_EQ(complaint(kind, last_kind), "none");
  EXPECT_EQ(complaint(kind, last_kind + 1), "malformed frame header: unknown kind " + std::to_string(last_kind + 1));
  EXPECT_EQ(complaint(call, collective_calls - 1), "none");
  EXPECT_EQ(complaint(call, collective_calls),
            "malformed frame header: unknown operation " + std::to_string(collective_calls));
  // The shape's highest byte: the element below, the reduction above.
  EXPECT_EQ(complaint(shape + 7, collective_elements - 1), "none");
  EXPECT_EQ(complaint(shape + 7, collective_elements),
            "malformed frame header: unknown element type " + std::to_string(collective_elements));
  EXPECT_EQ(complaint(shape + 7, (collective_reductions - 1) << 4), "none");
  EXPECT_EQ(complaint(shape + 7, collective_reductions << 4),
            "malformed frame header: unknown reduction " + std::to_string(collective_reductions));
  EXPECT_NE(complaint(length + 3, 0x7f), "none") << "a payload of 2 GB";
}

TEST(FrameBorders, APayloadOfTheLargestSizeAndNoByteMore) {
  CollectiveFrame frame;
  frame.shape = {.call = CollectiveCall::all_reduce, .bytes = 64};
  CollectiveHeader header;
  frame.length = largest_payload_bytes;
  encode_header(frame, header);
  EXPECT_EQ(decode_header(header), frame);
  frame.length = largest_payload_bytes + 1;
  encode_header(frame, header);
  EXPECT_THROW(decode_header(header), Error);
}

Epoch epoch_seven() {
  Epoch epoch{.group = "g", .number = 7, .members = {}, .plan_digest = {}};
  for (const char* id : {"m0", "m1", "m2"})
    epoch.members.push_back({.id = id, .incarnation = 3, .host = "h", .address = {}});
  return epoch;
}

// Rank 1 calls rank 0.
TEST(Objection, OlderAndNewerEpochsAndIncarnationsAreNotThisOne) {
  const LinkHello good{.group = "g", .epoch = 7, .from = 1, .to = 0, .from_id = "m1", .incarnation = 3};
  const auto to_change = [&](auto change) {
    LinkHello hello = good;
    change(hello);
    return objection(hello, epoch_seven(), 0, "");
  };
  EXPECT_EQ(objection(good, epoch_seven(), 0, ""), "");
  EXPECT_EQ(objection(good, epoch_seven(), 0, "m1"), "");
  EXPECT_EQ(objection(good, epoch_seven(), 0, "m2"), "the certificate names \"m2\", not \"m1\"");
  EXPECT_EQ(objection(good, epoch_seven(), 2, ""), "this is rank 2, not 0");
  EXPECT_EQ(to_change([](LinkHello& h) { h.epoch = 6; }), "epoch 6 is not 7");
  EXPECT_EQ(to_change([](LinkHello& h) { h.epoch = 8; }), "epoch 8 is not 7");
  EXPECT_EQ(to_change([](LinkHello& h) { h.group = "other"; }), "group \"other\" is not \"g\"");
  EXPECT_EQ(to_change([](LinkHello& h) { h.from = 0; }), "no rank 0 may call") << "nobody calls himself";
  EXPECT_EQ(to_change([](LinkHello& h) { h.from = 3; }), "no rank 3 may call");
  EXPECT_EQ(to_change([](LinkHello& h) { h.from = 2; }), "rank 2 of epoch 7 is \"m2\", not \"m1\"");
  for (const std::uint64_t other : {2, 4})
    EXPECT_EQ(to_change([&](LinkHello& h) { h.incarnation = other; }),
              "incarnation " + std::to_string(other) + " of \"m1\" is not 3, the one in epoch 7");
}

TEST(LedgerBorders, OnlyTheNextStepOfTheEpochInForceIsCommitted) {
  GroupLedger ledger;
  ledger.group = "g";
  const auto refused = [&](const LedgerRecord& record) {
    GroupLedger copy = ledger;
    try {
      apply_record(copy, record);
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  apply_record(ledger, EpochProposed{epoch_seven()});
  EXPECT_FALSE(refused(EpochCommitted{7, 5, {0, 2}})) << "members bring checkpoints";
  EXPECT_TRUE(refused(EpochCommitted{7, 5, {3}}));
  EXPECT_TRUE(refused(EpochCommitted{6, 5, {0}}));
  apply_record(ledger, EpochCommitted{7, 5, {0, 2}});
  EXPECT_FALSE(refused(StepCommitted{7, 6}));
  for (const LedgerRecord& record : {LedgerRecord(StepCommitted{7, 5}), LedgerRecord(StepCommitted{7, 7}),
                                     LedgerRecord(StepCommitted{6, 6}), LedgerRecord(StepCommitted{8, 6})})
    EXPECT_TRUE(refused(record)) << describe(record);
  apply_record(ledger, StepCommitted{7, 6});
  apply_record(ledger, StepCommitted{7, 7});
  Epoch next = epoch_seven();
  EXPECT_TRUE(refused(EpochProposed{next})) << "seven was used";
  next.number = 8;
  apply_record(ledger, EpochProposed{next});
  EXPECT_TRUE(refused(EpochCommitted{8, 8, {0}})) << "step 8 was never committed";
  // Lost steps are given up, and with them who committed them.
  GroupLedger lost = ledger;
  apply_record(lost, EpochCommitted{8, 6, {0}});
  EXPECT_EQ(lost.committed_step, 6U);
  EXPECT_EQ(lost.committed_epoch, 0U);
  apply_record(ledger, EpochCommitted{8, 7, {0}});
  EXPECT_EQ(ledger.committed_step, 7U);
  EXPECT_EQ(ledger.committed_epoch, 7U);
  apply_record(ledger, IncarnationIssued{4, "a", ""});
  EXPECT_TRUE(refused(IncarnationIssued{4, "b", ""}));
  EXPECT_TRUE(refused(IncarnationIssued{3, "b", ""}));
  EXPECT_FALSE(refused(IncarnationIssued{5, "b", ""}));
}

}  // namespace
}  // namespace motley
