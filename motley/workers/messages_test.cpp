#include "motley/workers/messages.hpp"

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
#include "motley/workers/control_connection.hpp"

namespace motley {
namespace {

template <class T>
T any() {
  return *rc::gen::arbitrary<T>();
}

std::vector<std::int32_t> any_ids() { return any<std::vector<std::int32_t>>(); }

template <class T>
std::vector<T> any_list(T (*make)()) {
  std::vector<T> list(static_cast<std::size_t>(*rc::gen::inRange(0, 4)));
  for (T& item : list) item = make();
  return list;
}

Sampling any_sampling() {
  Sampling s;
  s.temperature = any<float>();
  s.top_p = any<float>();
  s.top_k = any<std::int32_t>();
  s.min_p = any<float>();
  s.presence_penalty = any<float>();
  s.frequency_penalty = any<float>();
  s.seed = any<std::uint64_t>();
  s.logprobs = any<std::int32_t>();
  s.logit_bias = any<std::map<std::int32_t, float>>();
  s.forbidden = any_ids();
  s.generated = any_ids();
  return s;
}

StepSequence any_sequence() {
  StepSequence s;
  s.sequence = any<std::uint64_t>();
  s.position = any<std::int64_t>();
  s.count = any<std::int64_t>();
  s.tokens = any_ids();
  s.blocks = any_ids();
  if (any<bool>()) s.sampling = any_sampling();
  if (any<bool>()) s.scoring = Scoring{any_ids(), any<std::int32_t>()};
  s.stages = any<std::int32_t>();
  return s;
}

TokenLogprob any_logprob() { return {any<std::int32_t>(), any<float>()}; }

SampledToken any_token() {
  return {any<std::uint64_t>(), any<std::int32_t>(), any<float>(), any_list<TokenLogprob>(any_logprob)};
}

SequenceScores any_scores() {
  return {any<std::uint64_t>(), any_list<TokenScore>([] {
            return TokenScore{any<float>(), any_list<TokenLogprob>(any_logprob)};
          })};
}

TrainPass any_pass() {
  return {any<std::int64_t>(), any<bool>() ? TrainPass::Way::forward : TrainPass::Way::backward, any<double>(),
          any<double>()};
}

TrainStepDone any_step_done() {
  TrainStepDone done;
  done.step = any<std::uint64_t>();
  done.loss = any<double>();
  done.grad_norm = any<double>();
  done.update = any<bool>() ? TrainStepDone::Update::done : TrainStepDone::Update::none;
  done.busy_s = any<double>();
  done.exchange_s = any<double>();
  done.update_s = any<double>();
  done.compute_s = any<double>();
  done.activation_bytes = any<std::int64_t>();
  done.passes = any_list<TrainPass>(any_pass);
  return done;
}

Message any_message(std::size_t kind) {
  switch (kind) {
    case 0: return any_launch();
    case 1: return Progress{any<std::string>(), any<double>()};
    case 2:
      return Ready{any<std::int64_t>(), any<std::int64_t>(), any<std::int64_t>(),
                   any<double>(),       any<std::string>(),  any<std::uint64_t>(),
                   any<std::int64_t>(), any<std::int32_t>(), any<std::uint64_t>()};
    case 3: return Failure{any<std::int32_t>(), any<std::string>(), any<std::string>()};
    case 4: return Step{any<std::uint64_t>(), any<std::uint64_t>(), any_list<StepSequence>(any_sequence)};
    case 5:
      return StepResult{any<std::uint64_t>(),
                        any<double>(),
                        any<double>(),
                        any<double>(),
                        any_list<SampledToken>(any_token),
                        any_list<SequenceScores>(any_scores)};
    case 6: return Stop{};
    case 7:
      return Alive{{any<std::uint64_t>(), any<std::uint64_t>(),
                    Doing(*rc::gen::inRange<int>(0, static_cast<int>(Doing::meeting) + 1)), any<std::int32_t>(),
                    any<double>(), any<double>()}};
    case 8:
      return CallDriver{any<std::string>(), any<std::string>(),  any<std::uint64_t>(), any<std::string>(),
                        any<std::string>(), any<std::int32_t>(), any<std::string>(),   any<std::string>(),
                        any<std::string>(), any<std::string>(),  any<std::string>()};
    case 9: return Interrupted{any<std::uint64_t>(), any<std::string>(), any_ids(), any<std::int64_t>()};
    case 10: return Preload{any<std::string>()};
    case 11: return Preloaded{};
    case 12: return TrainLaunch{any<std::string>(), any<std::int64_t>(), any_list<WorkerAddress>(any_address)};
    case 13: return Listening{any<std::string>()};
    case 14: return TrainReady{any<std::int64_t>(), any<std::int64_t>(), any<std::int64_t>(), any<double>()};
    case 15:
      return TrainStep{any<std::uint64_t>(),
                       any<bool>() ? TrainStep::Wanted::update : TrainStep::Wanted::loss,
                       any<double>(),
                       any<std::int64_t>(),
                       any<std::int64_t>(),
                       any_ids(),
                       any_ids()};
    case 16: return any_step_done();
    case 17: return TrainSave{any<std::string>(), any<bool>() ? TrainSave::When::now : TrainSave::When::beside_steps};
    case 18:
      return TrainPart{any<std::string>(),  any<std::int64_t>(), any<std::int64_t>(),
                       any<std::int64_t>(), any<std::int64_t>(), any<std::string>()};
    case 19: return TrainSaved{any<double>()};
    case 20: return LoadStandby{any<std::uint64_t>()};
    default: return StandbyHeld{any<std::uint64_t>(), any<std::int64_t>()};
  }
}

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
  bytes[0] = 11;
  try {
    decode(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a message of protocol version 11, this program speaks 10");
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

}  // namespace
}  // namespace motley
