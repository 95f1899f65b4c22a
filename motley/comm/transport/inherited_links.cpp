#include "motley/comm/transport/inherited_links.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/environment_error.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/transport/arrivals.hpp"
#include "motley/comm/transport/edge.hpp"
#include "motley/comm/transport/mesh.hpp"

namespace motley {
namespace {

using Ends = std::array<FileDescriptor, 2>;

sockaddr_in local_address(const FileDescriptor& socket, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (which(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw environment_error("cannot read the address of a socket");
  return address;
}

Ends make_local_connection() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw environment_error("cannot make a local connection");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// Over loopback. Unlike connections between hosts it never ends by time: a peer that computes may read nothing for
// long.
Ends make_tcp_connection() {
  const auto new_socket = [] { return FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); };
  const FileDescriptor listener = new_socket();
  FileDescriptor near = new_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!listener || !near || ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 4) != 0)
    throw environment_error("cannot listen on the loopback interface");
  address = local_address(listener, ::getsockname);
  if (::connect(near.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw environment_error("cannot connect over the loopback interface");
  const in_port_t ours = local_address(near, ::getsockname).sin_port;
  FileDescriptor far;
  do {  // any process of this machine might have connected in between
    far = FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!far) throw environment_error("cannot accept over the loopback interface");
  } while (local_address(far, ::getpeername).sin_port != ours);
  const int on = 1;
  for (const FileDescriptor* end : {&near, &far})
    if (::setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        ::fcntl(end->get(), F_SETFL, O_NONBLOCK) != 0)
      throw environment_error("cannot set up a connection");
  return {std::move(near), std::move(far)};
}

FileDescriptor duplicate(int descriptor) {
  FileDescriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw environment_error("cannot duplicate a descriptor");
  return copy;
}

}  // namespace

LinkKind link_kind(std::string_view name) {
  if (name == "shm") return LinkKind::shared_memory;
  if (name == "tcp") return LinkKind::tcp;
  throw input_error(fmt::format("unknown transport \"{}\"", name), "choose shm or tcp");
}

std::vector<int> descriptors_of(const InheritedLinks& links) {
  std::vector<int> descriptors;
  const auto add = [&](int descriptor) {
    if (descriptor >= 0) descriptors.push_back(descriptor);
  };
  add(links.doorbell);
  for (const InheritedLink& link : links.links) {
    add(link.connection);
    add(link.memory);
    add(link.doorbell);
  }
  return descriptors;
}

std::vector<std::pair<int, int>> all_pairs(int ranks) {
  std::vector<std::pair<int, int>> pairs;
  for (int a = 0; a < ranks; ++a)
    for (int b = a + 1; b < ranks; ++b) pairs.emplace_back(a, b);
  return pairs;
}

LinkEnds make_links(int ranks, const std::vector<std::pair<int, int>>& pairs, LinkKind kind,
                    std::int64_t window_bytes) {
  LinkEnds ends{.of_rank = std::vector<InheritedLinks>(static_cast<std::size_t>(ranks)), .owned = {}};
  const auto own = [&](FileDescriptor descriptor) { return ends.owned.emplace_back(std::move(descriptor)).get(); };
  for (InheritedLinks& links : ends.of_rank) links.doorbell = own(Wakeup().release());
  for (const auto& [a, b] : pairs) {
    const std::array<int, 2> pair{a, b};
    Ends connection = kind == LinkKind::tcp ? make_tcp_connection() : make_local_connection();
    const FileDescriptor memory = kind == LinkKind::tcp ? FileDescriptor() : make_shared_edge_memory(window_bytes);
    for (std::size_t side = 0; side < 2; ++side) {
      const int peer = pair[1 - side];
      InheritedLink link{
          .peer = peer, .connection = own(std::move(connection[side])), .side = static_cast<std::uint8_t>(side)};
      if (memory) {
        link.memory = own(duplicate(memory.get()));
        link.doorbell = own(duplicate(ends.of_rank[static_cast<std::size_t>(peer)].doorbell));
      }
      ends.of_rank[static_cast<std::size_t>(pair[side])].links.push_back(link);
    }
  }
  return ends;
}

std::unique_ptr<Transport> open_links(const Epoch& epoch, int rank, const InheritedLinks& links) {
  if (links.doorbell < 0) throw Error(ErrorCode::peer, fmt::format("no links for rank {}", rank));
  const auto arrivals = std::make_shared<LinkArrivals>(epoch, rank, Wakeup(FileDescriptor(links.doorbell)));
  const int ranks = static_cast<int>(epoch.members.size());
  for (const InheritedLink& link : links.links) {
    LinkArrival arrival{.peer = link.peer,
                        .purpose = link.memory >= 0 ? LinkPurpose::shared_memory : LinkPurpose::stream,
                        .connection = ByteStream(FileDescriptor(link.connection)),
                        .memory = FileDescriptor(link.memory),
                        .doorbell = FileDescriptor(link.doorbell),
                        .side = link.side};
    if (link.peer < 0 || link.peer >= ranks || link.peer == rank || link.side > 1)
      throw Error(ErrorCode::peer, fmt::format("a link of rank {} of {} to rank {}, side {}", rank, ranks, link.peer,
                                               static_cast<int>(link.side)));
    arrivals->put(std::move(arrival));
  }
  auto mesh = make_mesh(
      {.arrivals = arrivals,
       .most_streams = 1,
       .dial =
           [lost = arrivals.get()](int peer, LinkPurpose purpose, std::uint16_t stream, const std::string&) {
             if (purpose == LinkPurpose::revoke) return;  // it goes with the frames alone
             lost->put({.peer = peer,
                        .purpose = purpose,
                        .stream = stream,
                        .refusal = "its process has closed the connection"});
           },
       .closed = [](std::vector<FileDescriptor> sockets) { drain(std::move(sockets), Clock::now() + drain_time); }});
  mesh->unconnected();  // takes what was put
  if (const auto [peer, cause] = mesh->refusal(); peer >= 0)
    throw Error(ErrorCode::peer, fmt::format("no link to rank {}: {}", peer, cause));
  // TCP streams exchange handshakes, which must not wait for this side's first operation.
  class Later : public FrameSink {
    Verdict on_frame(int, const CollectiveFrame&, std::span<const std::byte>) noexcept override {
      return Verdict::later;
    }
    void on_lost(int, const std::string&) noexcept override {}
  } later;
  mesh->poll(later);
  return mesh;
}

}  // namespace motley
