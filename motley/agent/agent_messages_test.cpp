#include "motley/agent/agent_messages.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <random>

#include "motley/base/error.hpp"
#include "motley/comm/net/any_message_test.hpp"

namespace motley {
namespace {

ChunkId any_chunk() { return {*rc::gen::arbitrary<std::uint32_t>(), *rc::gen::arbitrary<std::uint32_t>()}; }

constexpr std::size_t agent_kinds = std::variant_size_v<AgentMessage>;

AgentMessage any_agent_message(std::size_t kind) { return AnyValue().any_kind<AgentMessage>(kind); }
AgentMessage any_agent_message() { return any_agent_message(*rc::gen::inRange<std::size_t>(0, agent_kinds)); }

// Either a message or a peer error; anything else ends the test.
template <class Decode>
bool is_read(const Decode& decode) {
  try {
    decode();
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    return false;
  }
}
bool is_agent_message(std::string_view bytes) {
  return is_read([&] { decode_agent(bytes); });
}
bool is_request(std::string_view bytes) {
  return is_read([&] { decode_request(bytes); });
}

RC_GTEST_PROP(AgentMessages, ComeBackAsTheyWere, ()) {
  for (std::size_t kind = 0; kind < agent_kinds; ++kind) {
    const AgentMessage message = any_agent_message(kind);
    RC_ASSERT(message.index() == kind);
    RC_ASSERT(decode_agent(encode_agent(message)) == message);
  }
  const ChunkRequest request{any_chunk()};
  RC_ASSERT(decode_request(encode_request(request)) == request);
}

RC_GTEST_PROP(AgentMessages, NoPartOfAMessageIsAMessage, ()) {
  const std::string bytes = encode_agent(any_agent_message());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    RC_ASSERT(!is_agent_message(std::string_view(bytes).substr(0, size)));
  RC_ASSERT(!is_agent_message(bytes + '\0'));
  const std::string request = encode_request({any_chunk()});
  for (std::size_t size = 0; size < request.size(); ++size)
    RC_ASSERT(!is_request(std::string_view(request).substr(0, size)));
  RC_ASSERT(!is_request(request + '\0'));
}

RC_GTEST_PROP(AgentMessages, AChangedByteIsAnErrorOrAnotherMessage, ()) {
  std::string bytes = encode_agent(any_agent_message());
  for (char& byte : bytes) {
    const char before = byte;
    for (const int mask : {0x01, 0x80, 0xff}) {
      byte = static_cast<char>(before ^ mask);
      // What is understood at all is the message that these bytes mean, and no other.
      if (is_agent_message(bytes)) RC_ASSERT(encode_agent(decode_agent(bytes)) == bytes);
    }
    byte = before;
  }
}

TEST(AgentMessages, RandomBytesAreSurvived) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 4);
    if (!bytes.empty()) bytes[0] = static_cast<char>(random() % agent_kinds);
    is_agent_message(bytes);
    is_request(bytes);
  }
}

TEST(AgentMessages, LengthsAreNotBelieved) {
  // A device's name of 4 GiB, and a million chunks; more digests than there are.
  std::string end = encode_agent(EndWorker{"box/0", 1});
  std::memset(end.data() + 1, 0xff, 4);
  EXPECT_FALSE(is_agent_message(end));
  std::string start = encode_agent(StartWorker{"box/0", 1, {}});
  const std::uint32_t promised = 1'000'000;
  std::memcpy(start.data() + start.size() - 4, &promised, 4);
  EXPECT_FALSE(is_agent_message(start));
  std::string weights = encode_agent(Weights{{"", {{"a", 1, 0, {ChunkDigest{}}}}}});
  const std::uint32_t two = 2;
  std::memcpy(weights.data() + weights.size() - sizeof(ChunkDigest) - 4, &two, 4);
  EXPECT_FALSE(is_agent_message(weights));
}

TEST(AgentMessages, CarryWhatAWorkerSaysOfItsEnd) {
  const std::string words(64 << 10, 'w');  // as long as a Failure's
  EXPECT_EQ(decode_agent(encode_agent(WorkerEnded{"box/0", 1, 0, 5, words})),
            AgentMessage(WorkerEnded{"box/0", 1, 0, 5, words}));
}

TEST(AgentMessages, TooLargeIsRefusedBeforeItIsSent) {
  for (const AgentMessage& message :
       {AgentMessage(EndWorker{std::string(1 << 20, 'x'), 1}),
        AgentMessage(Weights{{"", {{"a", 0, 0, {}}, {"b", 0, 0, std::vector<ChunkDigest>((1 << 20) + 1)}}}}),
        AgentMessage(AgentReport{std::vector<OfferedDevice>(1000)})})
    try {
      encode_agent(message);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::limit);
    }
}

}  // namespace
}  // namespace motley
