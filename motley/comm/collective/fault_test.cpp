// What goes wrong: peers that leave, wait, lie or disagree; strangers at the door; connections that break.
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <map>
#include <mutex>

#include "motley/base/error.hpp"
#include "motley/base/random.hpp"
#include "motley/comm/collective/collective_defaults.hpp"
#include "motley/comm/collective/world_test.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/hostile_test.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

std::vector<float> numbers(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank)) % 1001);
  return values;
}

std::span<std::byte> bytes_of(std::vector<float>& values) { return std::as_writable_bytes(std::span(values)); }

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

class EveryTransportFault : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryTransportFault, ::testing::Values("local", "shm", "tcp", "tls"),
                         [](const auto& kind) { return kind.param; });

TEST_P(EveryTransportFault, WhoDoesNotComeIsSuspectedAndTheInputIsRestored) {
  TestWorld world(GetParam(), 3);
  std::latch over(3);
  world.run([&](Communicator& group) {
    if (group.rank() != 1) {
      std::vector<float> data = numbers(group.rank(), 500'000);
      const auto given = data;
      const auto outcome =
          group.all_reduce(bytes_of(data), CollectiveElement::fp32, {.timeout_s = 1, .on_abort = OnAbort::restore});
      EXPECT_EQ(std::memcmp(data.data(), given.data(), data.size() * 4), 0);
      // Whose deadline comes first tells the other.
      EXPECT_TRUE(outcome.status == OperationStatus::timed_out || outcome.status == OperationStatus::revoked);
      if (outcome.status == OperationStatus::timed_out) {
        EXPECT_TRUE(std::ranges::find(outcome.suspects, 1) != outcome.suspects.end()) << outcome.cause;
        EXPECT_NE(outcome.cause.find("not complete after 1 s; waiting for rank"), std::string::npos);
      }
      // From then on nothing runs in this epoch.
      const auto next = group.barrier({});
      EXPECT_EQ(next.status, OperationStatus::revoked);
      EXPECT_EQ(next.cause.substr(0, 21), "the epoch has ended: ");
    }
    over.arrive_and_wait();
  });
}

TEST_P(EveryTransportFault, WhoLeavesIsNamed) {
  if (GetParam() == "local") GTEST_SKIP() << "a rank that is a thread leaves no connection behind";
  TestWorld world(GetParam(), 3);
  std::latch left(3), over(2);
  std::atomic<int> aborted = 0;
  world.run([&](Communicator& group) {
    EXPECT_EQ(group.barrier({}).status, OperationStatus::ok);
    if (group.rank() == 1) {
      left.count_down();
      return;  // its communicator goes
    }
    left.arrive_and_wait();
    std::vector<float> data = numbers(group.rank(), 500'000);
    const auto outcome = group.all_reduce(bytes_of(data), CollectiveElement::fp32, {.timeout_s = 20});
    EXPECT_TRUE(outcome.status == OperationStatus::aborted || outcome.status == OperationStatus::revoked);
    if (outcome.status == OperationStatus::aborted) {
      ++aborted;
      EXPECT_EQ(outcome.suspects, std::vector<int>{1});
      EXPECT_EQ(outcome.cause.substr(0, 13), "lost rank 1: ");
    } else {
      EXPECT_NE(outcome.cause.find("lost rank 1: "), std::string::npos) << outcome.cause;
    }
    over.arrive_and_wait();  // a rank that left now could be lost before rank 1 is
  });
  EXPECT_GE(aborted, 1);
}

TEST_P(EveryTransportFault, RevocationReachesEverybodyWhoWaits) {
  TestWorld world(GetParam(), 4);
  std::latch over(4);
  world.run([&](Communicator& group) {
    std::thread other;
    if (group.rank() == 2) other = std::thread([&] { group.revoke("a member has left"); });
    if (group.rank() != 3) {
      std::vector<float> data = numbers(group.rank(), 100'000);
      const auto outcome = group.all_reduce(bytes_of(data), CollectiveElement::fp32, {.timeout_s = 20});
      EXPECT_EQ(outcome.status, OperationStatus::revoked);
      EXPECT_EQ(outcome.cause, "a member has left");
    }
    if (other.joinable()) other.join();
    over.arrive_and_wait();
  });
}

TEST_P(EveryTransportFault, AStopTokenEndsTheWait) {
  TestWorld world(GetParam(), 2);
  std::latch begun(2), over(2);
  world.run([&](Communicator& group) {
    EXPECT_EQ(group.barrier({}).status, OperationStatus::ok);
    begun.arrive_and_wait();
    if (group.rank() == 0) {
      std::stop_source stop;
      std::thread other([&] { stop.request_stop(); });
      std::vector<float> data(10);
      const auto outcome = group.recv(bytes_of(data), 1, {.timeout_s = 20, .stop = stop.get_token()});
      EXPECT_EQ(outcome.status, OperationStatus::aborted);
      EXPECT_EQ(outcome.cause, "asked to stop");
      other.join();
    }
    over.arrive_and_wait();
    if (group.rank() == 1) {
      std::vector<float> data(10);
      const auto outcome = group.recv(bytes_of(data), 0, {.timeout_s = 20});
      EXPECT_EQ(outcome.status, OperationStatus::revoked);
      EXPECT_EQ(outcome.cause, "rank 0: asked to stop");
    }
  });
}

TEST_P(EveryTransportFault, RanksThatDisagreeAreToldApart) {
  struct Case {
    std::function<OperationOutcome(Communicator&)> odd;
    std::string saying;
  };
  std::vector<float> data(2000);
  const OperationOptions patient{.timeout_s = 20};
  const std::vector<Case> cases{
      {[&](Communicator& g) { return g.all_reduce(bytes_of(data), CollectiveElement::int32, patient); },
       "all_reduce of 8000 bytes int32, sum where this rank runs all_reduce of 8000 bytes fp32, sum"},
      {[&](Communicator& g) { return g.all_reduce(bytes_of(data).first(4000), CollectiveElement::fp32, patient); },
       "all_reduce of 4000 bytes fp32, sum where"},
      {[&](Communicator& g) {
         return g.all_reduce(bytes_of(data), CollectiveElement::fp32,
                             {.reduction = CollectiveReduction::max, .timeout_s = 20});
       },
       "all_reduce of 8000 bytes fp32, max where"},
      {[&](Communicator& g) { return g.broadcast(bytes_of(data), 1, patient); },
       "broadcast of 8000 bytes from rank 1 where"},
  };
  for (const Case& wrong : cases) {
    TestWorld world(GetParam(), 2);
    std::atomic<int> named = 0;
    std::latch over(2);
    world.run([&](Communicator& group) {
      std::vector<float> mine(2000);
      const auto outcome =
          group.rank() == 1 ? wrong.odd(group) : group.all_reduce(bytes_of(mine), CollectiveElement::fp32, patient);
      // One finds out, and tells the other.
      // (The root of a broadcast may have sent all there is by then.)
      const bool root = group.rank() == 1 && wrong.saying.starts_with("broadcast");
      EXPECT_TRUE(outcome.status == OperationStatus::invalid || outcome.status == OperationStatus::revoked || root)
          << name(outcome.status) << ": " << outcome.cause;
      if (group.rank() == 0 && outcome.status == OperationStatus::invalid) {
        EXPECT_EQ(outcome.cause.substr(0, 28), "rank 1 as operation 0 runs " + wrong.saying.substr(0, 1))
            << outcome.cause;
        EXPECT_NE(outcome.cause.find(wrong.saying), std::string::npos) << outcome.cause;
      }
      if (outcome.status == OperationStatus::invalid) ++named;
      over.arrive_and_wait();
    });
    EXPECT_GE(named, 1);
  }
}

TEST(Fencing, FramesOfOtherEpochsAreDropped) {
  InProcessFabric fabric(2);
  auto zombie = fabric.transport(1);
  CollectiveFrame frame{.group = group_hash("test"), .epoch = 6, .shape = {.call = CollectiveCall::all_reduce}};
  const std::vector<std::byte> payload(8);
  frame.length = 8;
  ASSERT_TRUE(zombie->send(0, frame, payload));  // of an earlier epoch
  frame.kind = FrameKind::revoke;
  ASSERT_TRUE(zombie->send(0, frame, payload));
  frame = {.group = group_hash("another"), .epoch = 7, .length = 8};
  ASSERT_TRUE(zombie->send(0, frame, payload));  // of another group
  std::thread other([&] {
    Communicator group(epoch_of(2), std::move(zombie));
    EXPECT_EQ(group.barrier({}).status, OperationStatus::ok);
  });
  Communicator group(epoch_of(2), fabric.transport(0));
  EXPECT_EQ(group.barrier({}).status, OperationStatus::ok);
  other.join();
}

// Whatever comes, nothing outside the buffers is touched, and a lie is refused by name.
TEST(LyingFrames, AreRefused) {
  RandomStream random(5, 0);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> data(20'000);
    const CollectiveProgram program = [] {
      CollectiveProgram direct{.ranks = 2, .bytes = 128};
      direct.steps = {{{CollectiveStepKind::send, 1, 0, 64, 128, {}},
                       {CollectiveStepKind::reduce, 1, 0, 0, 64, {}},
                       {CollectiveStepKind::send, 1, 0, 0, 64, {}},
                       {CollectiveStepKind::recv, 1, 0, 64, 128, {}}},
                      {{CollectiveStepKind::send, 0, 0, 0, 64, {}},
                       {CollectiveStepKind::reduce, 0, 0, 64, 128, {}},
                       {CollectiveStepKind::send, 0, 0, 64, 128, {}},
                       {CollectiveStepKind::recv, 0, 0, 0, 64, {}}}};
      return direct;
    }();
    const CollectiveSchedule schedule = compile_schedule(program, 0, 4096, 1, 64);
    const CollectiveFrame base{.shape = {.call = CollectiveCall::all_reduce,
                                         .element = CollectiveElement::fp32,
                                         .bytes = 20'000,
                                         .plan = schedule.hash}};
    Execution execution;
    execution.start(schedule, base, {data}, 2);
    for (int i = 0; i < 20; ++i) {
      CollectiveFrame frame = base;
      frame.chunk = random.below(7U);
      frame.step = random.below(4U);
      frame.offset = random.chance(0.8) ? 0 : random.below(5000U);
      frame.length = random.chance(0.7) ? 2048 : random.below(largest_payload_bytes);
      if (random.chance(0.02)) frame.shape.bytes += 4;
      const std::vector<std::byte> payload(frame.length);
      const auto place = execution.place(1, frame);
      EXPECT_TRUE(place.empty() ||
                  (place.data() >= data.data() && place.data() + place.size() <= data.data() + data.size()));
      if (execution.on_frame(1, frame, payload, Execution::Holding::yes) == Execution::Answer::refused) ++refused;
    }
    if (execution.refusal()) {
      EXPECT_EQ(execution.refusal()->cause.substr(0, 7), "rank 1 ");
    }
  }
  EXPECT_GT(refused, 1000);
}

// ---- the door ----

Instant soon() { return deadline_in(5); }

ByteStream call(const std::string& address) {
  ConnectFailure failure;
  FileDescriptor socket = connect_tcp(address, soon(), failure);
  EXPECT_TRUE(static_cast<bool>(socket)) << failure.cause;
  return ByteStream(std::move(socket));
}

TEST(Door, StrangersAreTurnedAwayByNameOfCauseAndTheGroupGoesOn) {
  TestWorld world("tcp", 2);
  const std::string address = world.fabrics[0]->address();
  const LinkHello good{.group = "test", .epoch = 7, .from = 1, .to = 0, .from_id = "m1", .incarnation = 1};
  const auto told = [&](LinkHello hello, const std::string& key) {
    ByteStream stream = call(address);
    return client_handshake(stream, hello, key, soon()).cause;
  };
  const auto changed = [&](auto change) {
    LinkHello hello = good;
    change(hello);
    return told(hello, "secret");
  };
  EXPECT_EQ(told(good, "guess"), "not this group's key");
  EXPECT_EQ(changed([](LinkHello& h) { h.incarnation = 0; }), "incarnation 0 of \"m1\" is not 1, the one in epoch 7");
  EXPECT_EQ(changed([](LinkHello& h) { h.from_id = "mallory"; }), "rank 1 of epoch 7 is \"m1\", not \"mallory\"");
  EXPECT_EQ(changed([](LinkHello& h) { h.from = 9; }), "no rank 9 may call");
  EXPECT_EQ(changed([](LinkHello& h) { h.purpose = LinkPurpose::shared_memory; }),
            "shared memory requested over TCP, or a stream over a local socket");
  {  // another protocol
    ByteStream stream = call(address);
    stream.write_all(std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n", 18)), soon());
    std::array<std::byte, 24> challenge{};
    stream.read_all(challenge, soon());  // what everybody gets; then the door shuts
    std::byte more{};
    EXPECT_NE(error_of([&] { stream.read_all(std::span(&more, 1), soon()); }), "none");
  }
  {  // another version
    ByteStream stream = call(address);
    std::array<std::byte, 8> head{};
    const std::uint32_t magic = 0x4c4c544d;
    const std::uint16_t version = 9;
    std::memcpy(head.data(), &magic, 4);
    std::memcpy(head.data() + 4, &version, 2);
    std::array<std::byte, 25> answered{};
    stream.write_all(head, soon());
    EXPECT_NE(error_of([&] { stream.read_all(answered, soon()); }), "none");
  }
  ByteStream silent = call(address);  // half open: says nothing
  world.run([](Communicator& group) {
    EXPECT_EQ(group.barrier({}).status, OperationStatus::ok);
    group.barrier({});
  });
  EXPECT_EQ(changed([](LinkHello&) {}), "epoch 7 is over here");
}

TEST(Door, ADiallerNamesWhoRefusedIt) {
  FabricOptions options;
  options.key = "secret";
  Fabric here(options);
  options.key = "another";
  Fabric there(options);
  Epoch epoch = epoch_of(2);
  epoch.members[0].address = there.address();
  epoch.members[1].address = here.address();
  EXPECT_EQ(error_of([&] { here.connect(epoch, 1, 5); }),
            "cannot reach rank 0 (\"m0\" at " + there.address() + "): not this group's key");
  // No peer calls.
  EXPECT_EQ(error_of([&] { there.connect(epoch, 0, 0.05); }),
            "rank 1 (\"m1\" at " + here.address() + ") did not connect within 0.05 s");
}

TEST(Door, CertificatesMustComeFromTheGroupAndNameTheMember) {
  const Authority ours = Authority::create("test"), theirs = Authority::create("test");
  const auto meeting = [&](const TlsIdentity& dialler) {
    FabricOptions options;
    options.encryption = Encryption::always;
    options.identity = ours.issue("m0");
    Fabric accepting(options);
    options.identity = dialler;
    Fabric dialling(options);
    Epoch epoch = epoch_of(2);
    epoch.members[0].address = accepting.address();
    epoch.members[1].address = dialling.address();
    std::stop_source enough;
    std::thread other([&] { error_of([&] { accepting.connect(epoch, 0, 60, enough.get_token()); }); });
    const std::string error = error_of([&] { dialling.connect(epoch, 1, 2); });
    enough.request_stop();
    other.join();
    return error.substr(error.rfind(": ") == std::string::npos ? 0 : error.rfind(": ") + 2);
  };
  EXPECT_EQ(meeting(ours.issue("m1")), "none");
  EXPECT_EQ(meeting(ours.issue("m2")), "the certificate names \"m2\", not \"m1\"");
  EXPECT_EQ(meeting(theirs.issue("m1")), "it is not from this group's authority");
}

TEST(Door, StrangersCostLittleAndKeepNobodyOut) {
  const Authority authority = Authority::create("test");
  for (const bool secured : {false, true}) {
    FabricOptions options;
    options.key = "secret";
    if (secured) {
      options.encryption = Encryption::always;
      options.identity = authority.issue("m0");
    }
    const Fabric fabric(options);
    expect_to_endure_hostile_clients(fabric.address(), {secured ? tls_opening() : link_opening()}, [&] {
      ConnectFailure failure;
      ByteStream stream(connect_tcp(fabric.address(), soon(), failure));
      if (!stream.open()) throw Error(ErrorCode::peer, failure.cause);
      if (secured) stream.secure_as_client(*options.identity, soon());
      LinkHello hello;
      hello.purpose = LinkPurpose::probe;
      client_handshake(stream, hello, "secret", soon());
    });
  }
}

// A peer that hangs up at once, and does not answer the second time: the first says more.
TEST(Door, TheCauseIsNotThatTimeIsUp) {
  const ListeningSocket silent = listen_tcp("127.0.0.1:0");
  std::vector<FileDescriptor> calls;
  std::thread peer([&] {
    for (int call = 0; call < 2; ++call) {
      pollfd waiting{silent.socket.get(), POLLIN, 0};
      ::poll(&waiting, 1, 5000);
      FileDescriptor taken = accept_connection(silent.socket.get());
      if (call == 1) calls.push_back(std::move(taken));
    }
  });
  FabricOptions options;
  options.key = "secret";
  Fabric fabric(options);
  Epoch epoch = epoch_of(2);
  epoch.members[0].address = silent.address;
  const std::string error = error_of([&] { fabric.connect(epoch, 1, 0.3); });
  peer.join();
  EXPECT_EQ(error.find("no answer"), std::string::npos) << error;
  EXPECT_NE(error.find("closed by the other side"), std::string::npos) << error;
}

// The one who dials looks as well: another member's certificate does not make the member that is called.
TEST(Door, WhoAnswersMustBeWhoWasCalled) {
  const Authority authority = Authority::create("test");
  FabricOptions options;
  options.encryption = Encryption::always;
  options.identity = authority.issue("m2");
  Fabric accepting(options);
  options.identity = authority.issue("m1");
  Fabric dialling(options);
  Epoch epoch = epoch_of(2);
  epoch.members[0].address = accepting.address();
  epoch.members[1].address = dialling.address();
  std::stop_source enough;
  std::thread other([&] { error_of([&] { accepting.connect(epoch, 0, 60, enough.get_token()); }); });
  const std::string error = error_of([&] { dialling.connect(epoch, 1, 20); });
  enough.request_stop();
  other.join();
  EXPECT_NE(error.find("the certificate at " + accepting.address() + " names \"m2\", not \"m0\""), std::string::npos)
      << error;
}

TEST(Authority, IsReadBackFromWhatItWrote) {
  const Authority authority = Authority::create("test");
  const Authority again = Authority::load(authority.save());
  EXPECT_EQ(again.certificate(), authority.certificate());
  EXPECT_NE(error_of([] { Authority::load("-----BEGIN CERTIFICATE-----\n"); }), "none");
  EXPECT_EQ(make_join_token().size(), 64U);
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_FALSE(same_secret("abc", "abd"));
  EXPECT_FALSE(same_secret("abc", "ab"));
}

// ---- connections that break ----

// Passes bytes on between its callers and `target`, and cuts every connection after a number of bytes.
class CuttingProxy {
 public:
  CuttingProxy(std::string target, std::size_t bytes) : target_(std::move(target)), bytes_(bytes) {
    listener_ = listen_tcp("127.0.0.1:0");
    thread_ = std::thread([this] { work(); });
  }
  ~CuttingProxy() {
    stopping_ = true;
    thread_.join();
  }
  const std::string& address() const { return listener_.address; }
  int cuts() const { return cuts_; }

 private:
  struct Pair {
    std::array<FileDescriptor, 2> ends;
    std::size_t passed = 0;
  };

  void work() {
    std::vector<Pair> pairs;
    while (!stopping_) {
      std::vector<pollfd> waiting{{listener_.socket.get(), POLLIN, 0}};
      for (const Pair& pair : pairs)
        for (const FileDescriptor& end : pair.ends) waiting.push_back({end.get(), POLLIN, 0});
      ::poll(waiting.data(), waiting.size(), 5);
      for (auto pair = pairs.begin(); pair != pairs.end();) pair = pass(*pair) ? pair + 1 : pairs.erase(pair);
      FileDescriptor caller(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!caller) continue;
      ConnectFailure failure;
      FileDescriptor callee = connect_tcp(target_, soon(), failure);
      if (callee) pairs.push_back({{std::move(caller), std::move(callee)}, 0});
    }
  }

  bool pass(Pair& pair) {
    std::array<std::byte, 16384> bytes;
    for (int from = 0; from < 2; ++from) {
      const ssize_t got =
          ::recv(pair.ends[static_cast<std::size_t>(from)].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
      for (ssize_t put = 0; put < got;) {
        const ssize_t once = ::send(pair.ends[static_cast<std::size_t>(1 - from)].get(), bytes.data() + put,
                                    static_cast<std::size_t>(got - put), MSG_NOSIGNAL);
        if (once < 0 && errno != EAGAIN) return false;
        put += std::max<ssize_t>(once, 0);
      }
      pair.passed += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    }
    if (pair.passed < bytes_) return true;
    ++cuts_;
    return false;
  }

  std::string target_;
  std::size_t bytes_;
  ListeningSocket listener_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> cuts_ = 0;
  std::thread thread_;
};

TEST(Reconnecting, ALostConnectionIsNotALostRank) {
  for (const bool encrypted : {false, true}) {
    const Authority authority = Authority::create("test");
    FabricOptions options;
    if (encrypted) options.encryption = Encryption::always;
    Epoch epoch = epoch_of(2);
    std::vector<std::unique_ptr<Fabric>> fabrics;
    for (int r = 0; r < 2; ++r) {
      options.identity = authority.issue("m" + std::to_string(r));
      fabrics.push_back(std::make_unique<Fabric>(options));
    }
    CuttingProxy proxy(fabrics[0]->address(), 900'000);
    epoch.members[0].address = proxy.address();
    epoch.members[1].address = fabrics[1]->address();
    std::array<int, 2> reconnects{};
    std::atomic<int> finished = 0;
    std::vector<std::thread> ranks;
    for (int r = 0; r < 2; ++r)
      ranks.emplace_back([&, r] {
        Communicator group(epoch, fabrics[static_cast<std::size_t>(r)]->connect(epoch, r, 10));
        for (int i = 0; i < 8; ++i) {
          std::vector<float> data = numbers(r, 300'000);
          const auto outcome = group.all_reduce(bytes_of(data), CollectiveElement::fp32, {});
          ASSERT_EQ(outcome.status, OperationStatus::ok) << outcome.cause;
          const auto a = numbers(0, data.size()), b = numbers(1, data.size());
          for (std::size_t k = 0; k < data.size(); ++k) ASSERT_EQ(data[k], a[k] + b[k]) << i << " " << k;
        }
        // A rank that is done serves the other until that is done, too: frames lost with a connection are sent again.
        ++finished;
        while (finished < 2) group.attend(0.01);
        reconnects[static_cast<std::size_t>(r)] = group.traffic(1 - r).reconnects;
      });
    for (std::thread& rank : ranks) rank.join();
    EXPECT_GT(proxy.cuts(), 5);
    EXPECT_GT(reconnects[0], 5);
    EXPECT_GT(reconnects[1], 5);
  }
}

// ---- memory ----

// In addition to the callers' buffers: what comes before its turn, at most the window's chunks of everything that is
// received.
TEST(Memory, IsBoundedByTheWindow) {
  constexpr int ranks = 4;
  TestWorld world("local", ranks);
  world.run([](Communicator& group) {
    std::vector<float> data(4'000'000);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(group.all_reduce(bytes_of(data), CollectiveElement::fp32, {}).status, OperationStatus::ok);
    // Chunks of ranks * 128 KiB; of each, a rank receives 2 (n - 1) shares.
    EXPECT_LE(group.peak_extra_bytes(),
              std::int64_t{chunks_at_once(ranks * (128 << 10), false)} * 2 * (ranks - 1) * (128 << 10));
  });
}

}  // namespace
}  // namespace motley
