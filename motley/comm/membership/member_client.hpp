// A member's connection with its group's coordinator: a thread that sends reports and hears directives, and comes back
// by itself when the connection or the coordinator is gone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/comm/membership/membership.hpp"
#include "motley/comm/net/byte_stream.hpp"

namespace motley {

struct MemberClientOptions {
  std::vector<std::string> coordinators = {};  // addresses, tried in turn
  std::string group = "group";
  std::string token = {};
  std::optional<TlsContext> identity = {};  // TLS 1.3; needed where the coordinator is not on this machine
  // The group's, as its certificate in PEM or its fingerprint, "sha256:...". Where it is given, the coordinator is
  // asked for a certificate for the token, and for another when that is half over; `identity` is replaced by them.
  std::string authority = {};
  Member member = {};  // incarnation: the coordinator's choice
  std::uint32_t stage = 0;
  std::uint64_t state_step = 0;
  double heartbeat_s = 0.2;
  double patience_s = 2;  // silence of the coordinator after which another connection is tried
};

class MemberClient {
 public:
  // Called in order, with the lock held, on the client's thread or on that of access(): it must not wait and must not
  // call the client.
  using ActionHandler = std::function<void(const MembershipAction&)>;

  MemberClient(MemberClientOptions options, ActionHandler handler);
  ~MemberClient();  // hangs up
  MemberClient(const MemberClient&) = delete;
  MemberClient& operator=(const MemberClient&) = delete;

  // Changes or reads the membership under the lock; what follows is handled, and reported at once.
  void access(const std::function<MembershipActions(Membership&)>& change);
  // Why there is no connection, or why the coordinator refused; empty where all is well. From any thread.
  std::string trouble() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A number that no other process draws.
std::uint64_t draw_process_number();

}  // namespace motley
