// What a process can reach: it listens for other members, and makes the transports of epochs out of shared memory
// (members of one host), TCP, and TCP under TLS, chosen peer by peer. It outlives its transports.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/epoch.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/net/strangers.hpp"
#include "motley/comm/transport/transport.hpp"

namespace motley {

enum class SharedMemoryUse {
  same_host,  // between members whose epoch entry names the same host
  never
};

struct FabricOptions {
  std::string listen = "127.0.0.1:0";  // port 0: any that is free; or a relay (listener.hpp)
  std::string key;                     // the group's secret: a process with another is turned away
  std::optional<TlsContext> identity;  // its certificate names the member's id
  Encryption encryption = Encryption::off_loopback;
  SharedMemoryUse shared_memory = SharedMemoryUse::same_host;
  int most_streams = 16;  // to one peer
  double patience_s = 5;  // how long a broken connection may take to come back before the peer is lost
  StrangerLimits strangers = {};
};

// An epoch could not be connected; `ranks` are those who refused or did not answer.
class ConnectError : public Error {
 public:
  ConnectError(ErrorCode code, std::string message, std::vector<int> unreachable)
      : Error(code, std::move(message)), ranks(std::move(unreachable)) {}
  std::vector<int> ranks;
};

class Fabric {
 public:
  // Throws an environment error where the address cannot be listened on, an input error where the identity is none.
  explicit Fabric(FabricOptions options);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // "127.0.0.1:41234": where this process listens, for its entry in epochs.
  const std::string& address() const;

  // Connects this process, as `rank`, with all other members; all of them must do the same. Several epochs may be
  // connected at once, from different threads. In shared memory a sender may be `window_bytes` ahead of the receiver (1
  // MiB at least, 64 at most; the higher rank's word counts). Throws a ConnectError that names who refused and why
  // (peer), or who did not answer within `timeout_s` (limit).
  std::unique_ptr<Transport> connect(const Epoch& epoch, int rank, double timeout_s, std::stop_token stop = {},
                                     std::int64_t window_bytes = 0);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace motley
