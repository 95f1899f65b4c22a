#include "motley/comm/net/sockets.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

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
  const FileDescriptor caller =
      connect_tcp(listening.address, std::chrono::steady_clock::now() + std::chrono::seconds(5), failure);
  ASSERT_TRUE(caller) << failure.cause;
  {
    const NoDescriptorsLeft none;
    EXPECT_FALSE(accept_connection(listening.socket.get()));
  }
  EXPECT_TRUE(accept_connection(listening.socket.get()));
  EXPECT_FALSE(accept_connection(listening.socket.get())) << "nobody else called";
}

}  // namespace
}  // namespace motley
