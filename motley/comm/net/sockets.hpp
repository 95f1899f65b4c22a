// Addresses and descriptors, as the fabric needs them.
#pragma once

#include <string>
#include <vector>

#include "motley/comm/net/byte_stream.hpp"

namespace motley {

struct HostPort {
  std::string host;
  std::string port;
};
// "10.0.0.7:4711" or "[::1]:4711". Throws an input error.
HostPort parse_host_port(const std::string& address);
// True for what no other machine can reach.
bool is_loopback(const std::string& address);

struct ListeningSocket {
  FileDescriptor socket;
  std::string address;  // with the port that was chosen
};
// Throw environment errors.
ListeningSocket listen_tcp(const std::string& address);
FileDescriptor listen_local(const std::string& name);  // in the abstract namespace: leaves nothing behind

// Who calls at a listening socket, with the options of a connection; empty where there is none. Where the process has
// no descriptors left the call stays in the queue: then this waits a moment, so that a loop around it does not spin.
FileDescriptor accept_connection(int listening);

// Throw a peer error, with `refused` set where the host answered that no process listens there.
struct ConnectFailure {
  std::string cause;
  bool refused = false;
};
FileDescriptor connect_tcp(const std::string& address, Instant until, ConnectFailure& failure);
FileDescriptor connect_local(const std::string& name, ConnectFailure& failure);

// "box/3f6c0f9a/4026531840": the same for processes that can share memory, those of one system in one network
// namespace.
std::string own_host();

// "10.0.0.7:41234" of the other end; empty where it is gone. And of this one.
std::string peer_address(int socket);
std::string local_address(int socket);
// What callers are told apart by: the other end's address without its port; of IPv6 the network, since one machine has
// all of its addresses. Empty for a local socket.
std::string peer_origin(int socket);

// True where the other end is this very machine, by its address.
bool peer_is_local(int socket);

void send_descriptors(int socket, std::vector<int> descriptors, Instant until);
std::vector<FileDescriptor> receive_descriptors(int socket, std::size_t count, Instant until);

// Until the other side's kernel has everything that was sent, or it closes, or the time passes.
void drain(std::vector<FileDescriptor> sockets, Instant until);
constexpr std::chrono::seconds drain_time{2};  // that this may take

}  // namespace motley
