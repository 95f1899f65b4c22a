#include "motley/comm/membership/membership_messages.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "motley/base/error.hpp"

namespace motley {
namespace {

Epoch epoch_of_two() {
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
  directive.start = {{epoch_of_two(), 11, {0, 1}}};
  directive.proposal = {epoch_of_two()};
  return {ControlHello{"g", "token"},
          MemberReport{},
          report,
          learner,
          CoordinatorDirective{},
          directive,
          ControlRefusal{"the token is not this group's", "hint"},
          ControlRefusal{"too many", "retry", RefusalKind::for_now},
          CertificateRequest{"g", "token", "a", std::string("\x30\x00", 2)},
          CertificateGrant{"pem", "pem", 86400, "key"}};
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
  directive.start = {{epoch_of_two(), 11, {2}}};  // a holder that is not a rank
  EXPECT_FALSE(decodes(encode_control(directive)));
  directive.start.front().holders = {};
  directive.start.front().epoch.members[1].id = "a";  // twice the same member
  EXPECT_FALSE(decodes(encode_control(directive)));
  std::string report = encode_control(MemberReport{});
  const std::uint32_t promised = 100000;  // suspects
  std::memcpy(report.data() + report.size() - 8 - 17 - 4, &promised, 4);
  EXPECT_FALSE(decodes(report));
}

}  // namespace
}  // namespace motley
