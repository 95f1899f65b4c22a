// Members that cannot be dialled: they listen in mailboxes at a relay.
#include "motley/comm/net/relay.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/collective/world_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/hostile_test.hpp"
#include "motley/comm/state/state_transfer.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

class RelayThread {
 public:
  explicit RelayThread(RelayOptions options = {}) {
    options.key = "secret";
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_ += line + "\n";
    };
    relay_ = std::make_unique<Relay>(std::move(options));
    thread_ = std::jthread([this](const std::stop_token& stop) { relay_->run(stop); });
  }
  const std::string& address() const { return relay_->address(); }
  std::string log() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  // A listener is known a moment after its address.
  void wait_for(const std::string& words) const {
    while (log().find(words) == std::string::npos) std::this_thread::yield();
  }

 private:
  mutable std::mutex mutex_;
  std::string lines_;
  std::unique_ptr<Relay> relay_;
  std::jthread thread_;
};

// `ranks` members; those in `hidden` can be called at the relay alone.
struct RelayedWorld {
  RelayedWorld(int ranks, const std::vector<int>& hidden, const std::string& relay, const Authority* authority)
      : epoch(epoch_of(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      Member& member = epoch.members[static_cast<std::size_t>(rank)];
      FabricOptions options;
      options.key = "secret";
      options.encryption = authority != nullptr ? Encryption::off_loopback : Encryption::never;
      if (authority != nullptr) options.identity = authority->issue(member.id);
      if (std::ranges::count(hidden, rank) > 0) options.listen = "relay:" + relay;
      fabrics.push_back(std::make_unique<Fabric>(options));
      member.address = fabrics.back()->address();
    }
  }

  template <class Body>
  void run(const Body& body) {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < fabrics.size(); ++rank)
      threads.emplace_back([this, rank, &body] {
        Communicator group(epoch, fabrics[rank]->connect(epoch, static_cast<int>(rank), 20));
        body(group);
      });
  }

  Epoch epoch;
  std::vector<std::unique_ptr<Fabric>> fabrics;
};

std::vector<float> numbers(int rank, std::size_t count) {
  std::vector<float> data(count);
  std::iota(data.begin(), data.end(), static_cast<float>(rank));
  return data;
}

void all_reduce_once(Communicator& group, std::size_t count) {
  auto data = numbers(group.rank(), count);
  const auto outcome = group.all_reduce(std::as_writable_bytes(std::span(data)), CollectiveElement::fp32, {});
  ASSERT_EQ(outcome.status, OperationStatus::ok) << outcome.cause;
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < group.size(); ++rank) sum += static_cast<float>(rank) + static_cast<float>(i);
    ASSERT_EQ(data[i], sum) << i;
  }
}

TEST(Relay, JoinsMembersThatNobodyCanDial) {
  const RelayThread relay;
  RelayedWorld world(4, {0, 2, 3}, relay.address(), nullptr);
  EXPECT_THAT(world.fabrics[0]->address(), HasSubstr("relay:" + relay.address() + "/"));
  world.run([](Communicator& group) {
    for (const std::size_t count : {1U, 1000U, 700'000U}) all_reduce_once(group, count);
  });
  // Higher ranks dial: 1 is dialled directly, 0 by three and 2 by one through the relay, again where they came too
  // soon.
  const std::string log = relay.log();
  std::size_t joined = 0;
  for (std::size_t at = 0; (at = log.find("joined", at)) != std::string::npos; ++at) ++joined;
  EXPECT_GE(joined, 4U) << log;
}

// The relay is on loopback, and what it passes on may come from anywhere: TLS from end to end.
TEST(Relay, SeesCiphertextAlone) {
  const Authority authority = Authority::create("test");
  RelayOptions options;
  options.identity = authority.issue(std::string(coordinator_name));
  const RelayThread relay(std::move(options));
  RelayedWorld world(2, {0, 1}, relay.address(), &authority);
  world.run([](Communicator& group) {
    all_reduce_once(group, 100'000);
    EXPECT_EQ(group.traffic(1 - group.rank()).kind, "tls");
  });
  EXPECT_THAT(relay.log(), HasSubstr("member=\"m0\""));
}

TEST(Relay, WhoIsNotOfTheGroupIsTurnedAway) {
  const RelayThread relay;
  const std::string mailbox = "relay:" + relay.address() + "/anna";
  ConnectFailure failure;
  const auto cause_with = [&](const std::string& key, const std::string& address) {
    EXPECT_FALSE(connect_to(address, {.key = key, .identity = {}, .encryption = Encryption::never}, soon(), failure));
    return failure.cause;
  };
  EXPECT_THAT(cause_with("guess", mailbox), HasSubstr("not this group's key"));
  EXPECT_THAT(cause_with("secret", mailbox), HasSubstr("no member listens in mailbox \"anna\""));
  // One with TLS at a relay without, and the other way round.
  const Authority authority = Authority::create("test");
  const RelayAccess secured{.key = "secret", .identity = authority.issue("m0"), .encryption = Encryption::always};
  EXPECT_FALSE(connect_to(mailbox, secured, soon(), failure));
  relay.wait_for("came with TLS");
  RelayOptions options;
  options.identity = authority.issue(std::string(coordinator_name));
  const RelayThread other(std::move(options));
  cause_with("secret", "relay:" + other.address() + "/anna");
  other.wait_for("came without TLS");
  // A ticket that was not issued, another protocol, another version.
  for (const int broken : {0, 4, 5, 8}) {
    ByteStream stream(connect_tcp(relay.address(), soon(), failure));
    auto opening = encode_opening({RelayOpening::Kind::data, {1, 2, 3}});
    opening[static_cast<std::size_t>(broken)] ^= std::byte{0x40};
    stream.write_all(opening, soon());
    std::byte more{};
    EXPECT_THROW(stream.read_all(std::span(&more, 1), soon()), Error);
  }
  // A member of the group that takes it for another member.
  ByteStream stream(connect_tcp(relay.address(), soon(), failure));
  stream.write_all(encode_opening({RelayOpening::Kind::control, {}}), soon());
  EXPECT_EQ(client_handshake(stream, LinkHello{}, "secret", soon()).cause, "this is a relay");
}

TEST(Relay, AMailboxBelongsToWhomItsCertificateNames) {
  const Authority authority = Authority::create("test");
  RelayOptions options;
  options.identity = authority.issue(std::string(coordinator_name));
  const RelayThread relay(std::move(options));
  const std::string mailbox = "relay:" + relay.address() + "/anna";
  const auto of = [&](const std::string& name) {
    return RelayAccess{.key = "secret", .identity = authority.issue(name), .encryption = Encryption::always};
  };
  const auto anna = listen_at(mailbox, of("anna"));
  relay.wait_for("listens mailbox=\"anna\" member=\"anna\"");
  while (!anna->trouble().empty()) std::this_thread::yield();
  const auto mallory = listen_at(mailbox, of("mallory"));
  relay.wait_for("\"anna\" listens in mailbox \"anna\"");
  ConnectFailure failure;
  const FileDescriptor caller = connect_to(mailbox, of("ben"), soon(), failure);
  EXPECT_TRUE(static_cast<bool>(caller)) << failure.cause;
  FileDescriptor answered;
  while (!answered) answered = anna->accept();
  EXPECT_FALSE(mallory->accept());
  while (mallory->trouble().find("refuses") == std::string::npos) std::this_thread::yield();
}

// How many of these, at once, are welcomed as listeners. Each stays connected until all are answered.
std::size_t welcomed_at_once(const std::string& relay, const Authority& authority, std::size_t count,
                             const std::function<std::string(std::size_t)>& mailbox_of) {
  std::atomic<std::size_t> welcomed = 0, answered = 0;
  std::vector<std::jthread> callers;
  for (std::size_t i = 0; i < count; ++i)
    callers.emplace_back([&, i, identity = TlsContext(authority.issue(fmt::format("m{}", i)))] {
      ConnectFailure failure;
      ByteStream stream(connect_tcp(relay, soon(), failure));
      stream.write_all(encode_opening({RelayOpening::Kind::secured_control, {}}), soon());
      stream.secure_as_client(identity, soon());
      LinkHello said;
      said.purpose = LinkPurpose::relay_listen;
      said.word = mailbox_of(i);
      if (client_handshake(stream, said, "secret", soon()).answer == LinkAnswer::welcome) ++welcomed;
      for (++answered; answered < count;) std::this_thread::yield();
    });
  callers.clear();
  return welcomed;
}

TEST(Relay, AMailboxAndARoomForOneAreGivenOnce) {
  const Authority authority = Authority::create("test");
  RelayOptions options;
  options.identity = authority.issue(std::string(coordinator_name));
  options.most_mailboxes = 2;
  for (int round = 0; round < 5; ++round) {
    const RelayThread relay(options);
    EXPECT_EQ(welcomed_at_once(relay.address(), authority, 6, [](std::size_t) { return "anna"; }), 1U);
    EXPECT_EQ(welcomed_at_once(relay.address(), authority, 6, [](std::size_t i) { return fmt::format("{}", i); }), 2U)
        << relay.log();
  }
}

// A pair of connections that were joined at a relay; hold() says how its end is known.
struct JoinedPair {
  explicit JoinedPair(const std::string& mailbox, Listener& listener) {
    ConnectFailure failure;
    caller = ByteStream(connect_to(mailbox, {.key = "secret", .identity = {}}, soon(), failure));
    EXPECT_TRUE(caller.open()) << failure.cause;
    for (const auto until = soon(); !callee.open() && Clock::now() < until;) callee = ByteStream(listener.accept());
  }
  void pass_a_byte() {
    std::byte byte{1};
    caller.write_all({&byte, 1}, soon());
    callee.read_all({&byte, 1}, soon());
  }
  void wait_for_end() {
    std::byte byte{1};
    EXPECT_THROW(caller.read_all({&byte, 1}, soon()), Error);
  }
  ByteStream caller, callee;
};

TEST(Relay, PairsThatAreIdleEnd) {
  for (const bool crowded : {false, true}) {
    RelayOptions options;
    if (crowded)
      options.most_joined = 2;
    else
      options.idle_s = 0.3;
    const RelayThread relay(options);
    const std::string mailbox = "relay:" + relay.address() + "/anna";
    const auto anna = listen_at(mailbox, {.key = "secret", .identity = {}});
    relay.wait_for("listens");
    JoinedPair first(mailbox, *anna);
    first.pass_a_byte();
    if (crowded) {
      JoinedPair second(mailbox, *anna);
      second.pass_a_byte();
      first.pass_a_byte();
      JoinedPair third(mailbox, *anna);
      third.pass_a_byte();
      second.wait_for_end();
      first.pass_a_byte();
    } else {
      first.wait_for_end();
    }
    relay.wait_for("idle a=");
  }
}

TEST(Relay, MembersGoOnAfterTheirPairHasEnded) {
  RelayOptions options;
  options.idle_s = 0.5;
  const RelayThread relay(options);
  RelayedWorld world(2, {0, 1}, relay.address(), nullptr);
  world.run([&](Communicator& group) {
    all_reduce_once(group, 1000);
    relay.wait_for("idle a=");
    all_reduce_once(group, 1000);
  });
}

TEST(Relay, StrangersCostLittleAndKeepNobodyOut) {
  const Authority authority = Authority::create("test");
  for (const bool secured : {false, true}) {
    RelayOptions options;
    RelayAccess access{.key = "secret", .identity = {}};
    if (secured) {
      options.identity = authority.issue(std::string(coordinator_name));
      access.identity = authority.issue("honest");
      access.encryption = Encryption::always;
    }
    const RelayThread relay(options);
    const std::string mailbox = "relay:" + relay.address() + "/anna";
    const auto anna = listen_at(mailbox, access);
    relay.wait_for("listens");
    const auto opening = [](RelayOpening::Kind kind) {
      const auto bytes = encode_opening({kind, {1, 2, 3}});
      return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    const std::string control = secured ? opening(RelayOpening::Kind::secured_control) + tls_opening()
                                        : opening(RelayOpening::Kind::control) + link_opening();
    expect_to_endure_hostile_clients(relay.address(), {control, opening(RelayOpening::Kind::data)}, [&] {
      ConnectFailure failure;
      const FileDescriptor called = connect_to(mailbox, access, deadline_in(5), failure);
      if (!called) throw Error(ErrorCode::peer, failure.cause);
      FileDescriptor answered;
      for (const auto until = deadline_in(5); !answered;) {
        if (Clock::now() > until) throw Error(ErrorCode::peer, "the call does not arrive");
        answered = anna->accept();
      }
    });
    const std::string log = relay.log();
    EXPECT_LT(std::ranges::count(log, '\n'), 1000) << log;
  }
}

// Of a member that is revoked nothing stays: neither its mailbox nor what it has joined, nor a new call.
TEST(Relay, WhoIsRevokedIsCutOff) {
  const Authority authority = Authority::create("test");
  std::atomic<bool> revoked = false;
  RelayOptions options;
  options.identity = authority.issue(std::string(coordinator_name));
  options.objection = [&](const std::string& member) {
    return revoked && member == "mallory" ? "the member has been revoked" : "";
  };
  const RelayThread relay(std::move(options));
  const auto of = [&](const std::string& name) {
    return RelayAccess{.key = "secret", .identity = authority.issue(name), .encryption = Encryption::always};
  };
  const std::string at = "relay:" + relay.address();
  const auto anna = listen_at(at + "/anna", of("anna")), mallory = listen_at(at + "/mallory", of("mallory"));
  for (const std::string name : {"anna", "mallory"}) relay.wait_for("listens mailbox=\"" + name + "\"");
  ConnectFailure failure;
  ByteStream calling(connect_to(at + "/anna", of("mallory"), soon(), failure));
  ByteStream called(connect_to(at + "/mallory", of("anna"), soon(), failure));
  const ByteStream honest(connect_to(at + "/anna", of("ben"), soon(), failure));
  relay.wait_for("pairs=3");
  revoked = true;
  std::array<std::byte, 1> nothing{};
  for (ByteStream* stream : {&calling, &called}) EXPECT_THROW(stream->read_all(nothing, soon()), Error);
  relay.wait_for("lost mailbox=\"mallory\"");
  EXPECT_FALSE(connect_to(at + "/anna", of("mallory"), soon(), failure));
  EXPECT_THAT(failure.cause, HasSubstr("the member has been revoked"));
  EXPECT_FALSE(wait_for(honest.descriptor(), POLLIN, deadline_in(0.1))) << "it goes on";
  EXPECT_TRUE(connect_to(at + "/anna", of("ben"), soon(), failure)) << failure.cause;
}

TEST(Relay, AMemberIsNotTakenForTheRelay) {
  const Authority authority = Authority::create("test");
  RelayOptions options;
  options.identity = authority.issue("mallory");
  const RelayThread impostor(options);
  const RelayAccess anna{.key = "secret", .identity = authority.issue("anna"), .encryption = Encryption::always};
  const auto listener = listen_at("relay:" + impostor.address(), anna);
  const std::string cause = "names \"mallory\", not \"coordinator\"";
  const auto said = [&] { return listener->trouble().find(cause) != std::string::npos; };
  for (const auto until = soon(); !said() && Clock::now() < until;) std::this_thread::yield();
  EXPECT_THAT(listener->trouble(), HasSubstr(cause));
}

TEST(Relay, MembersComeBackWhenItWasGone) {
  auto relay = std::make_unique<RelayThread>();
  RelayOptions same;
  same.listen = relay->address();
  RelayedWorld world(2, {0, 1}, relay->address(), nullptr);
  std::atomic<int> rounds = 0;
  std::jthread stopper([&] {
    while (rounds < 4) std::this_thread::yield();
    relay.reset();
    relay = std::make_unique<RelayThread>(same);
  });
  std::atomic<int> finished = 0, reconnects = 0;
  world.run([&](Communicator& group) {
    for (int round = 0; round < 40; ++round) {
      all_reduce_once(group, 200'000);
      ++rounds;
    }
    ++finished;
    while (finished < 2) group.attend(0.01);
    reconnects += group.traffic(1 - group.rank()).reconnects;
  });
  EXPECT_GT(reconnects, 0);
}

TEST(Relay, StateIsGivenThroughItToo) {
  const RelayThread relay;
  StateListener listener("relay:" + relay.address(), {}, "secret");
  relay.wait_for("listens");
  ByteStream caller = connect_for_state(listener.address(), {}, "secret");
  ByteStream answered;
  while (!answered.open()) answered = listener.accept();
  const std::array<std::byte, 3> said{std::byte{1}, std::byte{2}, std::byte{3}};
  caller.write_all(said, soon());
  std::array<std::byte, 3> heard{};
  answered.read_all(heard, soon());
  EXPECT_EQ(heard, said);
}

TEST(Relay, AddressesOfOtherKindsAreRefused) {
  for (const std::string& address :
       std::vector<std::string>{"relay:nowhere", "relay:127.0.0.1:1/", "relay:127.0.0.1:1/" + std::string(65, 'x')})
    EXPECT_THROW(listen_at(address, {}), Error) << address;
  EXPECT_THROW(Relay(RelayOptions{.listen = "0.0.0.0:0"}), Error);  // without an identity
  EXPECT_EQ(sibling_of("10.0.0.7:4711"), "10.0.0.7:0");
  EXPECT_EQ(sibling_of("relay:10.0.0.7:4711/anna"), "relay:10.0.0.7:4711");
}

}  // namespace
}  // namespace motley
