#include "motley/trainer/layout/train_messages.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <random>

#include "motley/base/error.hpp"
#include "motley/comm/net/any_message_test.hpp"

namespace motley {
namespace {

constexpr std::size_t train_kinds = std::variant_size_v<TrainMessage>;

TrainMessage any_train_message() {
  return AnyValue().any_kind<TrainMessage>(*rc::gen::inRange<std::size_t>(0, train_kinds));
}

// Either a message or a peer error; anything else ends the test.
bool is_train_message(const Message& message) {
  try {
    decode_train(message);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    return false;
  }
}

RC_GTEST_PROP(TrainMessages, ComeBackAsTheyWere, ()) {
  for (std::size_t kind = 0; kind < train_kinds; ++kind) {
    const auto message = AnyValue().any_kind<TrainMessage>(kind);
    RC_ASSERT(message.index() == kind);
    RC_ASSERT(decode_train(decode(encode(encode_train(message)))) == message);
  }
}

RC_GTEST_PROP(TrainMessages, NoPartOfAMessageIsAMessage, ()) {
  const JobMessage whole = encode_train(any_train_message());
  for (std::size_t size = 0; size < whole.bytes.size(); ++size)
    RC_ASSERT(!is_train_message(JobMessage{whole.bytes.substr(0, size)}));
  RC_ASSERT(!is_train_message(JobMessage{whole.bytes + '\0'}));
}

RC_GTEST_PROP(TrainMessages, AChangedByteIsAnErrorOrAnotherMessage, ()) {
  JobMessage message = encode_train(any_train_message());
  for (char& byte : message.bytes) {
    const char before = byte;
    for (const int mask : {0x01, 0x80, 0xff}) {
      byte = static_cast<char>(before ^ mask);
      if (is_train_message(message)) RC_ASSERT(encode_train(decode_train(message)) == message);
    }
    byte = before;
  }
}

TEST(TrainMessages, RandomBytesAreSurvived) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    JobMessage message{std::string(random() % 200, '\0')};
    for (char& byte : message.bytes) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 4);
    if (!message.bytes.empty()) message.bytes[0] = static_cast<char>(random() % train_kinds);
    is_train_message(message);
  }
}

TEST(TrainMessages, LengthsAreNotBelieved) {
  // A TrainSave that promises 4 GiB of text, and a TrainStepDone that promises 16000 passes.
  JobMessage save = encode_train(TrainSave{});
  std::memset(save.bytes.data() + 1, 0xff, 4);
  EXPECT_FALSE(is_train_message(save));
  JobMessage done = encode_train(TrainStepDone{});
  const std::uint32_t promised = 16000;
  std::memcpy(done.bytes.data() + done.bytes.size() - 4, &promised, 4);
  EXPECT_FALSE(is_train_message(done));
}

TEST(TrainMessages, TheLargestPartFits) {
  TrainSlice part{.name = "embedding", .end_row = 1, .bytes = std::string(max_part_bytes, 'x')};
  EXPECT_EQ(decode_train(decode(encode(encode_train(part)))), TrainMessage(part));
  part.bytes += 'x';
  try {
    encode_train(part);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit);
  }
}

TEST(TrainMessages, OtherMessagesAreNoneOfThem) {
  EXPECT_FALSE(is_train_message(Stop{}));
  EXPECT_FALSE(is_train_message(JobMessage{}));
}

}  // namespace
}  // namespace motley
