// The group of one deployment, for as long as this process lives: an authority, tokens, and a coordinator that
// certifies a process that shows one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "motley/agent/invitation.hpp"
#include "motley/comm/membership/coordinator_server.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/net/strangers.hpp"
#include "motley/fleet/saved_deployment.hpp"

namespace motley {

// How other machines reach this one: the address of the interface that leads to them; "127.0.0.1" where there is none.
std::string own_address();

// Where a driver listens that others find at this address: there. One that is found by a name listens at all addresses
// of its machine, since the name may be that of another machine so far, or stand for this one's loopback.
std::string listen_address(const std::string& address);
// Where others find it, once it has a port.
std::string found_at(const std::string& address, const std::string& listening);

class DeploymentGroup {
 public:
  // What happens, for people: ("certified", "box at 10.0.0.7"). From a thread of its own.
  using Report = std::function<void(const std::string& what, const std::string& detail)>;

  // `address`, where it is found: "10.0.0.5:4700" or "tales.example:4700", port 0 for any that is free. Throws an
  // environment error where it cannot be listened on.
  DeploymentGroup(const std::string& name, const std::string& address, const Report& report = {},
                  StrangerLimits strangers = {});
  // One that was kept, where it listened. Throws an environment error where that is impossible now.
  DeploymentGroup(const std::string& name, const SavedDeployment& kept, const Report& report = {},
                  StrangerLimits strangers = {});
  ~DeploymentGroup();
  DeploymentGroup(const DeploymentGroup&) = delete;
  DeploymentGroup& operator=(const DeploymentGroup&) = delete;

  // Of the driver, which is the coordinator's process.
  RelayAccess access() const;
  const std::string& key() const { return key_; }
  const TlsIdentity& identity() const { return identity_; }
  // With a new token, for a driver that takes control connections there. Throws an input error for a lifetime that is
  // not positive.
  Invitation invitation(const std::string& driver, double token_lifetime_s = 24 * 3600) const;
  // To be kept, with the address of its driver.
  SavedDeployment record(const std::string& driver) const { return record(driver, admission_->record()); }
  SavedDeployment record(const std::string& driver, AdmissionRecord admission) const;
  // Whose tokens and members count.
  GroupAdmission& admission() const { return *admission_; }

 private:
  DeploymentGroup(const std::string& name, const std::string& address, const std::string& key,
                  std::shared_ptr<GroupAdmission> admission, Authority authority, const Report& report,
                  StrangerLimits strangers);

  const std::string name_, key_;
  const std::shared_ptr<GroupAdmission> admission_;
  const Authority authority_;
  const TlsIdentity identity_;
  CoordinatorServer server_;
  const std::string address_;
  std::jthread thread_;
};

}  // namespace motley
