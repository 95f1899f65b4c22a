#include "motley/workers/worker_messages.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/net/any_message_test.hpp"
#include "motley/workers/control_connection.hpp"

namespace motley {
namespace {

Message any_message(std::size_t kind) { return AnyValue().any_kind<Message>(kind); }

Message any_message() { return any_message(*rc::gen::inRange<std::size_t>(0, std::variant_size_v<Message>)); }

// Either a message or a peer error; anything else ends the test.
bool decodes(std::string_view bytes) {
  try {
    decode(bytes);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    return false;
  }
}

RC_GTEST_PROP(Messages, ComeBackAsTheyWere, ()) {
  for (std::size_t kind = 0; kind < std::variant_size_v<Message>; ++kind) {
    const Message message = any_message(kind);
    RC_ASSERT(message.index() == kind);
    RC_ASSERT(decode(encode(message)) == message);
  }
}

RC_GTEST_PROP(Messages, NoPartOfAMessageIsAMessage, ()) {
  const std::string bytes = encode(any_message());
  for (std::size_t size = 0; size < bytes.size(); ++size) RC_ASSERT(!decodes(std::string_view(bytes).substr(0, size)));
  RC_ASSERT(!decodes(bytes + '\0'));
}

RC_GTEST_PROP(Messages, AChangedByteIsAnErrorOrAnotherMessage, ()) {
  std::string bytes = encode(any_message());
  for (char& byte : bytes) {
    const char before = byte;
    for (const int mask : {0x01, 0x80, 0xff}) {
      byte = static_cast<char>(before ^ mask);
      // What is understood at all is the message that these bytes mean, and no other.
      if (decodes(bytes)) RC_ASSERT(encode(decode(bytes)) == bytes);
    }
    byte = before;
  }
}

TEST(Messages, RandomBytesAreSurvived) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 4);
    if (bytes.size() >= 2) {
      bytes[0] = encode(Stop{})[0];
      bytes[1] = static_cast<char>(random() % std::variant_size_v<Message>);
    }
    decodes(bytes);
  }
}

TEST(Messages, LengthsAreNotBelieved) {
  // A Failure that promises 4 GiB of text, and a Step that promises 60000 sequences.
  std::string failure = encode(Failure{5, "gone", ""});
  std::memset(failure.data() + 6, 0xff, 4);
  EXPECT_FALSE(decodes(failure));
  std::string step = encode(Step{1, 0, {}});
  const std::uint32_t promised = 60000;
  std::memcpy(step.data() + step.size() - 4, &promised, 4);
  EXPECT_FALSE(decodes(step));
  EXPECT_FALSE(decodes(std::string(max_message_bytes + 1, '\1')));
}

TEST(Messages, TooLargeIsRefusedBeforeItIsSent) {
  try {
    encode(Progress{std::string(1 << 20, 'x'), 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit);
  }
}

TEST(Messages, AnotherVersionIsNamed) {
  std::string bytes = encode(Stop{});
  bytes[0] = 14;
  try {
    decode(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a message of protocol version 14, this program speaks 13");
  }
}

class Connection : public ::testing::Test {
 protected:
  Connection() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    left = std::make_unique<ControlConnection>(ends[0]);
    right = std::make_unique<ControlConnection>(ends[1]);
  }
  std::unique_ptr<ControlConnection> left, right;
};

TEST_F(Connection, CarriesLargeMessagesFromSeveralThreads) {
  Launch launch;
  launch.plan_json.assign(3 << 20, 'p');
  const Message large = launch;
  constexpr int senders = 3, rounds = 5;
  std::vector<std::thread> threads;
  for (int i = 0; i < senders; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) {
        left->send(large);
        left->send(Stop{});
      }
    });
  int launches = 0, stops = 0;
  for (int i = 0; i < 2 * senders * rounds; ++i) {
    const auto message = right->receive();
    ASSERT_TRUE(message.has_value());
    if (std::holds_alternative<Stop>(*message))
      ++stops;
    else if (*message == large)
      ++launches;
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(launches, senders * rounds);
  EXPECT_EQ(stops, senders * rounds);
}

TEST_F(Connection, AnOrderlyEndIsNoMessage) {
  left->send(Stop{});
  left.reset();
  EXPECT_EQ(right->receive(), Message(Stop{}));
  EXPECT_EQ(right->receive(), std::nullopt);
  EXPECT_THROW(right->send(Stop{}), Error);  // and no signal
}

TEST_F(Connection, AnEndInsideAMessageIsAnError) {
  const std::string length("\x10\0\0\0abc", 7);
  ASSERT_EQ(::send(left->descriptor(), length.data(), length.size(), 0), 7);
  left.reset();
  EXPECT_THROW(right->receive(), Error);
}

TEST_F(Connection, AMonstrousLengthIsRefused) {
  ASSERT_EQ(::send(left->descriptor(), "\xff\xff\xff\xff", 4, 0), 4);
  EXPECT_THROW(right->receive(), Error);
}

TEST(Messages, AFailureKeepsItsCodeWhereThatIsOne) {
  EXPECT_EQ(error_of(Failure{2, "no such file", "give another"}).code(), ErrorCode::input);
  EXPECT_EQ(error_of(Failure{2, "no such file", "give another"}).hint(), "give another");
  for (const std::int32_t unknown : {0, -1, 6, 70, 1 << 30})
    EXPECT_EQ(error_of(Failure{unknown, "gone", ""}).code(), ErrorCode::internal) << unknown;
}

}  // namespace
}  // namespace motley
