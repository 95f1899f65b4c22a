// The group of one deployment, for as long as this process lives: an authority, tokens, and a coordinator that
// certifies whoever shows one.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "motley/agent/join_link.hpp"
#include "motley/agent/kept_deployment.hpp"
#include "motley/comm/membership/coordinator_server.hpp"
#include "motley/comm/net/listener.hpp"

namespace motley {

// How other machines reach this one: the address of the interface that leads to them; "127.0.0.1" where there is none.
std::string own_address();

class DeploymentGroup {
 public:
  // `listen`: "10.0.0.5:4700", port 0 for any that is free. Throws an environment error where that is impossible.
  DeploymentGroup(const std::string& name, const std::string& listen);
  // One that was kept, where it listened. Throws an environment error where that is impossible now.
  DeploymentGroup(const std::string& name, const KeptDeployment& kept);
  ~DeploymentGroup();
  DeploymentGroup(const DeploymentGroup&) = delete;
  DeploymentGroup& operator=(const DeploymentGroup&) = delete;

  // Of the driver, which is the coordinator's process.
  RelayAccess access() const;
  // With a new token, for a driver that takes control connections there. Throws an input error for a lifetime that is
  // not positive.
  JoinLink link(const std::string& driver, double token_lifetime_s = 24 * 3600) const;
  // To be kept, with the address of its driver.
  KeptDeployment record(const std::string& driver) const;
  // Whose tokens and members count.
  GroupAdmission& admission() const { return *admission_; }

 private:
  DeploymentGroup(const std::string& name, const std::string& listen, const std::string& key,
                  std::shared_ptr<GroupAdmission> admission, Authority authority);

  const std::string name_, key_;
  const std::shared_ptr<GroupAdmission> admission_;
  const Authority authority_;
  const TlsIdentity identity_;
  CoordinatorServer server_;
  std::jthread thread_;
};

}  // namespace motley
