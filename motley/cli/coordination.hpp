// What the verbs that wait for machines share: `up`, `serve --agents` and `train --agents`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/cli/agents.hpp"
#include "motley/cli/deployment_store.hpp"
#include "motley/cli/own_agent.hpp"
#include "motley/cli/relay_beside.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/fleet/deployment_group.hpp"
#include "motley/fleet/members.hpp"

namespace motley::cli {

struct CoordinationOptions {
  std::string host;  // this machine's address, or a name that others look up each time that they connect; empty: found
  std::string name;  // of this machine
  bool relays = false;  // between machines that cannot connect to each other
  std::size_t most_handshakes = StrangerLimits{}.most_of_address;
  std::function<void(const std::string& what, const std::string& detail)> report;
  std::function<bool()> waits = {};
};

// What machines come to: as it was kept, if that is possible. Every change of who may come is kept before it counts.
struct Coordination {
  // Where it cannot be as it was kept, it begins as a new one; with `waits` it throws an interrupted error once
  // `waits` says that it is not to be tried again.
  Coordination(DeploymentStore& store, const CoordinationOptions& options);
  Coordination(const Coordination&) = delete;
  Coordination& operator=(const Coordination&) = delete;

  std::unique_ptr<DeploymentGroup> group;
  std::unique_ptr<Members> members;
  std::string driver;  // where members find it
  std::optional<RelayBeside> relay;
  std::string relay_address;  // where members find it; empty: there is none

  // A new link for other machines; that of this machine's own agent, whatever the names mean.
  JoinLink link(double lifetime_s) const;
  JoinLink own_link(JoinLink link) const;

  // Cuts this machine off, and refuses what its link has certified but is not there. Returns, for people, what else
  // came by its link and is there; none is cut off where that cannot be kept.
  std::vector<std::string> revoke(const std::string& member) const;
  // The deployment has ended: nothing is kept of it any more.
  void forget();

 private:
  bool resume(const KeptDeployment& kept, const std::string& relay_at, const CoordinationOptions& options);
  void begin(std::unique_ptr<DeploymentGroup> made, const std::string& address, const std::string& relay_at,
             const CoordinationOptions& options);

  DeploymentStore& store_;
  const std::string own_name_;
  std::string own_token_;
};

// --store URL.
CLI::Option* add_store_option(CLI::App& verb, std::string& store, const std::string& help);

// --listen, --token-lifetime and the options of this machine.
void add_group_options(CLI::App& verb, MachineOptions& machine, std::string& listen, std::string& token_lifetime);

// Throws an input error unless --token-lifetime is a time above 0.
double token_lifetime_s(const std::string& text);

// --max-handshakes.
void add_handshakes_option(CLI::App& verb, std::size_t& most);

// --relay.
void add_relay_option(CLI::App& verb, bool& relays);

// Of `motley join` on this machine, whose own copy of the model is `model`.
std::vector<std::string> agent_arguments(const MachineOptions& machine, const std::string& name,
                                         const std::string& model);

// The line by which other machines join.
void print_link(const JoinLink& link);

// The same, once this machine's own agent has taken its name, before another machine could come under it, or was
// refused. `stopped` is asked often while it is waited for.
void print_link_after(const OwnAgent& own_agent, const std::string& name, Members& members, const JoinLink& link,
                      const std::function<bool()>& stopped);

// Until so many are there, these among them. `stopped` is asked often; false: it said so.
bool wait_for_members(Members& members, int count, const std::set<std::string>& names,
                      const std::function<bool()>& stopped);

// A described machine must be what its agent offers; throws an input error.
void check_described(const Cluster& cluster, const std::vector<MemberStatus>& members);

}  // namespace motley::cli
