// The agents' port among clients that mean harm: silent, slow, malformed, flooding, not reading, many. What they take
// of the driver's process is bounded, and an honest member stays.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "motley/base/proc_value.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/fleet/hand_agent_test.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct ProcessUse {
  std::ptrdiff_t descriptors = 0;
  long threads = 0, memory_kib = 0;
};

ProcessUse use_now() {
  const auto number = [](const char* key) {
    return std::atol(proc_value("/proc/self/status", key).value_or("0").c_str());
  };
  return {.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}),
          .threads = number("Threads"),
          .memory_kib = number("VmRSS")};
}

class HostileAgentsTest : public ::testing::Test {
 protected:
  HostileAgentsTest() {
    honest_.emplace(machines_, "honest").report();
    listener_ = std::jthread([this](const std::stop_token& stop) {
      try {
        while (!stop.stop_requested()) {
          if (!honest_->stream().receive(soon())) break;
          honest_->send(AgentAlive{});
        }
      } catch (const Error& error) {
        trouble_ = error.what();
      }
    });
    while (machines_.list().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    before_ = use_now();
  }
  ~HostileAgentsTest() override {
    listener_.request_stop();
    listener_.join();
    EXPECT_EQ(trouble_, "") << "an honest member's";
    for (const std::string& line : told_.lines()) EXPECT_THAT(line, Not(HasSubstr("lost: honest")));
    while (machines_.list().size() > 1 && seconds_until(until_) > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(machines_.list().size(), 1u);
    // Another one still comes in.
    HandAgent late(machines_, "late");
    late.report();
    while (machines_.list().size() < 2 && seconds_until(until_) > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(machines_.list().size(), 2u);
  }

  std::vector<ByteStream> connections(int count) const {
    std::vector<ByteStream> all;
    ConnectFailure failure;
    for (int i = 0; i < count; ++i)
      if (FileDescriptor socket = connect_tcp(machines_.address(), soon(), failure))
        all.emplace_back(std::move(socket));
    return all;
  }
  static void say(ByteStream& stream, const std::string& bytes) {
    try {
      stream.write_all(std::as_bytes(std::span(bytes)), soon());
    } catch (const Error&) {
      // The driver has hung up.
    }
  }
  // Sends it again and again. True: the driver has hung up.
  static bool is_hung_up_on(HandAgent& agent, const std::string& message, std::size_t most_messages) {
    try {
      for (std::size_t i = 0; i < most_messages; ++i) agent.stream().send(message, soon());
    } catch (const Error&) {
      return true;
    }
    return agent.has_ended();
  }
  // Waits for what the driver does by itself.
  void expect_as_before() const {
    ProcessUse now = use_now();
    for (;
         (now.descriptors > before_.descriptors + 4 || now.threads > before_.threads + 4) && seconds_until(until_) > 0;
         now = use_now()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      connections(1);  // ended threads may wait for the next caller
    }
    EXPECT_LE(now.descriptors, before_.descriptors + 4);
    EXPECT_LE(now.threads, before_.threads + 4);
    EXPECT_LE(now.memory_kib, before_.memory_kib + 200 * 1024);
  }
  std::string refusal_of(const std::string& name) const {
    try {
      HandAgent(machines_, name);
      return "welcome";
    } catch (const Error& error) {
      return error.what();
    }
  }

  const Instant until_ = deadline_in(60);
  ToldLines told_;
  AgentMachines machines_{
      {.listen = "127.0.0.1:0",
       .access = with_secret,
       .silence_s = 15,
       .report = [this](const std::string& what, const std::string& detail) { told_(what, detail); }}};
  std::optional<HandAgent> honest_;
  std::string trouble_;
  std::jthread listener_;
  ProcessUse before_;
};

TEST_F(HostileAgentsTest, SilentAndSlow) {
  std::vector<ByteStream> silent = connections(300), slow = connections(20);
  for (int i = 0; i < 5; ++i)
    for (ByteStream& stream : slow) say(stream, "M");
  EXPECT_LE(use_now().threads, before_.threads + 80) << "handshakes are bounded";
  // The driver ends them: they said nothing in time.
  for (std::vector<ByteStream>* strangers : {&silent, &slow})
    for (ByteStream& stream : *strangers) {
      std::array<std::byte, 64> bytes{};
      try {
        for (const Instant until = soon();;) stream.read_all(std::span(bytes).first(1), until);
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), Not(HasSubstr("in time")));
      }
    }
  silent.clear();
  slow.clear();
  expect_as_before();
}

TEST_F(HostileAgentsTest, Malformed) {
  std::vector<ByteStream> strangers = connections(40);
  for (std::size_t i = 0; i < strangers.size(); ++i)
    say(strangers[i], i % 2 == 0 ? std::string(2000, static_cast<char>(i))
                                 : std::string("MTLL\1\0\xff\xff", 8) + std::string(100, 'x'));
  strangers.clear();
  const std::string report = encode_agent(AgentReport{{some_device}});
  int number = 0;
  std::vector<std::string> messages{"", "\xff", std::string(100'000, '\0'), report + "x", report.substr(0, 20)};
  std::string many = report;
  many[1] = '\xff';  // devices
  messages.push_back(many);
  for (const std::string& message : messages) {
    HandAgent agent(machines_, fmt::format("m{}", ++number));
    agent.stream().send(message, soon());
    EXPECT_TRUE(agent.has_ended());
    EXPECT_THAT(refusal_of(fmt::format("m{}", number)), HasSubstr("it broke the protocol, and may come again in"));
  }
  // A length that is announced costs nothing.
  ByteStream stream = call_service(machines_.address(), HandAgent::hello(agents_service, "long", this_version + " 1"),
                                   with_secret, soon());
  say(stream, "\xff\xff\xff\x01");
  say(stream, "some");
  expect_as_before();
}

TEST_F(HostileAgentsTest, Flooding) {
  HandAgent alive(machines_, "alive"), reports(machines_, "reports"), large(machines_, "large");
  EXPECT_TRUE(is_hung_up_on(alive, encode_agent(AgentAlive{}), 2'000'000));
  EXPECT_TRUE(is_hung_up_on(reports, encode_agent(AgentReport{{some_device}}), 2'000'000));
  EXPECT_TRUE(is_hung_up_on(large, encode_agent(ProbedLinks{1, std::vector<ProbedLink>(200'000), ""}), 100));
  for (const std::string name : {"alive", "reports", "large"})
    EXPECT_THAT(refusal_of(name), HasSubstr("it sends more than 500 messages or 4.00 MiB a second"));
  EXPECT_LT(told_.lines().size(), 12u) << "what is said again is not told again";
  expect_as_before();
}

TEST_F(HostileAgentsTest, Many) {
  for (int round = 0; round < 10; ++round) connections(100);
  for (int i = 0; i < 100; ++i) HandAgent(machines_, fmt::format("m{}", i)).report();
  while (machines_.list().size() > 1 && seconds_until(until_) > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  expect_as_before();
}

// What waits for a member that does not read is the newest word on the others' weights, not each.
TEST_F(HostileAgentsTest, NotReading) {
  constexpr std::uint32_t chunks = 2 * max_held_ranges + 1;
  ModelManifest manifest;
  manifest.files.push_back({"model.safetensors", chunks * chunk_bytes, 100, std::vector<ChunkDigest>(chunks)});
  machines_.offer_weights(manifest, "/nowhere");
  HandAgent deaf(machines_, "deaf"), first(machines_, "first"), second(machines_, "second");
  for (HandAgent* agent : {&deaf, &first, &second}) agent->send(AgentReport{{some_device}, "", "127.0.0.1:7"});
  HeldChunks held;
  for (std::uint32_t i = 0; i < max_held_ranges; ++i) held.chunks.push_back({0, 2 * i, 2 * i + 1});
  second.send(held);
  const auto hears_newest = [&](HandAgent& agent) {
    for (int heard = 1;; ++heard)
      for (const WeightsSource& source : agent.receive_sources().sources)
        if (source.name == "first" && source.chunks == held.chunks) return heard;
  };
  constexpr int changes = 12;
  for (int i = 0; i < changes; ++i) {
    held.chunks.back().end = held.chunks.back().first + (i % 2 == 0 ? 2 : 1);
    first.send(held);
    hears_newest(second);
    for (HandAgent* agent : {&deaf, &second}) agent->send(AgentAlive{});
  }
  EXPECT_LT(hears_newest(deaf), changes - 2) << "of 1.6 MB each";
}

}  // namespace
}  // namespace motley
