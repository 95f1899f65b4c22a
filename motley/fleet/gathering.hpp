// Brings the machines of a deployment together: what `up`, `serve --agents` and `train --agents` share, from
// the invitation to the orderly end.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/base/event_log.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/comm/net/relay.hpp"
#include "motley/fleet/agent_machines.hpp"
#include "motley/fleet/deployment_group.hpp"
#include "motley/fleet/deployment_store.hpp"
#include "motley/fleet/local_agent.hpp"

namespace motley {

struct GatheringOptions {
  std::filesystem::path model;  // a folder or a GGUF file, whose weights machines fetch
  ManifestOf contents = ManifestOf::weights;
  std::string name;     // of this machine
  std::string host;     // its address, or a name that others look up each time that they connect; empty: found
  bool relays = false;  // between machines that cannot connect to each other
  StrangerLimits strangers = {};
  double token_lifetime_s = 24 * 3600;   // of links
  std::vector<std::string> local_agent;  // program and arguments, but for its copy of the model: see LocalAgent
  Report report;                         // from several threads
  std::function<void(const Invitation&)> show_invitation;  // where who is to join finds it: it is a secret
  // A descriptor. Once it is readable, whatever waits for machines throws an interrupted error.
  int stop = -1;
};

class Gathering {
 public:
  // Takes the deployment up that the store holds, and begins a new one where that is impossible; where other machines
  // read the store, it is tried until it is possible. Starts this machine's own agent. From then on every change of who
  // may come is kept before it counts.
  Gathering(std::unique_ptr<DeploymentStore> store, GatheringOptions options);
  ~Gathering();  // as end()
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

  const std::string& name() const { return options_.name; }
  AgentMachines& machines() const { return *machines_; }  // those that come

  // ---- in this order ----

  // Shows an invitation, once this machine's own agent has taken its name, before another machine could come under it,
  // or was refused.
  void open();
  // From now on machines fetch weights. Reads all of them, unless their digests are known.
  void offer_weights();
  // Until this many are there, these among them.
  void wait_for(int count, const std::set<std::string>& names);
  void measure_links();
  // A described machine must be what its agent offers; throws an input error.
  void check_described(const Cluster& cluster) const;

  // ---- from any thread ----

  // Returns for how many seconds it counts; `revoke`: earlier invitations count no more. Throws an input error for a
  // time that is not positive.
  double show_new_invitation(bool revoke, std::optional<double> lifetime_s);
  // Cuts this machine off, refuses what its invitation has certified but is not there, and shows a new one. Returns,
  // for people, what else came by the same and is there; none is cut off where that cannot be kept.
  std::vector<std::string> revoke(const std::string& member);

  // Throws StoreFenced where another driver has taken the deployment up: the machines are that one's.
  void check_held() const { store_->check_held(); }
  bool is_held() const { return store_->is_held(); }
  // The deployment has ended, on all machines, and nothing is kept of it; or this driver leaves it, where another one
  // has taken it up. Once: a later call waits for that.
  void end();
  // The machines stay, and look for the driver that takes the deployment up.
  void leave();

 private:
  bool resume(const SavedDeployment& kept, const std::string& relay_at);
  void begin(std::unique_ptr<DeploymentGroup> made, const std::string& address, const std::string& relay_at);
  void keep_changes();
  void forget();
  Invitation invitation(double lifetime_s) const;
  Invitation own_invitation(const std::string& token) const;
  void pause(double seconds) const;
  void until_there(int count, const std::set<std::string>& names, const std::function<bool()>& given_up);

  const GatheringOptions options_;
  const std::unique_ptr<DeploymentStore> store_;
  std::string driver_, relay_address_;      // where members find them; the second may be empty
  std::unique_ptr<DeploymentGroup> group_;  // whose thread keeps the above in the store
  std::unique_ptr<AgentMachines> machines_;
  std::optional<RelayThread> relay_;
  Invitation first_invitation_;
  std::optional<LocalAgent> local_agent_;
  std::once_flag ended_;
};

}  // namespace motley
