#include "motley/comm/net/sockets.hpp"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr int most_waiting = 1024;  // for accept(): what a flood brings beyond that dials again

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& address, int flags, std::string& cause) {
  const HostPort place = parse_host_port(address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(place.host.empty() ? nullptr : place.host.c_str(), place.port.c_str(), &hints, &found);
  if (error != 0) cause = fmt::format("\"{}\": {}", address, ::gai_strerror(error));
  return {found, &::freeaddrinfo};
}

std::string text_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &in6.sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(in6.sin6_port));
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(address);
  ::inet_ntop(AF_INET, &in4.sin_addr, text.data(), text.size());
  return fmt::format("{}:{}", text.data(), ntohs(in4.sin_port));
}

struct LocalName {
  sockaddr_un address{};
  socklen_t size = 0;
  explicit LocalName(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);  // the zero before it makes it abstract
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// Every TCP connection of ours: no delay, dead ones noticed within about ten seconds even where nothing is sent.
void set_connection_options(int socket) {
  const auto set = [&](int level, int option, int value) { ::setsockopt(socket, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  // What the kernel cannot send yet waits here, where another stream may still take it.
  set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 256 << 10);
  // Where the system's choice is BBR it paces by a timer, which on a way through memory takes time and saves nothing.
  constexpr std::string_view unpaced = "reno";  // the one that every process may choose
  if (peer_is_local(socket)) ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, unpaced.data(), unpaced.size());
}

}  // namespace

HostPort parse_host_port(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort place;
  if (colon != std::string::npos) {
    place = {address.substr(0, colon), address.substr(colon + 1)};
    if (place.host.size() > 2 && place.host.front() == '[' && place.host.back() == ']')
      place.host = place.host.substr(1, place.host.size() - 2);
  }
  const bool number = !place.port.empty() && place.port.size() < 6 &&
                      std::ranges::all_of(place.port, [](char c) { return c >= '0' && c <= '9'; });
  if (!number || std::stoi(place.port) > 65535)
    throw input_error(fmt::format("\"{}\" is not an address", address), "write it as host:port, as in 10.0.0.7:4711");
  return place;
}

bool is_loopback(const std::string& address) {
  const std::string host = parse_host_port(address).host;
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

ListeningSocket listen_tcp(const std::string& address) {
  constexpr const char* own_address = "give an address of this machine, and a free port; 0 takes any free one";
  std::string cause;
  const Addresses found = resolve(address, AI_PASSIVE, cause);
  if (!found) throw Error(ErrorCode::environment, "cannot listen on " + cause, own_address);
  FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!socket || ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), most_waiting) != 0)
    throw environment_error(fmt::format("cannot listen on {}", address), own_address);
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0)
    throw environment_error("cannot read the address of a socket");
  return {std::move(socket), text_of(name)};
}

FileDescriptor listen_local(const std::string& name) {
  const LocalName local(name);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::bind(socket.get(), local.get(), local.size) != 0 || ::listen(socket.get(), most_waiting) != 0)
    throw environment_error(fmt::format("cannot listen as \"{}\"", name));
  return socket;
}

FileDescriptor accept_connection(int listening) {
  FileDescriptor socket(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket)
    set_connection_options(socket.get());
  else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return socket;
}

FileDescriptor connect_tcp(const std::string& address, Instant until, ConnectFailure& failure) {
  failure = {};
  const Addresses found = resolve(address, 0, failure.cause);
  if (!found) return FileDescriptor();
  FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw environment_error("cannot make a socket");
  int error = ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    error = ETIMEDOUT;
    socklen_t size = sizeof error;
    if (wait_for(socket.get(), POLLOUT, until)) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) {
    set_connection_options(socket.get());
    return socket;
  }
  failure = {fmt::format("{}: {}", address, std::strerror(error)), error == ECONNREFUSED};
  return FileDescriptor();
}

FileDescriptor connect_local(const std::string& name, ConnectFailure& failure) {
  const LocalName local(name);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw environment_error("cannot make a socket");
  if (::connect(socket.get(), local.get(), local.size) == 0) return socket;
  failure = {fmt::format("{}: {}", name, std::strerror(errno)), errno == ECONNREFUSED};
  return FileDescriptor();
}

std::string own_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat space {};
  ::stat("/proc/self/ns/net", &space);
  return fmt::format("{}/{}/{}", name.data(), boot.substr(0, 8), space.st_ino);
}

std::string peer_address(int socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&name), &size) == 0 ? text_of(name) : std::string();
}

std::string local_address(int socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &size) == 0 ? text_of(name) : std::string();
}

std::string peer_origin(int socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&name), &size) != 0) return {};
  if (name.ss_family == AF_INET) {
    const auto& in4 = reinterpret_cast<const sockaddr_in&>(name).sin_addr;
    return {reinterpret_cast<const char*>(&in4), sizeof in4};
  }
  if (name.ss_family != AF_INET6) return {};
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(name).sin6_addr;
  constexpr std::size_t network_bytes = 8;
  const auto* bytes = reinterpret_cast<const char*>(in6.s6_addr);
  return IN6_IS_ADDR_V4MAPPED(&in6) ? std::string(bytes + 12, 4) : std::string(bytes, network_bytes);
}

bool peer_is_local(int socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&name), &size) != 0) return false;
  if (name.ss_family == AF_UNIX) return true;
  if (name.ss_family == AF_INET) return ntohl(reinterpret_cast<const sockaddr_in&>(name).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(name).sin6_addr);
}

void send_descriptors(int socket, std::vector<int> descriptors, Instant until) {
  std::vector<std::byte> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  char mark = 'd';
  iovec part{&mark, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  if (!wait_for(socket, POLLOUT, until) || ::sendmsg(socket, &message, MSG_NOSIGNAL) != 1)
    throw Error(ErrorCode::peer, "cannot pass descriptors on");
}

std::vector<FileDescriptor> receive_descriptors(int socket, std::size_t count, Instant until) {
  constexpr std::size_t most = 8;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(most * sizeof(int))> control{};
  char mark = 0;
  iovec part{&mark, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  std::vector<FileDescriptor> descriptors;
  if (!wait_for(socket, POLLIN, until) || ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
    throw Error(ErrorCode::peer, "no file descriptors were received");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= header->cmsg_len; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof number);
      descriptors.emplace_back(number);
    }
  }
  if (descriptors.size() != count)
    throw Error(ErrorCode::peer, fmt::format("received {} file descriptors instead of {}", descriptors.size(), count));
  return descriptors;
}

void drain(std::vector<FileDescriptor> sockets, Instant until) {
  for (const FileDescriptor& socket : sockets) ::shutdown(socket.get(), SHUT_WR);
  std::array<std::byte, 16384> discarded;
  while (!sockets.empty() && Clock::now() < until) {
    std::erase_if(sockets, [&](const FileDescriptor& socket) {
      ssize_t got = 0;
      while ((got = ::recv(socket.get(), discarded.data(), discarded.size(), MSG_DONTWAIT)) > 0) {
      }
      int unsent = 0;
      return got == 0 || errno != EAGAIN || ::ioctl(socket.get(), SIOCOUTQ, &unsent) != 0 || unsent == 0;
    });
    if (!sockets.empty()) ::poll(nullptr, 0, 2);
  }
}

}  // namespace motley
