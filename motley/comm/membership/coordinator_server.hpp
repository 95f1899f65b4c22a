// A coordinator that serves its group over the network: control connections, the log, the clock.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "motley/comm/authority/authority.hpp"
#include "motley/comm/authority/group_admission.hpp"
#include "motley/comm/membership/coordinator.hpp"
#include "motley/comm/membership/ledger_store.hpp"
#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/net/strangers.hpp"

namespace motley {

struct CoordinatorServerOptions {
  std::string group = "group";
  std::string listen = "127.0.0.1:0";  // port 0: any that is free
  std::string token = {};              // who has another is turned away
  // In place of `token`: tokens that expire. Then a member renews its certificate by showing the one that it has, and
  // `key` comes with each: what members show one another.
  std::shared_ptr<GroupAdmission> admission = {};
  std::string key = {};
  // A name that was certified for the first time, for the process at this host. Of the coordinator's thread.
  std::function<void(const std::string& member, const std::string& host)> on_certified = {};
  std::optional<TlsIdentity> identity = {};  // TLS 1.3 with mutual authentication; needed off loopback
  // Certifies a process that shows the token, under the name that it asks for; the identity must be of the same
  // authority.
  std::optional<Authority> authority = {};
  double certificate_s = 24 * 3600;  // such certificates' validity; members renew theirs halfway
  GroupPolicy policy = {};
  StrangerLimits strangers = {};
  std::size_t most_clients = 2048;    // connections that have shown a credential
  std::size_t snapshot_every = 1024;  // records, after which the log is cut
  // What was decided, and by whom; one line each, "key=value" after the first word, and what is more than a few of a
  // kind counted (limited_log.hpp). Empty: nowhere.
  std::function<void(const std::string& line)> log = {};
};

class CoordinatorServer {
 public:
  // Reads the log and listens. Throws an environment error where that is impossible, an input error for an address
  // that other machines can reach without an identity, or a log that is not this group's.
  CoordinatorServer(CoordinatorServerOptions options, std::unique_ptr<LedgerStore> store);
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  const std::string& address() const;
  // Serves until asked to stop. Throws StoreFenced when another coordinator has taken over.
  void run(std::stop_token stop);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace motley
