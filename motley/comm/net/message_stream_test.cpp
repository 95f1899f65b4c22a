#include "motley/comm/net/message_stream.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/authority/authority.hpp"
#include "motley/comm/net/deadline_test.hpp"

namespace motley {
namespace {

constexpr std::size_t largest = 1 << 20;

std::string frame_of(std::string_view message) {
  const auto length = static_cast<std::uint32_t>(message.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + std::string(message);
}

void put(FrameReader& reader, std::string_view bytes) {
  const auto space = reader.space(bytes.size());
  std::memcpy(space.data(), bytes.data(), bytes.size());
  reader.arrived(bytes.size());
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(FrameReader, SplitFramesAreWholeOnce) {
  const std::string bytes = frame_of("one") + frame_of("") + frame_of(std::string(5000, 'x'));
  for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, bytes.size()}) {
    FrameReader reader(largest);
    std::vector<std::string> messages;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      put(reader, std::string_view(bytes).substr(at, piece));
      while (const auto message = reader.next()) messages.emplace_back(*message);
    }
    EXPECT_EQ(messages, (std::vector<std::string>{"one", "", std::string(5000, 'x')})) << piece;
    EXPECT_FALSE(reader.inside_message());
  }
}

TEST(FrameReader, SaysHowMuchIsMissing) {
  FrameReader reader(largest);
  EXPECT_EQ(reader.missing(), 4U);
  put(reader, std::string_view("\x05\0", 2));
  EXPECT_EQ(reader.missing(), 2U);
  EXPECT_TRUE(reader.inside_message());
  put(reader, std::string_view("\0\0", 2));
  EXPECT_EQ(reader.missing(), 5U);
  put(reader, "hello an");
  EXPECT_EQ(reader.missing(), 0U);
  EXPECT_TRUE(reader.ready());
  EXPECT_EQ(reader.next(), "hello");
  EXPECT_EQ(reader.next(), std::nullopt);
}

TEST(FrameReader, ATooLongMessageIsRefusedByItsLength) {
  FrameReader reader(100);
  put(reader, frame_of(std::string(100, 'x')) + frame_of(std::string(101, 'y')).substr(0, 4));
  EXPECT_TRUE(reader.next().has_value());
  EXPECT_TRUE(reader.ready());
  EXPECT_EQ(error_of([&] { (void)reader.next(); }), "malformed message: a length of 101 bytes, more than 100");
  reader.set_largest(101);
  EXPECT_EQ(reader.next(), std::nullopt);
  EXPECT_EQ(reader.missing(), 101U);
}

TEST(FrameWriter, SendsHeadAndBodyInAnyPieces) {
  const std::vector<std::byte> body(10, std::byte{'b'});
  for (const std::size_t piece : {1, 3, 100}) {
    auto owner = std::make_shared<int>(0);
    const std::weak_ptr<int> kept = owner;
    FrameWriter writer(largest);
    writer.push("head", body, std::move(owner));
    writer.push("");
    EXPECT_EQ(writer.messages(), 2U);
    std::string sent;
    while (!writer.empty()) {
      EXPECT_EQ(kept.expired(), writer.messages() == 1);
      const auto next = writer.next().first(std::min(piece, writer.next().size()));
      sent.append(reinterpret_cast<const char*>(next.data()), next.size());
      writer.sent(next.size());
    }
    EXPECT_EQ(sent, frame_of("headbbbbbbbbbb") + frame_of(""));
  }
}

TEST(FrameWriter, ATooLongMessageIsNotSent) {
  FrameWriter writer(5);
  EXPECT_EQ(error_of([&] { writer.push("head", std::as_bytes(std::span("b", 2))); }),
            "a message would have 6 bytes, more than 5");
  EXPECT_TRUE(writer.empty());
}

// Two ends of a connection, plain and under TLS; with small buffers, so that long messages do not fit.
class MessageStreams : public ::testing::TestWithParam<bool> {
 protected:
  MessageStreams() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    const int bytes = 8 << 10;
    for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    left = ByteStream(FileDescriptor(ends[0]));
    right = ByteStream(FileDescriptor(ends[1]));
    if (!GetParam()) return;
    const Authority authority = Authority::create("test");
    const TlsContext client(authority.issue("left")), server(authority.issue("right"));
    auto accepted = std::async(std::launch::async, [&] { right.secure_as_server(server, soon()); });
    left.secure_as_client(client, soon());
    accepted.get();
  }

  static std::optional<std::string> wait_for_message(MessageStream& stream) {
    for (;;) {
      if (const auto message = stream.receive()) return std::string(*message);
      if (stream.ended()) return std::nullopt;
      if (!stream.pending() && !wait_for(stream.descriptor(), POLLIN, soon())) return "nothing came";
    }
  }

  ByteStream left, right;
};
INSTANTIATE_TEST_SUITE_P(, MessageStreams, ::testing::Values(false, true),
                         [](const auto& each) { return each.param ? "tls" : "plain"; });

TEST_P(MessageStreams, WhatDoesNotFitGoesLaterAndNothingWaits) {
  MessageStream sender(std::move(left), largest), receiver(std::move(right), largest);
  EXPECT_EQ(receiver.receive(), std::nullopt);
  EXPECT_FALSE(receiver.ended());
  const std::vector<std::string> messages{std::string(largest, 'a'), "", "short", std::string(100'000, 'b')};
  for (const std::string& message : messages) sender.send(message);
  EXPECT_FALSE(sender.flushed());
  EXPECT_EQ(sender.events(), POLLIN | POLLOUT);
  EXPECT_EQ(sender.queued_messages(), messages.size());
  std::vector<std::string> received;
  while (received.size() < messages.size()) {
    sender.flush();
    while (const auto message = receiver.receive()) received.emplace_back(*message);
  }
  EXPECT_EQ(received, messages);
  EXPECT_TRUE(sender.flushed());
  EXPECT_EQ(sender.events(), POLLIN);
  EXPECT_EQ(receiver.received_bytes(), largest + 100'005 + 4 * 4);
}

// As a pace does that several connections share: less is allowed when the network takes bytes again.
TEST_P(MessageStreams, LessMayBeAllowedLater) {
  MessageStream sender(std::move(left), largest), receiver(std::move(right), largest);
  const std::string message(largest, 'x');
  sender.queue(message);
  std::optional<std::string> received;
  for (std::size_t turn = 0; !received; ++turn) {
    sender.flush(turn % 3 == 0 ? 50'000 : 1000);
    if (turn % 2 == 0) continue;
    if (const auto whole = receiver.receive(20'000)) received.emplace(*whole);
  }
  EXPECT_FALSE(sender.lost()) << sender.cause();
  EXPECT_EQ(received, message);
}

TEST_P(MessageStreams, SeveralMessagesOfOneReadArePending) {
  MessageStream sender(std::move(left), largest), receiver(std::move(right), largest);
  sender.send("one");
  sender.send("two");
  EXPECT_EQ(wait_for_message(receiver), "one");
  while (!receiver.pending()) ASSERT_TRUE(wait_for(receiver.descriptor(), POLLIN, soon()));
  EXPECT_EQ(receiver.receive(), "two");
  EXPECT_FALSE(receiver.pending());
}

// Around a turn's bytes: what TLS has decrypted, or only taken from the socket, when the turn ends.
TEST_P(MessageStreams, WhatATurnLeavesIsAnnouncedOrPending) {
  MessageStream sender(std::move(left), largest), receiver(std::move(right), largest);
  for (std::size_t size = ReadingTurn::most_bytes - 40; size < ReadingTurn::most_bytes + 40; ++size) {
    const std::vector<std::string> messages{std::string(size, 'a'), "short", "last"};
    for (const std::string& message : messages) sender.queue(message);
    std::vector<std::string> received;
    for (sender.flush(); received.size() < messages.size(); sender.flush()) {
      ASSERT_TRUE(receiver.pending() || wait_for(receiver.descriptor(), POLLIN, soon())) << size << " bytes";
      for (ReadingTurn turn(receiver); const auto message = turn.next();) received.emplace_back(*message);
    }
    ASSERT_EQ(received, messages) << size;
    ASSERT_FALSE(receiver.pending()) << size;
  }
}

// Half a record does not keep from waiting: its rest is announced.
TEST_P(MessageStreams, PartOfARecordIsNotPending) {
  const int to = right.descriptor();
  MessageStream sender(std::move(left), largest), receiver(std::move(right), largest);
  sender.send(std::string(5000, 'x'));
  while (!wait_for(to, POLLIN, soon())) {
  }
  EXPECT_EQ(wait_for_message(receiver), std::string(5000, 'x'));
  sender.send(std::string(30'000, 'y'));  // more than the socket takes
  EXPECT_FALSE(sender.flushed());
  EXPECT_EQ(receiver.receive(), std::nullopt);
  EXPECT_FALSE(receiver.pending());
  for (std::optional<std::string_view> message; !message; message = receiver.receive()) sender.flush();
}

TEST_P(MessageStreams, AnEndBetweenMessagesIsReportedAfterThem) {
  MessageStream sender(std::move(left), largest), receiver(std::move(right), largest);
  sender.send("last words");
  sender.close();
  EXPECT_TRUE(sender.ended());
  EXPECT_EQ(wait_for_message(receiver), "last words");
  EXPECT_EQ(wait_for_message(receiver), std::nullopt);
  EXPECT_TRUE(receiver.ended());
  EXPECT_NE(receiver.cause(), "");
  receiver.send("too late");
  EXPECT_TRUE(receiver.flushed());
}

// A write to a connection whose other end has gone must not lose what that end said before.
TEST_P(MessageStreams, AWriteThatFailsLeavesWhatHadArrived) {
  MessageStream sender(std::move(left), largest), receiver(std::move(right), largest);
  sender.send("last words");
  sender.close();
  receiver.send("too late");
  receiver.send("too late");
  EXPECT_TRUE(receiver.flushed());
  EXPECT_EQ(wait_for_message(receiver), "last words");
  EXPECT_EQ(wait_for_message(receiver), std::nullopt);
  EXPECT_TRUE(receiver.lost());
}

TEST_P(MessageStreams, AnEndInsideAMessageIsAnError) {
  const std::string bytes = frame_of("whole") + frame_of("not whole").substr(0, 8);
  left.write_all(std::as_bytes(std::span(bytes)), soon());
  left.close();
  MessageStream receiver(std::move(right), largest);
  EXPECT_EQ(wait_for_message(receiver), "whole");
  EXPECT_TRUE(error_of([&] { wait_for_message(receiver); }).starts_with("the connection ended inside a message: "));
  EXPECT_TRUE(receiver.ended());
}

TEST_P(MessageStreams, ALengthAboveTheMaximumIsAnError) {
  left.write_all(std::as_bytes(std::span("\xff\xff\xff\xff", 4)), soon());
  MessageStream receiver(std::move(right), largest);
  EXPECT_EQ(error_of([&] { wait_for_message(receiver); }),
            "malformed message: a length of 4294967295 bytes, more than 1048576");
}

TEST_P(MessageStreams, TheMaximumMayGrowOnceTheOtherSideIsKnown) {
  MessageStream sender(std::move(left), largest), receiver(std::move(right), 10);
  sender.send("hello");
  sender.send("longer than ten bytes");
  EXPECT_EQ(wait_for_message(receiver), "hello");
  receiver.accept_up_to(largest);
  EXPECT_EQ(wait_for_message(receiver), "longer than ten bytes");
  EXPECT_EQ(error_of([&] { receiver.send("longer than ten bytes"); }), "a message would have 21 bytes, more than 10");
}

TEST_P(MessageStreams, SeveralThreadsSendLongMessages) {
  BlockingMessageStream sender(std::move(left), largest), receiver(std::move(right), largest);
  constexpr int senders = 3, rounds = 4;
  std::vector<std::jthread> threads;
  for (int i = 0; i < senders; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) sender.send(std::string(300'000, static_cast<char>('a' + i)));
    });
  std::array<int, senders> received{};
  for (int i = 0; i < senders * rounds; ++i) {
    const auto message = receiver.receive(soon());
    ASSERT_TRUE(message && message->size() == 300'000);
    EXPECT_EQ(message->find_first_not_of(message->front()), std::string_view::npos);
    ++received.at(static_cast<std::size_t>(message->front() - 'a'));
  }
  EXPECT_EQ(received, (std::array<int, senders>{rounds, rounds, rounds}));
}

// Both directions are full: each side must read while its own message waits for room.
TEST_P(MessageStreams, BothSidesSendAtOnce) {
  BlockingMessageStream one(std::move(left), largest), other(std::move(right), largest);
  const std::string message(largest, 'x');
  const std::jthread sending([&] { one.send(message); }), answering([&] { other.send(message); });
  auto answer = std::async(std::launch::async, [&] { return one.receive(soon()) == message; });
  EXPECT_EQ(other.receive(soon()), message);
  EXPECT_TRUE(answer.get());
}

TEST_P(MessageStreams, WaitingHasADeadline) {
  BlockingMessageStream one(std::move(left), largest), other(std::move(right), largest);
  EXPECT_EQ(error_of([&] { one.receive(deadline_in(0.01)); }), "no answer in time");
  EXPECT_EQ(error_of([&] { one.send(std::string(largest, 'x'), deadline_in(0.01)); }), "no room to send in time");
}

TEST_P(MessageStreams, TheEndIsNoMessageAndSendingThenIsAnError) {
  BlockingMessageStream receiver(std::move(right), largest);
  {
    BlockingMessageStream sender(std::move(left), largest);
    sender.send("last words");
  }
  EXPECT_EQ(receiver.receive(soon()), "last words");
  EXPECT_EQ(receiver.receive(soon()), std::nullopt);
  EXPECT_TRUE(error_of([&] { receiver.send("too late"); }).starts_with("the connection is lost: "));
}

}  // namespace
}  // namespace motley
