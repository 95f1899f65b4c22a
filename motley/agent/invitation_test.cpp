#include "motley/agent/invitation.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "motley/base/error.hpp"
#include "motley/comm/authority/authority.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Invitation example{.coordinator = "10.0.0.5:4700",
                         .driver = "10.0.0.5:4701",
                         .group = "lab",
                         .authority = "sha256:" + std::string(32, '9') + std::string(32, 'f'),
                         .token = "51c0ffee51c0ffee51c0ffee51c0ffee"};

// The message of the error; "none" where it is a link. Whatever is wrong, the token is not shown.
std::string refusal_of(const std::string& text) {
  try {
    parse_invitation(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_FALSE(error.hint().empty());
    EXPECT_THAT(error.what(), Not(HasSubstr(example.token)));
    EXPECT_THAT(error.hint(), Not(HasSubstr(example.token)));
    return error.what();
  }
  return "none";
}

TEST(Invitation, IsOneLine) {
  const std::string text =
      "motley://10.0.0.5:4700/lab?driver=10.0.0.5:4701&authority=" + example.authority + "&token=" + example.token;
  EXPECT_EQ(to_text(example), text);
  EXPECT_EQ(parse_invitation(text), example);
}

TEST(Invitation, MayNameARelay) {
  Invitation invitation = example;
  invitation.relay = "10.0.0.5:4702";
  EXPECT_THAT(to_text(invitation), HasSubstr("driver=10.0.0.5:4701&relay=10.0.0.5:4702&authority="));
  EXPECT_EQ(parse_invitation(to_text(invitation)), invitation);
  invitation.relay = "10.0.0.5";
  EXPECT_EQ(refusal_of(to_text(invitation)), "the link to join by is damaged: \"10.0.0.5\" is not an address");
}

std::string any_address() {
  const std::string host = *rc::gen::elementOf(std::vector<std::string>{"10.0.0.5", "box", "[::1]", "a.b.example"});
  return host + ":" + std::to_string(*rc::gen::inRange(0, 65536));
}
std::string any_hexadecimal(std::size_t digits) {
  return *rc::gen::container<std::string>(digits, rc::gen::elementOf(std::string("0123456789abcdef")));
}

RC_GTEST_PROP(Invitations, ComeBackAsTheyWere, ()) {
  const auto letter = rc::gen::elementOf(std::string("abcXYZ019-_. /&=%#"));
  const std::string group = "g" + *rc::gen::container<std::string>(*rc::gen::inRange<std::size_t>(0, 60), letter);
  const Invitation invitation{any_address(), any_address(), group, "sha256:" + any_hexadecimal(64),
                              any_hexadecimal(64)};
  RC_ASSERT(parse_invitation(to_text(invitation)) == invitation);
  RC_ASSERT(
      parse_invitation(to_text({any_address(), any_address(), "lab", invitation.authority, make_join_token()})).group ==
      "lab");
}

// A line that a terminal has wrapped, or a paste that has ended early. What is cut off from the token is found by the
// coordinator.
TEST(Invitation, NoPartBeforeTheTokenIsALink) {
  const std::string text = to_text(example);
  const std::size_t token = text.find("token=") + std::string("token=").size();
  for (std::size_t size = 0; size <= token; ++size) EXPECT_NE(refusal_of(text.substr(0, size)), "none") << size;
  for (std::size_t size = token + 1; size < text.size(); ++size)
    EXPECT_EQ(parse_invitation(text.substr(0, size)).authority, example.authority);
  for (std::size_t first = 1; first < text.size(); ++first) EXPECT_NE(refusal_of(text.substr(first)), "none") << first;
}

TEST(Invitation, SaysWhatIsMissingOrWrong) {
  EXPECT_EQ(refusal_of(""), "the link to join by must begin with motley://");
  EXPECT_EQ(refusal_of("https://10.0.0.5:4700/lab?token=" + example.token),
            "the link to join by must begin with motley://");
  EXPECT_EQ(refusal_of("motley://10.0.0.5:4700"),
            "the link to join by must have the form motley://HOST:PORT/GROUP?driver=...");
  EXPECT_EQ(refusal_of("motley://10.0.0.5:4700/lab?token=" + example.token),
            "the link to join by lacks `driver`: it is cut off");
  const auto with = [](auto change) {
    Invitation invitation = example;
    change(invitation);
    return refusal_of(to_text(invitation));
  };
  EXPECT_EQ(with([](Invitation& invitation) { invitation.token.clear(); }),
            "the link to join by lacks `token`: it is cut off");
  EXPECT_EQ(with([](Invitation& invitation) { invitation.authority.clear(); }),
            "the link to join by lacks `authority`: it is cut off");
  EXPECT_EQ(with([](Invitation& invitation) { invitation.driver = "10.0.0.5"; }),
            "the link to join by is damaged: \"10.0.0.5\" is not an address");
  EXPECT_THAT(with([](Invitation& invitation) { invitation.coordinator = "10.0.0.5:99999"; }),
              HasSubstr("is not an address"));
  EXPECT_THAT(with([](Invitation& invitation) { invitation.authority.pop_back(); }), HasSubstr("is not a fingerprint"));
  EXPECT_THAT(with([](Invitation& invitation) { invitation.group.clear(); }), HasSubstr("a certificate cannot name"));
  EXPECT_THAT(with([](Invitation& invitation) { invitation.group = std::string(65, 'g'); }),
              HasSubstr("a certificate cannot name"));
  EXPECT_NE(with([](Invitation& invitation) { invitation.token = std::string(1 << 20, 't'); }), "none");
}

// Characters lost, doubled or changed anywhere.
RC_GTEST_PROP(Invitations, DamageIsSurvivedAndShowsNoToken, ()) {
  std::string text = to_text(example);
  for (int change = *rc::gen::inRange(1, 5); change > 0; --change) {
    const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
    switch (*rc::gen::inRange(0, 4)) {
      case 0: text.erase(at, 1); break;
      case 1: text[at] = *rc::gen::arbitrary<char>(); break;
      case 2: text.insert(at, 1, *rc::gen::elementOf(std::string("/?&=:\n "))); break;
      default: text.insert(at, text.substr(at, *rc::gen::inRange<std::size_t>(0, 80))); break;
    }
  }
  refusal_of(text);
}

}  // namespace
}  // namespace motley
