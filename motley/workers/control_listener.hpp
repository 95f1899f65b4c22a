// Where a driver takes control connections, from the agents and the workers of its deployment. Who calls proves that it
// holds the deployment's key, and off this machine, or with Encryption::always, shows a certificate of the group's
// authority. A connection that proves nothing is never handed out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/net/strangers.hpp"

namespace motley {

// What callers may want, by LinkHello::group. Both are called on threads of the listener, several at a time.
struct ControlService {
  // Why this caller is not welcome; empty: it is. `certified` is the name in its certificate; without TLS the name that
  // it gives itself.
  std::function<std::string(const LinkHello& hello, const std::string& certified)> admit;
  // It was told that it is welcome. May take as long as it likes. What it throws ends the connection.
  std::function<void(const LinkHello& hello, ByteStream stream)> take;
  // It was admitted, but has gone before it heard so.
  std::function<void(const LinkHello& hello)> forget = [](const LinkHello&) {};
};

class ControlListener {
 public:
  // "10.0.0.7:0", or a relay (listener.hpp). Throws an input error for an empty key, an environment error where the
  // address cannot be listened on.
  ControlListener(const std::string& address, RelayAccess access, std::map<std::string, ControlService> services,
                  StrangerLimits strangers = {});
  // Takes no more connections, and waits for the calls of services under way.
  ~ControlListener();
  ControlListener(const ControlListener&) = delete;
  ControlListener& operator=(const ControlListener&) = delete;

  const std::string& address() const;
  // Why the last caller was refused; empty where none was.
  std::string last_refusal() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- the caller's side ----

// No process takes connections at the address.
class ServiceUnreachable : public Error {
 public:
  explicit ServiceUnreachable(std::string message) : Error(ErrorCode::peer, std::move(message)) {}
};

// A connection to the service `hello.group` of the driver at `address`, or of the agent `member` there. Throws
// ServiceUnreachable, an input error where the callee refuses, a peer error where it is not the one expected or hangs
// up.
ByteStream call_service(const std::string& address, LinkHello hello, const RelayAccess& access, Instant until,
                        const std::string& member = {});

}  // namespace motley
