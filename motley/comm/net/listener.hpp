// Where a process can be called: at an address of its own, or in a mailbox at a relay, where it cannot be dialled.
//
//   "10.0.0.7:4711"                      listens there
//   "relay:203.0.113.5:4701"             only dials out: others call it through the relay (relay.hpp)
//   "relay:203.0.113.5:4701/anna"        the same, in a mailbox of that name; else the name is random
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {

enum class Encryption {
  off_loopback,  // TLS, but for addresses of this machine alone; needs an identity only where it is used
  always,
  never
};

// What a relay is shown: that this process is of the group.
struct RelayAccess {
  std::string key = {};
  std::optional<TlsContext> identity = {};
  Encryption encryption = Encryption::off_loopback;
};

bool is_relayed(const std::string& address);
// Another place of the same kind: any free port at the same interface, or another mailbox at the same relay.
std::string sibling_of(const std::string& address);

// What tells the machines of addresses apart: the host, or all of a relayed one.
std::string host_of(const std::string& address);

class Listener {
 public:
  virtual ~Listener() = default;
  // Where others find this process.
  virtual const std::string& address() const = 0;
  virtual int descriptor() const = 0;       // readable when accept() may have a connection
  virtual FileDescriptor accept() = 0;      // that does not block; empty: none for now
  virtual std::string trouble() const = 0;  // why no peer can call now; empty where they can
};

// Throws an input error for what is not an address, an environment error where it cannot be listened on. A relay that
// does not answer is asked again until it does.
std::unique_ptr<Listener> listen_at(const std::string& address, const RelayAccess& access);

// Dials an address of either kind; empty, with the cause, where that failed.
FileDescriptor connect_to(const std::string& address, const RelayAccess& access, Instant until,
                          ConnectFailure& failure);

}  // namespace motley
