#include "motley/comm/membership_messages.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "motley/base/error.hpp"
#include "motley/comm/group_ledger.hpp"

namespace motley {
namespace {

Epoch some_epoch() {
  return {.group = "g",
          .number = 7,
          .members = {{"a", 3, "host", "127.0.0.1:1"}, {"b", 5, "host", "127.0.0.1:2"}},
          .topology_version = 2,
          .plan_digest = "digest"};
}

std::vector<ControlMessage> samples() {
  MemberReport report;
  report.group = "g";
  report.member = {"a", 3, "host", "127.0.0.1:1"};
  report.process = 0x123456789abcdef0U;
  report.presence = MemberPresence::leaving;
  report.refused = 6;
  report.unreachable = {"b"};
  report.revoked = 5;
  report.suspects = {"b", "c"};
  report.vote = {7, 12, StepVoteKind::abort};
  MemberReport learner = report;
  learner.vote.kind = StepVoteKind::learn;
  CoordinatorDirective directive;
  directive.group = "g";
  directive.admission = SeatAdmission::admitted;
  directive.reason = "1 of at least 2 members are ready";
  directive.epoch = 7;
  directive.start = {{some_epoch(), 11, {0, 1}}};
  directive.proposal = {some_epoch()};
  return {ControlHello{"g", "token"},
          MemberReport{},
          report,
          learner,
          CoordinatorDirective{},
          directive,
          ControlRefusal{"the token is not this group's", "hint"},
          CertificateRequest{"g", "token", "a", std::string("\x30\x00", 2)},
          CertificateGrant{"pem", "pem", 86400}};
}

bool decodes(std::string_view bytes) {
  try {
    decode_control(bytes);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    return false;
  }
}

TEST(ControlMessages, ComeBackAsTheyWent) {
  for (const ControlMessage& message : samples()) EXPECT_EQ(decode_control(encode_control(message)), message);
}

TEST(ControlMessages, CutOrProlongedTheyAreRefused) {
  for (const ControlMessage& message : samples()) {
    const std::string bytes = encode_control(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decodes(bytes.substr(0, size)));
    EXPECT_FALSE(decodes(bytes + '\0'));
  }
}

TEST(ControlMessages, AChangedByteMeansSomethingElseOrNothing) {
  for (const ControlMessage& message : samples()) {
    std::string bytes = encode_control(message);
    for (char& byte : bytes) {
      const char before = byte;
      for (const int mask : {0x01, 0x80, 0xff}) {
        byte = static_cast<char>(before ^ mask);
        if (decodes(bytes)) {
          EXPECT_EQ(encode_control(decode_control(bytes)), bytes);
        }
      }
      byte = before;
    }
  }
}

TEST(ControlMessages, RandomBytesAreSurvived) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 4);
    if (bytes.size() >= 2) {
      bytes[0] = 1;
      bytes[1] = static_cast<char>(random() % std::variant_size_v<ControlMessage>);
    }
    decodes(bytes);
  }
}

TEST(ControlMessages, LiesAreNotBelieved) {
  CoordinatorDirective directive;
  directive.start = {{some_epoch(), 11, {2}}};  // a holder that is no rank
  EXPECT_FALSE(decodes(encode_control(directive)));
  directive.start.front().holders = {};
  directive.start.front().epoch.members[1].id = "a";  // twice the same member
  EXPECT_FALSE(decodes(encode_control(directive)));
  std::string report = encode_control(MemberReport{});
  const std::uint32_t promised = 100000;  // suspects
  std::memcpy(report.data() + report.size() - 8 - 17 - 4, &promised, 4);
  EXPECT_FALSE(decodes(report));
}

TEST(LedgerRecords, ComeBackAsTheyWentAndDamageIsNamed) {
  GroupLedger ledger;
  ledger.group = "g";
  ledger.current = {some_epoch(), 3, {1}};
  for (const LedgerRecord& record :
       {LedgerRecord(LedgerSnapshot{ledger}), LedgerRecord(IncarnationIssued{4, "a", "127.0.0.1:1"}),
        LedgerRecord(EpochProposed{some_epoch()}), LedgerRecord(EpochCommitted{7, 3, {0, 1}}),
        LedgerRecord(StepCommitted{7, 4})}) {
    const std::string bytes = encode_record(record);
    EXPECT_EQ(decode_record(bytes), record);
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_THROW(decode_record(bytes.substr(0, size)), Error) << describe(record);
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
  const auto refused = [&](const LedgerRecord& record) {
    GroupLedger copy = ledger;
    try {
      apply_record(copy, record);
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::input;
    }
  };
  EXPECT_TRUE(refused(StepCommitted{7, 1}));        // no epoch is in force
  EXPECT_TRUE(refused(EpochCommitted{7, 0, {0}}));  // none is proposed
  apply_record(ledger, EpochProposed{some_epoch()});
  EXPECT_TRUE(refused(EpochProposed{some_epoch()}));  // its number is used
  EXPECT_TRUE(refused(EpochCommitted{7, 0, {2}}));
  apply_record(ledger, EpochCommitted{7, 0, {0, 1}});
  EXPECT_TRUE(refused(EpochCommitted{7, 0, {0}}));
  EXPECT_TRUE(refused(StepCommitted{7, 2}));
  EXPECT_TRUE(refused(StepCommitted{6, 1}));
  apply_record(ledger, StepCommitted{7, 1});
  apply_record(ledger, IncarnationIssued{4, "a", ""});
  EXPECT_TRUE(refused(IncarnationIssued{4, "b", ""}));
  EXPECT_EQ(ledger.committed_step, 1U);
  EXPECT_EQ(ledger.committed_epoch, 7U);
}

}  // namespace
}  // namespace motley
