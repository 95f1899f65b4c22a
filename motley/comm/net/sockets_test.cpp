#include "motley/comm/net/sockets.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace motley {
namespace {

// No descriptor above those that are open, while this lives.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const FileDescriptor lowest(::dup(STDERR_FILENO));
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest.get());
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;
  ~NoDescriptorsLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(Sockets, WhoCallsWhileDescriptorsAreShortIsTakenLater) {
  const ListeningSocket listening = listen_tcp("127.0.0.1:0");
  ConnectFailure failure;
  const FileDescriptor caller = connect_tcp(listening.address, deadline_in(5), failure);
  ASSERT_TRUE(caller) << failure.cause;
  {
    const NoDescriptorsLeft none;
    EXPECT_FALSE(accept_connection(listening.socket.get()));
  }
  EXPECT_TRUE(accept_connection(listening.socket.get()));
  EXPECT_FALSE(accept_connection(listening.socket.get())) << "no other called";
}

// What the system chooses may pace by a timer, as BBR does.
TEST(Sockets, ConnectionsWithinAMachineAreNotPaced) {
  const ListeningSocket listening = listen_tcp("127.0.0.1:0");
  ConnectFailure failure;
  const FileDescriptor caller = connect_tcp(listening.address, deadline_in(5), failure);
  ASSERT_TRUE(caller) << failure.cause;
  const FileDescriptor called = accept_connection(listening.socket.get());
  for (const FileDescriptor* end : {&caller, &called}) {
    std::array<char, 16> chosen{};
    socklen_t size = chosen.size();
    ASSERT_EQ(::getsockopt(end->get(), IPPROTO_TCP, TCP_CONGESTION, chosen.data(), &size), 0);
    EXPECT_STREQ(chosen.data(), "reno");
  }
}

}  // namespace
}  // namespace motley
