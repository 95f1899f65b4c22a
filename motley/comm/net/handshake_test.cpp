#include "motley/comm/net/handshake.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/hear_test.hpp"

namespace motley {
namespace {

const LinkHello hello{.group = "g", .epoch = 7, .from = 1, .to = 0, .from_id = "m1", .incarnation = 3};

// What the one who dials makes of one who answers in his own way.
std::string met_by(const LinkHello& said, const std::function<void(ByteStream&)>& other) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  ByteStream mine{FileDescriptor(ends[0])}, theirs{FileDescriptor(ends[1])};
  std::thread thread([&] {
    ByteStream stream = std::move(theirs);  // closed at the end: no peer waits for more
    try {
      other(stream);
    } catch (const Error&) {
      // He has turned the other away: what that hears is what counts.
    }
  });
  std::string outcome;
  try {
    const LinkWelcome welcome = client_handshake(mine, said, "secret", soon());
    outcome = welcome.answer == LinkAnswer::refused ? "refused: " + welcome.cause : "welcome";
  } catch (const Error& error) {
    outcome = error.what();
  }
  thread.join();
  return outcome;
}

std::string met_by(const std::function<void(ByteStream&)>& other) { return met_by(hello, other); }

TEST(Handshake, ThoseThatHaveTheKeyAreBelieved) {
  EXPECT_EQ(met_by([](ByteStream& stream) {
              const HeardHello heard = hear(stream, "secret", soon());
              EXPECT_EQ(heard.hello.from_id, "m1");
              EXPECT_EQ(heard.hello.incarnation, 3U);
              answer(stream, heard, {}, "secret", soon());
            }),
            "welcome");
}

TEST(Handshake, AWelcomeWithoutTheKeyOrFromAnotherTimeIsNone) {
  const std::string impostor = "the other side does not have this group's key";
  EXPECT_EQ(met_by([](ByteStream& stream) { answer(stream, hear(stream, "secret", soon()), {}, "guess", soon()); }),
            impostor);
  EXPECT_EQ(met_by([](ByteStream& stream) {
              HeardHello heard = hear(stream, "secret", soon());
              heard.nonces.back() = static_cast<char>(heard.nonces.back() ^ 1);  // as in an answer that was overheard
              answer(stream, heard, {}, "secret", soon());
            }),
            impostor);
}

TEST(Handshake, AnotherKeyAndAnUnknownPurposeAreRefused) {
  EXPECT_EQ(met_by([](ByteStream& stream) { hear(stream, "other", soon()); }), "refused: not this group's key");
  LinkHello unknown = hello;
  unknown.purpose = static_cast<LinkPurpose>(static_cast<int>(LinkPurpose::control) + 1);
  EXPECT_EQ(met_by(unknown, [](ByteStream& stream) { hear(stream, "secret", soon()); }), "refused: unknown purpose");
  unknown.purpose = LinkPurpose::revoke;
  EXPECT_EQ(met_by(unknown,
                   [](ByteStream& stream) {
                     const HeardHello heard = hear(stream, "secret", soon());
                     EXPECT_EQ(heard.hello.purpose, LinkPurpose::revoke);
                     answer(stream, heard, {}, "secret", soon());
                   }),
            "welcome");
}

// The head of a handshake message as it is on the wire, little-endian: magic, version, length.
std::string headed(std::uint32_t magic, std::uint16_t version, std::uint16_t length) {
  return met_by([&](ByteStream& stream) {
    const std::uint8_t head[] = {static_cast<std::uint8_t>(magic),         static_cast<std::uint8_t>(magic >> 8),
                                 static_cast<std::uint8_t>(magic >> 16),   static_cast<std::uint8_t>(magic >> 24),
                                 static_cast<std::uint8_t>(version),       static_cast<std::uint8_t>(version >> 8),
                                 static_cast<std::uint8_t>(length & 0xff), static_cast<std::uint8_t>(length >> 8)};
    stream.write_all(std::as_bytes(std::span(head)), soon());
    const std::string rest(length, 'x');
    stream.write_all(std::as_bytes(std::span(rest)), soon());
  });
}

TEST(Handshake, MessagesOfAnotherProtocolVersionOrSizeAreRefused) {
  constexpr std::uint32_t magic = 0x4c4c544d;  // "MTLL"
  EXPECT_EQ(headed(magic + 1, 1, 16), "the other side speaks another protocol");
  EXPECT_EQ(headed(magic, 2, 16), "the other side speaks version 2, this program version 1");
  EXPECT_EQ(headed(magic, 1, 4097), "a handshake of 4097 bytes, more than 4096");
  EXPECT_EQ(headed(magic, 1, 15), "a challenge of the wrong size");
}

Epoch epoch_seven() {
  Epoch epoch{.group = "g", .number = 7, .members = {}, .plan_digest = {}};
  for (const char* id : {"m0", "m1", "m2"})
    epoch.members.push_back({.id = id, .incarnation = 3, .host = "h", .address = {}});
  return epoch;
}

// Rank 1 calls rank 0.
TEST(Objection, OlderAndNewerEpochsAndIncarnationsAreNotThisOne) {
  const auto to_change = [&](auto change) {
    LinkHello changed = hello;
    change(changed);
    return objection(changed, epoch_seven(), 0, "");
  };
  EXPECT_EQ(objection(hello, epoch_seven(), 0, ""), "");
  EXPECT_EQ(objection(hello, epoch_seven(), 0, "m1"), "");
  EXPECT_EQ(objection(hello, epoch_seven(), 0, "m2"), "the certificate names \"m2\", not \"m1\"");
  EXPECT_EQ(objection(hello, epoch_seven(), 2, ""), "this is rank 2, not 0");
  EXPECT_EQ(to_change([](LinkHello& h) { h.epoch = 6; }), "epoch 6 is not 7");
  EXPECT_EQ(to_change([](LinkHello& h) { h.epoch = 8; }), "epoch 8 is not 7");
  EXPECT_EQ(to_change([](LinkHello& h) { h.group = "other"; }), "group \"other\" is not \"g\"");
  EXPECT_EQ(to_change([](LinkHello& h) { h.from = 0; }), "no rank 0 may call") << "no rank calls itself";
  EXPECT_EQ(to_change([](LinkHello& h) { h.from = 3; }), "no rank 3 may call");
  EXPECT_EQ(to_change([](LinkHello& h) { h.from = 2; }), "rank 2 of epoch 7 is \"m2\", not \"m1\"");
  for (const std::uint64_t other : {2, 4})
    EXPECT_EQ(to_change([&](LinkHello& h) { h.incarnation = other; }),
              "incarnation " + std::to_string(other) + " of \"m1\" is not 3, the one in epoch 7");
}

TEST(Objection, TheCertificateOfAMachineVouchesForItsDevices) {
  EXPECT_TRUE(vouches_for("box", "box"));
  EXPECT_TRUE(vouches_for("box", "box/0"));
  EXPECT_TRUE(vouches_for("box/0", "box/0"));
  for (const char* other : {"boxer", "boxer/0", "bo", "", "/box", "attic/box", "Box/0"})
    EXPECT_FALSE(vouches_for("box", other)) << other;
  EXPECT_FALSE(vouches_for("box/0", "box"));
  EXPECT_FALSE(vouches_for("box/0", "box/01"));
  for (const char* id : {"", "/", "/0", "box", "box/0"}) EXPECT_FALSE(vouches_for("", id)) << id;

  LinkHello device = hello;
  device.from_id = "m1/0";
  Epoch epoch = epoch_seven();
  epoch.members[1].id = "m1/0";
  EXPECT_EQ(objection(device, epoch, 0, "m1"), "");
  EXPECT_EQ(objection(device, epoch, 0, "m1/0"), "");
  EXPECT_EQ(objection(device, epoch, 0, "m1/1"), "the certificate names \"m1/1\", not \"m1/0\"");
}

}  // namespace
}  // namespace motley
