// Pulls over loopback from good, lost, corrupt and lying peers.
#include "motley/comm/state/state_transfer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include "motley/comm/authority/authority.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/state/state_model_test.hpp"

namespace motley {
namespace {

using namespace state_test;
using ::testing::HasSubstr;

// Of memory that a transfer writes meanwhile, in another thread: on purpose not in order with it.
[[gnu::no_sanitize("thread"), gnu::noinline]] std::byte glance(const std::byte& byte) {
  return *const_cast<const volatile std::byte*>(&byte);
}

TEST(StateTransfer, PullsFromSeveralPeersAtOnce) {
  const Members members(3);
  Model mine(9);
  const auto outcome = pull_into(mine, members, members.peers());
  EXPECT_TRUE(outcome.complete) << outcome.cause;
  EXPECT_EQ(outcome.revision, (StateRevision{3, 17}));
  EXPECT_EQ(mine.items, members.model.items);
  EXPECT_EQ(outcome.peers.size(), 3u);
  for (const auto& [name, report] : outcome.peers) EXPECT_EQ(report.fault, "") << name;
  const auto again = pull_into(mine, members, members.peers());
  EXPECT_TRUE(again.complete);
  EXPECT_EQ(again.pulled_bytes, 0);
  EXPECT_EQ(again.kept_bytes, members.snapshot.manifest.bytes());
}

TEST(StateTransfer, NamesTheCorruptPeerAndTakesTheRestFromOthers) {
  // Slower than the corrupt one, who is asked in any case.
  const Members members(2, {.group = "g", .bytes_per_s = 40e6});
  StateSource corrupt(StateListener("127.0.0.1:0"), {.group = "g"});
  auto damaged = take_snapshot({3, 17}, members.model.read());
  for (const auto& item : damaged.items)
    for (const std::byte& byte : item) const_cast<std::byte&>(byte) ^= std::byte{1};
  corrupt.publish(damaged);  // under the manifest of the undamaged
  auto peers = members.peers();
  peers.insert(peers.begin(), peer_at("corrupt", corrupt.address()));
  Model mine(9);
  const auto outcome = pull_into(mine, members, peers);
  EXPECT_TRUE(outcome.complete) << outcome.cause;
  EXPECT_EQ(mine.items, members.model.items);
  EXPECT_THAT(outcome.peers.at("corrupt").fault, HasSubstr("sent wrong bytes for chunk "));
  EXPECT_EQ(outcome.peers.at("m0").fault + outcome.peers.at("m1").fault, "");
}

TEST(StateTransfer, GoesOnWhenAPeerIsLostAndResumesWhenAllAre) {
  Members members(1, {.group = "g", .bytes_per_s = 40e6});
  Model mine(9);
  std::atomic<int> places{0};
  std::thread killer([&] {
    while (places == 0) std::this_thread::yield();
    while (glance(mine.items[0].second[0]) != members.model.items[0].second[0])
      std::this_thread::yield();  // the first chunk is there
    members.sources.clear();
  });
  const auto peers = members.peers();
  const auto outcome = pull_state("g", members.agreed, peers,
                                  [&](const StateManifest&) {
                                    ++places;
                                    return mine.written();
                                  },
                                  {.timeout_s = 60});
  killer.join();
  ASSERT_FALSE(outcome.complete);
  EXPECT_EQ(outcome.cause, "no peer is left");
  EXPECT_GE(outcome.pulled_bytes, chunk);
  const Members others(2);
  const auto resumed = pull_into(mine, others, others.peers());
  EXPECT_TRUE(resumed.complete);
  EXPECT_GE(resumed.kept_bytes, chunk);
  EXPECT_EQ(mine.items, others.model.items);
}

TEST(StateTransfer, HoldsTheCap) {
  const Members members(2);
  Model mine(9);
  const double bytes_per_s = 60e6;
  const auto start = Clock::now();
  const auto outcome = pull_into(mine, members, members.peers(), {.bytes_per_s = bytes_per_s});
  const double elapsed_s = seconds_since(start);
  EXPECT_TRUE(outcome.complete);
  // Never faster; what may pass at once is a hundredth of a second's worth.
  EXPECT_GE(elapsed_s, static_cast<double>(outcome.pulled_bytes) / bytes_per_s - 0.02);
}

TEST(StateTransfer, RefusesStrangersInWords) {
  const Members members(1);
  Model mine(9);
  const auto place = [&](const StateManifest&) { return mine.written(); };
  const auto other_group = pull_state("h", members.agreed, members.peers(), place, {.timeout_s = 20});
  EXPECT_EQ(other_group.peers.at("m0").fault, "is of group \"g\"");
  const auto other_state = pull_state("g", StateDigest{}, members.peers(), place, {.timeout_s = 20});
  EXPECT_THAT(other_state.peers.at("m0").fault, HasSubstr("does not hold state 0000"));
  const auto without = pull_state("g", members.agreed, {peer_at("gone", "127.0.0.1:1")}, place, {.timeout_s = 20});
  EXPECT_EQ(without.cause, "no peer is left");
  EXPECT_THAT(without.peers.at("gone").fault, HasSubstr("refused"));
}

TEST(StateTransfer, GoesUnderTlsAndTurnsStrangersAway) {
  const auto authority = Authority::create("g");
  const TlsContext member(authority.issue("m")), joiner(authority.issue("j")),
      stranger(Authority::create("g").issue("j"));
  const Members members(0);
  StateSource source(StateListener("127.0.0.1:0", member), {.group = "g"});
  source.publish(members.snapshot);
  const auto as = [&](const TlsContext& tls) {
    return std::vector<StatePeer>{{"m", [&source, &tls] { return connect_for_state(source.address(), tls); }}};
  };
  Model mine(9);
  const auto refused = pull_into(mine, members, as(stranger));
  EXPECT_EQ(refused.cause, "no peer is left");
  EXPECT_NE(mine.items, members.model.items);
  EXPECT_FALSE(
      pull_into(mine, members, {peer_at("m", source.address())}, {.pull = {.progress_timeout_s = 1}}).complete);
  const auto outcome = pull_into(mine, members, as(joiner));
  EXPECT_TRUE(outcome.complete) << outcome.cause << ": " << outcome.peers.at("m").fault;
  EXPECT_EQ(mine.items, members.model.items);
}

// Answers each that connects with the given bytes, once.
class Liar {
 public:
  explicit Liar(std::string bytes)
      : listener_(StateListener("127.0.0.1:0")), thread_([this, bytes](const std::stop_token& stop) {
          ByteStream stream;
          while (!stop.stop_requested() && !(stream = listener_.accept()).open())
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          if (stream.open()) stream.write(std::as_bytes(std::span(bytes)));
          while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }) {}
  std::string address() const { return listener_.address(); }

 private:
  StateListener listener_;
  std::jthread thread_;
};

// Of a message whose payload has `length` bytes.
std::string header(std::uint8_t kind, std::uint32_t length) {
  const std::uint32_t announced = length + 1;
  return std::string(reinterpret_cast<const char*>(&announced), sizeof announced) + static_cast<char>(kind);
}

TEST(StateTransfer, BelievesNoLengthAndNoOrder) {
  const Liar other_protocol("HTTP/1.1 200 OK\r\n\r\n"), huge(header(2, 0xFFFFFFFE)), no_kind(header(9, 0)),
      chunk_first(header(4, 32) + std::string(32, 'x')), empty_manifest(header(2, 0)), mute("");
  const Members members(1);
  std::vector<StatePeer> peers{peer_at("http", other_protocol.address()),  peer_at("huge", huge.address()),
                               peer_at("kind", no_kind.address()),         peer_at("chunk", chunk_first.address()),
                               peer_at("empty", empty_manifest.address()), peer_at("mute", mute.address())};
  Model mine(9);
  const auto outcome = pull_into(mine, members, peers, {.pull = {.progress_timeout_s = 2}});
  EXPECT_EQ(outcome.cause, "no peer is left");
  EXPECT_THAT(outcome.peers.at("http").fault, HasSubstr("malformed message: a length of"));
  EXPECT_THAT(outcome.peers.at("huge").fault, HasSubstr("malformed message: a length of 4294967295 bytes"));
  EXPECT_EQ(outcome.peers.at("kind").fault, "sent a message of the unknown kind 9");
  EXPECT_EQ(outcome.peers.at("chunk").fault, "sent what was not asked for");
  EXPECT_EQ(outcome.peers.at("empty").fault, "sent another manifest than was asked for");
  EXPECT_EQ(outcome.peers.at("mute").fault, "did not answer within 2 s");
  // With one good peer they do no harm.
  peers.push_back(members.peers().front());
  EXPECT_TRUE(pull_into(mine, members, peers).complete);
  EXPECT_EQ(mine.items, members.model.items);
}

TEST(StateTransfer, ASourceOutlivesWhatJoinersSend) {
  const Members members(1);
  for (const auto& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), header(3, 0xFFFF), header(1, 3) + "abc",
                            header(3, 32) + std::string(32, 'x'), header(4, 32) + std::string(32, 'x')}) {
    ByteStream stream = connect_for_state(members.sources[0]->address());
    stream.write_all(std::as_bytes(std::span(bytes)), soon());
    // The source ends the connection, after a refusal where it was a message.
    std::array<std::byte, 1000> answer{};
    EXPECT_THROW(for (;;) stream.read_all(answer, soon()), Error);
  }
  Model mine(9);
  EXPECT_TRUE(pull_into(mine, members, members.peers()).complete);
}

TEST(StateTransfer, WhoSaysNothingMakesRoomForOthers) {
  const Members members(1, {.group = "g", .connections = 2});
  std::vector<ByteStream> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(connect_for_state(members.sources[0]->address()));
  Model mine(9);
  EXPECT_TRUE(pull_into(mine, members, members.peers()).complete);
}

TEST(StateTransfer, NothingIsReadAfterWithdrawal) {
  const Members members(0);
  StateSource source(StateListener("127.0.0.1:0"), {.group = "g", .bytes_per_s = 20e6});
  Model given(1);
  StateSnapshot snapshot{describe_state({3, 17}, std::as_const(given).read()), {}, {}};
  for (const auto& buffer : std::as_const(given).read()) snapshot.items.push_back(buffer.bytes);
  source.publish(std::move(snapshot));
  Model mine(9);
  const auto first = mine.items[0].second[0];
  StateTransferOutcome outcome;
  std::jthread joiner([&] { outcome = pull_into(mine, members, {peer_at("m", source.address())}); });
  while (glance(mine.items[0].second[0]) == first) std::this_thread::yield();  // until the first chunk is there
  source.withdraw();
  given.items.clear();  // the sanitizers would see a read of this
  joiner.join();
  EXPECT_FALSE(outcome.complete);
  EXPECT_EQ(pull_into(mine, members, {peer_at("m", source.address())}).peers.at("m").fault.substr(0, 19),
            "does not hold state");
}

TEST(StateTransfer, GivesFromTheSnapshotThatWasAskedForWhileNewOnesCome) {
  const Members members(1);
  Model next(4);
  members.sources[0]->publish(take_snapshot({3, 18}, next.read()));
  Model mine(9);
  EXPECT_TRUE(pull_into(mine, members, members.peers()).complete);
  EXPECT_EQ(mine.items, members.model.items);
  members.sources[0]->publish(take_snapshot({3, 19}, Model(5).read()));
  const auto outcome = pull_into(mine, members, members.peers());
  EXPECT_THAT(outcome.peers.at("m0").fault, HasSubstr("does not hold state"));
}

// ---- on disk ----

}  // namespace
}  // namespace motley
