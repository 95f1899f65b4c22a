#include "motley/comm/net/strangers.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <new>

#include "motley/base/error.hpp"
#include "motley/comm/net/deadline_test.hpp"

namespace motley {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::SizeIs;

TEST(Strangers, TheOldestOfTheAddressWithTheMostMakesRoom) {
  const StrangerLimits limits{.most = 4, .most_of_address = 3};
  EXPECT_EQ(stranger_to_evict({}, "a", limits), std::nullopt);
  EXPECT_EQ(stranger_to_evict({"a", "b", "a"}, "a", limits), std::nullopt);
  EXPECT_EQ(stranger_to_evict({"b", "a", "a", "a"}, "a", limits), 1U);  // its own, as it has all that one may have
  EXPECT_EQ(stranger_to_evict({"b", "a", "a", "a"}, "b", limits), 1U);
  EXPECT_EQ(stranger_to_evict({"b", "c", "a", "a"}, "d", limits), 2U);
}

// Is through once it has said "k"; "m" costs memory that is not there.
class OneLetter {
 public:
  explicit OneLetter(FileDescriptor socket) : stream_(std::move(socket)) {}
  int descriptor() const { return stream_.descriptor(); }
  short events() const { return POLLIN; }
  bool advance() {
    std::byte letter{};
    const ByteStream::Moved moved = stream_.read({&letter, 1});
    if (moved.state == ByteStream::State::closed) throw Error(ErrorCode::peer, stream_.cause());
    if (letter == std::byte{'m'}) throw std::bad_alloc();
    return letter == std::byte{'k'};
  }

 private:
  ByteStream stream_;
};

struct Door {
  explicit Door(StrangerLimits limits)
      : strangers(limits, [this](const std::string&, const std::string& cause) { refused.push_back(cause); }) {}

  ByteStream dial() const {
    ConnectFailure failure;
    ByteStream stream(connect_tcp(listening.address, soon(), failure));
    EXPECT_TRUE(stream.open()) << failure.cause;
    return stream;
  }
  ByteStream dial_and_say(char letter) const {
    ByteStream stream = dial();
    stream.write_all(std::as_bytes(std::span(&letter, 1)), soon());
    return stream;
  }
  // Until this many more are through.
  void let_through(std::size_t count) {
    for (const auto until = soon(); count > 0 && Clock::now() < until;) count -= turn();
    EXPECT_EQ(count, 0U);
  }
  std::size_t turn() {
    strangers.take_in([this] { return accept_connection(listening.socket.get()); },
                      [](FileDescriptor socket) { return OneLetter(std::move(socket)); });
    return strangers.advance().size();
  }

  ListeningSocket listening = listen_tcp("127.0.0.1:0");
  std::vector<std::string> refused;
  Strangers<OneLetter> strangers;
};

TEST(Strangers, SilenceKeepsNobodyOut) {
  Door door({.most = 16, .most_of_address = 8, .handshake_s = 1000});
  std::vector<ByteStream> silent, honest;
  for (int i = 0; i < 40; ++i) silent.push_back(door.dial());
  for (int i = 0; i < 3; ++i) honest.push_back(door.dial_and_say('k'));
  door.let_through(3);
  EXPECT_EQ(door.strangers.size(), 5U);  // of eight, three have gone on
  EXPECT_THAT(door.refused, SizeIs(35));
}

TEST(Strangers, AHandshakeHasATimeAndAFailureEndsOneConnection) {
  Door door({.handshake_s = 0.01});
  const ByteStream silent = door.dial(), short_of_memory = door.dial_and_say('m'), honest = door.dial_and_say('k');
  door.let_through(1);
  while (!door.strangers.empty()) door.turn();
  EXPECT_THAT(door.refused, Contains("no handshake in time"));
  EXPECT_THAT(door.refused, Contains(HasSubstr("bad_alloc")));
}

TEST(Strangers, WithoutADescriptorToSpareANewcomerFollowsOneThatGoes) {
  Door door({.handshake_s = 1000});
  std::vector<ByteStream> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(door.dial());
  while (door.strangers.size() < 3) door.turn();
  const ByteStream honest = door.dial_and_say('k');
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  rlimit none = limit;
  none.rlim_cur = 3;  // below all that are open
  ::setrlimit(RLIMIT_NOFILE, &none);
  door.turn();
  EXPECT_EQ(door.strangers.size(), 2U);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  door.let_through(1);
}

}  // namespace
}  // namespace motley
