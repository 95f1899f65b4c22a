// What is behind a server of a plan: where the workers of its plans run, and who finds the next plan. Two kinds: this
// machine alone (local_deployment.hpp), and machines that have joined (joined_deployment.hpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/deployment/deployment_state.hpp"
#include "motley/serving/generator.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

// Machines that may come and go, for who operates the server. Safe to use from several threads.
class JoinedMachines {
 public:
  virtual ~JoinedMachines() = default;

  // An object: what GET /plan says of them.
  virtual Value describe() const = 0;
  // This machine is to leave, once plans do without it; `revoke`: at once, and for good, and every link so far is
  // refused. Returns the members that are there and came by the same link as one that is revoked. Throws an input error
  // where there is no such machine.
  virtual std::vector<std::string> drain(const std::string& member, bool revoke) = 0;
  // Prints a new link, and returns for how many seconds it counts; `revoke`: those before it count no more.
  virtual double invite(bool revoke, std::optional<double> lifetime_s) = 0;
};

class ServedDeployment {
 public:
  virtual ~ServedDeployment() = default;

  virtual Fleet& fleet() = 0;
  virtual RestartRule restart() const = 0;
  // Called on the driver's thread.
  virtual Replan replan() = 0;
  // Null where no machine can join.
  virtual JoinedMachines* machines() { return nullptr; }

  // Plans are served from now on, and others may be asked for, until stop_watching() returns.
  virtual void watch(Generator&) {}
  virtual void stop_watching() {}
};

}  // namespace motley
