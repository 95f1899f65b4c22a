// Manifests, pulls without sockets, pulls over loopback from good, lost, corrupt and lying peers, and checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/authority.hpp"
#include "motley/comm/state_checkpoint.hpp"
#include "motley/comm/state_manifest.hpp"
#include "motley/comm/state_pull.hpp"
#include "motley/comm/state_transfer.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t chunk = state_chunk_bytes;

Bytes random_bytes(std::int64_t size, std::uint64_t seed) {
  std::vector<std::uint64_t> words(static_cast<std::size_t>(size + 7) / 8);
  std::uint64_t state = seed;
  for (auto& word : words) {
    state += 0x9E3779B97F4A7C15;
    word = state * (state >> 31 | 1);
  }
  const auto bytes = std::as_bytes(std::span(words)).first(static_cast<std::size_t>(size));
  return {bytes.begin(), bytes.end()};
}

// Several sizes around the chunk's, an empty item, and two items of equal content.
struct Model {
  std::vector<std::pair<std::string, Bytes>> items;

  explicit Model(std::uint64_t seed) {
    items = {{"embedding", random_bytes(2 * chunk + 5, seed)},
             {"bias", random_bytes(12, seed + 1)},
             {"nothing", {}},
             {"tied", random_bytes(chunk, seed + 2)},
             {"tied too", random_bytes(chunk, seed + 2)},
             {"head", random_bytes(3 * chunk, seed + 3)}};
  }
  std::vector<StateBuffer<const std::byte>> read() const {
    std::vector<StateBuffer<const std::byte>> buffers;
    for (const auto& [name, bytes] : items) buffers.push_back({name, bytes});
    return buffers;
  }
  std::vector<StateBuffer<std::byte>> written() {
    std::vector<StateBuffer<std::byte>> buffers;
    for (auto& [name, bytes] : items) buffers.push_back({name, bytes});
    return buffers;
  }
};

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(StateManifest, HasTheDigestsOfItsChunks) {
  // FIPS 180-2, appendix B.1.
  const std::string abc = "abc";
  EXPECT_EQ(to_hex(sha256(std::as_bytes(std::span(abc)))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const Model model(1);
  const auto manifest = describe_state({7, 42}, model.read());
  ASSERT_EQ(manifest.items.size(), 6u);
  EXPECT_EQ(manifest.bytes(), 7 * chunk + 17);
  EXPECT_EQ(manifest.items[0].chunks.size(), 3u);
  EXPECT_EQ(manifest.items[2].chunks.size(), 0u);
  EXPECT_EQ(chunk_range(manifest.items[0], 2), (StateRange{2 * chunk, 2 * chunk + 5}));
  EXPECT_EQ(manifest.items[0].chunks[2], sha256(std::span(model.items[0].second).last(5)));
  EXPECT_EQ(manifest.items[3].chunks, manifest.items[4].chunks);
  EXPECT_EQ(parse_digest(to_hex(digest(manifest))), digest(manifest));
  EXPECT_NE(digest(manifest), digest(describe_state({7, 43}, model.read())));
}

TEST(StateManifest, RefusesNamesThatAreNoNames) {
  const Bytes bytes(3);
  const std::vector<StateBuffer<const std::byte>> twice{{"a", bytes}, {"a", bytes}}, nameless{{"", bytes}};
  EXPECT_THAT(message_of([&] { describe_state({}, twice); }), HasSubstr("two parts of the state are called \"a\""));
  EXPECT_THAT(message_of([&] { describe_state({}, nameless); }), HasSubstr("name of 0 bytes"));
}

TEST(StateManifest, SurvivesEncoding) {
  const auto manifest = describe_state({7, 42}, Model(1).read());
  EXPECT_EQ(decode_manifest(encode_manifest(manifest)), manifest);
}

RC_GTEST_PROP(StateManifest, BelievesNothing, ()) {
  static const std::string sound = encode_manifest(describe_state({7, 42}, Model(1).read()));
  std::string text = sound;
  const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
  if (*rc::gen::arbitrary<bool>())
    text.resize(at);
  else
    text[at] = static_cast<char>(text[at] ^ *rc::gen::inRange(1, 256));
  try {
    const auto manifest = decode_manifest(text);  // a changed digest, name or revision is a manifest still
    for (const auto& item : manifest.items)
      RC_ASSERT(static_cast<std::int64_t>(item.chunks.size()) == (item.bytes + chunk - 1) / chunk);
  } catch (const Error& error) {
    RC_ASSERT(error.code() == ErrorCode::peer);
  }
}

std::span<const std::byte> bytes_of(const Model& model, const StateManifest& manifest, const StateDigest& wanted) {
  for (std::size_t i = 0; i < manifest.items.size(); ++i)
    for (std::size_t index = 0; index < manifest.items[i].chunks.size(); ++index)
      if (manifest.items[i].chunks[index] == wanted) {
        const auto [first, last] = chunk_range(manifest.items[i], index);
        return std::span(model.items[i].second)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
      }
  return {};
}

TEST(StatePull, AsksForEveryChunkOnceAndForEqualOnesTogether) {
  const Model model(1);
  Model mine(9);
  mine.items[5].second = model.items[5].second;  // is there already
  const auto manifest = describe_state({1, 1}, model.read());
  StatePull pull(manifest, mine.written(), {});
  EXPECT_EQ(pull.kept_bytes(), 3 * chunk);
  pull.add_peer(0, 0);
  std::int64_t asked = 0;
  for (auto requests = pull.requests(0); !requests.empty(); requests = pull.requests(0)) {
    EXPECT_LE(requests.size(), 2u);
    for (const auto& request : requests) {
      asked += request.bytes;
      EXPECT_TRUE(pull.deliver(0, request.chunk, bytes_of(model, manifest, request.chunk), 0));
    }
  }
  EXPECT_TRUE(pull.done());
  EXPECT_EQ(asked, 3 * chunk + 17);  // embedding, bias, and one of the tied
  EXPECT_EQ(mine.items, model.items);
}

TEST(StatePull, GivesWhatALostPeerOwesToOthers) {
  const Model model(1);
  Model mine(9);
  const auto manifest = describe_state({1, 1}, model.read());
  StatePull pull(manifest, mine.written(), {});
  pull.add_peer(0, 0);
  const auto lost = pull.requests(0);
  ASSERT_EQ(lost.size(), 2u);
  pull.lose_peer(0, "gone");
  pull.add_peer(1, 0);
  EXPECT_EQ(pull.requests(0).front().chunk, lost.front().chunk);
  EXPECT_FALSE(pull.deliver(0, lost.front().chunk, bytes_of(model, manifest, lost.front().chunk), 0));
  pull.add_peer(0, 0);  // what is left out stays out
  EXPECT_FALSE(pull.active(0));
}

TEST(StatePull, LeavesOutWhoIsSilentAndAsksTheIdleForWhatOthersOwe) {
  const Model model(1);
  Model mine(9);
  mine.items.resize(2);
  Model whole(1);
  whole.items.resize(2);  // four chunks
  const auto manifest = describe_state({1, 1}, whole.read());
  StatePull pull(manifest, mine.written(), {.requests_per_peer = 2, .progress_timeout_s = 5});
  pull.add_peer(0, 0);
  pull.add_peer(1, 0);
  const auto first = pull.requests(0);
  ASSERT_EQ(first.size(), 4u);
  for (const auto& request : first)
    if (request.peer == 1) pull.deliver(1, request.chunk, bytes_of(model, manifest, request.chunk), 1);
  const auto second = pull.requests(1);  // nothing is left to ask for but what peer 0 owes
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].peer, 1);
  EXPECT_TRUE(pull.deliver(1, second[0].chunk, bytes_of(model, manifest, second[0].chunk), 2));
  // Late, but what was asked for: no fault, and no use.
  EXPECT_FALSE(pull.deliver(0, second[0].chunk, bytes_of(model, manifest, second[0].chunk), 2));
  EXPECT_TRUE(pull.active(0));
  pull.expire(7.5);
  EXPECT_FALSE(pull.active(0));
  EXPECT_EQ(pull.peers().at(0).fault, "sent nothing for 5 s");
  const auto third = pull.requests(7.5);
  ASSERT_EQ(third.size(), 1u);
  EXPECT_TRUE(pull.deliver(1, third[0].chunk, bytes_of(model, manifest, third[0].chunk), 8));
  EXPECT_TRUE(pull.done());
}

TEST(StatePull, NamesThePeerThatSendsWrongBytes) {
  const Model model(1);
  Model mine(9);
  const auto manifest = describe_state({1, 1}, model.read());
  StatePull pull(manifest, mine.written(), {});
  pull.add_peer(3, 0);
  const auto request = pull.requests(0).front();
  Bytes wrong(static_cast<std::size_t>(request.bytes));
  EXPECT_FALSE(pull.deliver(3, request.chunk, wrong, 0));
  EXPECT_EQ(pull.peers().at(3).fault, "sent wrong bytes for chunk 0 of \"embedding\"");
  pull.add_peer(4, 0);
  EXPECT_FALSE(pull.deliver(4, StateDigest{}, wrong, 0));
  EXPECT_THAT(pull.peers().at(4).fault, HasSubstr("for which it was not asked"));
}

TEST(StatePull, RefusesAnotherModel) {
  const Model model(1);
  Model mine(9);
  mine.items[1].second.resize(13);
  const auto manifest = describe_state({1, 1}, model.read());
  EXPECT_EQ(message_of([&] { StatePull(manifest, mine.written(), {}); }),
            "part 1 of the state is \"bias\" of 13 bytes here, \"bias\" of 12 there");
}

// ---- over loopback ----

// Of memory that a transfer writes meanwhile, in another thread: on purpose not in order with it.
[[gnu::no_sanitize("thread"), gnu::noinline]] std::byte glance(const std::byte& byte) {
  return *const_cast<const volatile std::byte*>(&byte);
}

StatePeer peer_at(std::string name, std::string address) {
  return {std::move(name), [address = std::move(address)] { return connect_for_state(address); }};
}

struct Members {
  Model model{1};
  StateSnapshot snapshot = take_snapshot({3, 17}, model.read());
  StateDigest agreed = digest(snapshot.manifest);
  std::vector<std::unique_ptr<StateSource>> sources;

  explicit Members(int count, const StateSourceOptions& options = {.group = "g"}) {
    for (int i = 0; i < count; ++i) {
      sources.push_back(std::make_unique<StateSource>(listen_for_state("127.0.0.1:0"), options));
      sources.back()->publish(snapshot);
    }
  }
  std::vector<StatePeer> peers() const {
    std::vector<StatePeer> result;
    for (const auto& source : sources)
      result.push_back(peer_at("m" + std::to_string(result.size()), source->address()));
    return result;
  }
};

StateTransferOutcome pull_into(Model& mine, const Members& members, std::vector<StatePeer> peers,
                               StateTransferOptions options = {}) {
  options.timeout_s = 60;
  return pull_state(
      "g", members.agreed, peers, [&](const StateManifest&) { return mine.written(); }, options);
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
  StateSource corrupt(listen_for_state("127.0.0.1:0"), {.group = "g"});
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
  const auto start = std::chrono::steady_clock::now();
  const auto outcome = pull_into(mine, members, members.peers(), {.bytes_per_s = bytes_per_s});
  const double elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  EXPECT_THAT(other_state.peers.at("m0").fault, HasSubstr("holds no state 0000"));
  const auto nobody = pull_state("g", members.agreed, {peer_at("gone", "127.0.0.1:1")}, place, {.timeout_s = 20});
  EXPECT_EQ(nobody.cause, "no peer is left");
  EXPECT_THAT(nobody.peers.at("gone").fault, HasSubstr("refused"));
}

TEST(StateTransfer, GoesUnderTlsAndTurnsStrangersAway) {
  const auto authority = Authority::create("g");
  const TlsContext member(authority.issue("m")), joiner(authority.issue("j")),
      stranger(Authority::create("g").issue("j"));
  const Members members(0);
  StateSource source(listen_for_state("127.0.0.1:0", member), {.group = "g"});
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

// Answers whoever connects with the given bytes, once.
class Liar {
 public:
  explicit Liar(std::string bytes)
      : listener_(listen_for_state("127.0.0.1:0")), thread_([this, bytes](const std::stop_token& stop) {
          std::unique_ptr<StateStream> stream;
          while (!stop.stop_requested() && !(stream = listener_->accept()))
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          if (stream) stream->write(std::as_bytes(std::span(bytes)));
          while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }) {}
  std::string address() const { return listener_->address(); }

 private:
  std::unique_ptr<StateListener> listener_;
  std::jthread thread_;
};

std::string frame_header(std::uint32_t magic, std::uint8_t kind, std::uint32_t length) {
  std::string text(12, '\0');
  std::memcpy(text.data(), &magic, 4);
  text[4] = static_cast<char>(kind);
  std::memcpy(text.data() + 8, &length, 4);
  return text;
}

TEST(StateTransfer, BelievesNoLengthAndNoOrder) {
  constexpr std::uint32_t magic = 0x3153746D;
  const Liar other_protocol("HTTP/1.1 200 OK\r\n\r\n"), huge(frame_header(magic, 2, 0xFFFFFFFF)),
      no_kind(frame_header(magic, 9, 0)), chunk_first(frame_header(magic, 4, 32) + std::string(32, 'x')),
      empty_manifest(frame_header(magic, 2, 0)), mute("");
  const Members members(1);
  std::vector<StatePeer> peers{peer_at("http", other_protocol.address()),  peer_at("huge", huge.address()),
                               peer_at("kind", no_kind.address()),         peer_at("chunk", chunk_first.address()),
                               peer_at("empty", empty_manifest.address()), peer_at("mute", mute.address())};
  Model mine(9);
  const auto outcome = pull_into(mine, members, peers, {.pull = {.progress_timeout_s = 0.5}});
  EXPECT_EQ(outcome.cause, "no peer is left");
  EXPECT_EQ(outcome.peers.at("http").fault, "sent what is no frame of a state");
  EXPECT_THAT(outcome.peers.at("huge").fault, HasSubstr("announced a frame of 4294967295 bytes"));
  EXPECT_EQ(outcome.peers.at("kind").fault, "sent what is no frame of a state");
  EXPECT_EQ(outcome.peers.at("chunk").fault, "sent what was not asked for");
  EXPECT_EQ(outcome.peers.at("empty").fault, "sent another manifest than was asked for");
  EXPECT_EQ(outcome.peers.at("mute").fault, "did not answer within 0.5 s");
  // Beside one good peer they do no harm.
  peers.push_back(members.peers().front());
  EXPECT_TRUE(pull_into(mine, members, peers).complete);
  EXPECT_EQ(mine.items, members.model.items);
}

TEST(StateTransfer, ASourceOutlivesWhatJoinersSend) {
  const Members members(1);
  constexpr std::uint32_t magic = 0x3153746D;
  for (const auto& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), frame_header(magic, 3, 0xFFFF), frame_header(magic, 1, 3) + "abc",
        frame_header(magic, 3, 32) + std::string(32, 'x'), frame_header(magic, 4, 32) + std::string(32, 'x')}) {
    auto stream = connect_for_state(members.sources[0]->address());
    std::size_t written = 0;
    while (written == 0) written = stream->write(std::as_bytes(std::span(bytes)));
    // The source ends the connection, after a refusal where the frame was one.
    std::array<std::byte, 1000> answer{};
    EXPECT_THROW(for (;;) stream->read(answer), Error);
  }
  Model mine(9);
  EXPECT_TRUE(pull_into(mine, members, members.peers()).complete);
}

TEST(StateTransfer, NothingIsReadAfterWithdrawal) {
  const Members members(0);
  StateSource source(listen_for_state("127.0.0.1:0"), {.group = "g", .bytes_per_s = 20e6});
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
  EXPECT_EQ(pull_into(mine, members, {peer_at("m", source.address())}).peers.at("m").fault.substr(0, 14),
            "holds no state");
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
  EXPECT_THAT(outcome.peers.at("m0").fault, HasSubstr("holds no state"));
}

// ---- on disk ----

class StateCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(::testing::TempDir()) / ("motley-state-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::filesystem::path folder;
};

TEST_F(StateCheckpoint, ComesBackAndServesJoiners) {
  const Members members(0);
  write_checkpoint(folder / "step-17", members.snapshot);
  write_checkpoint(folder / "step-17", members.snapshot);  // replaces
  EXPECT_FALSE(std::filesystem::exists(folder / "step-17.new"));
  auto opened = open_checkpoint(folder / "step-17", CheckpointVerify::contents);
  EXPECT_EQ(opened.manifest, members.snapshot.manifest);
  StateSource source(listen_for_state("127.0.0.1:0"), {.group = "g"});
  source.publish(std::move(opened));
  Model mine(9);
  EXPECT_TRUE(pull_into(mine, members, {peer_at("disk", source.address())}).complete);
  EXPECT_EQ(mine.items, members.model.items);
}

TEST_F(StateCheckpoint, NamesTheDamage) {
  const Members members(0);
  const auto at = folder / "c";
  write_checkpoint(at, members.snapshot);
  std::fstream(at / "0005.bin", std::ios::in | std::ios::out | std::ios::binary).seekp(chunk + 3).put('\x5A');
  EXPECT_EQ(open_checkpoint(at, CheckpointVerify::sizes).manifest, members.snapshot.manifest);
  EXPECT_THAT(message_of([&] { open_checkpoint(at, CheckpointVerify::contents); }),
              HasSubstr("0005.bin: bytes 4194304 to 8388608 are not those"));
  std::filesystem::resize_file(at / "0001.bin", 11);
  EXPECT_THAT(message_of([&] { open_checkpoint(at, CheckpointVerify::sizes); }),
              HasSubstr("0001.bin: has 11 bytes, and the manifest says 12"));
  std::ofstream(at / "manifest.json") << R"({"format": "motley.state/1", "chunk_bytes": 4194304, "epoch": 1, "step": 1,
    "items": [{"name": "a", "file": "../../etc/passwd", "bytes": 1, "sha256": []}]})";
  EXPECT_THAT(message_of([&] { open_checkpoint(at, CheckpointVerify::sizes); }),
              HasSubstr("the file of \"a\" should be 0000.bin"));
}

TEST_F(StateCheckpoint, BelievesNoManifest) {
  std::filesystem::create_directories(folder / "c");
  const auto refusal = [&](const std::string& head, const std::string& item) {
    std::ofstream(folder / "c" / "manifest.json")
        << R"({"format": "motley.state/1", )" + head + R"("items": [{)" + item + "}]}";
    const std::string text = message_of([&] { open_checkpoint(folder / "c", CheckpointVerify::sizes); });
    return text.substr(text.find(": ") + 2);
  };
  const std::string head = R"("chunk_bytes": 4194304, "epoch": 1, "step": 1, )";
  const std::string digest(64, 'a');
  const auto item = [](const std::string& bytes, const std::string& digests) {
    return R"("name": "a", "file": "0000.bin", "bytes": )" + bytes + R"(, "sha256": [)" + digests + "]";
  };
  EXPECT_THAT(refusal(head, item("1", '"' + digest + '"')), HasSubstr("cannot open: No such file"));
  EXPECT_EQ(refusal(R"("chunk_bytes": 5, "epoch": 1, "step": 1, )", item("0", "")),
            "not a manifest of format motley.state/1");
  EXPECT_EQ(refusal(R"("chunk_bytes": 4194304, "step": 1, )", item("0", "")),
            "\"epoch\" is missing or of a wrong type");
  EXPECT_EQ(refusal(R"("chunk_bytes": 4194304, "epoch": 1, "step": -1, )", item("0", "")), "\"step\" is negative");
  EXPECT_EQ(refusal(head, item("-1", "")), "\"bytes\" is negative");
  EXPECT_EQ(refusal(head, item("1.5", "")), "\"bytes\" is missing or of a wrong type");
  EXPECT_EQ(refusal(head, item("1", "7")), "a digest of \"a\" is no string");
  for (const std::string& wrong : {digest + "a", std::string(63, 'a') + "A"})
    EXPECT_EQ(refusal(head, item("1", '"' + wrong + '"')), "a digest of \"a\": \"" + wrong + "\" is no SHA-256");
}

TEST_F(StateCheckpoint, AFailedWriteLeavesTheOlderOne) {
  const Members members(0);
  write_checkpoint(folder / "c", members.snapshot);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 20, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto message = message_of([&] { write_checkpoint(folder / "c", take_snapshot({3, 18}, Model(2).read())); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(message, HasSubstr("0000.bin: cannot write: File too large"));
  EXPECT_EQ(open_checkpoint(folder / "c", CheckpointVerify::contents).manifest, members.snapshot.manifest);
  EXPECT_FALSE(std::filesystem::exists(folder / "c.new"));
}

}  // namespace
}  // namespace motley
