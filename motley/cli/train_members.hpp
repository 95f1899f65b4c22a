// The machines of `motley train --agents`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "motley/base/clock.hpp"
#include "motley/cli/coordination.hpp"
#include "motley/cli/deployment_store.hpp"
#include "motley/cli/own_agent.hpp"
#include "motley/plan/train.hpp"
#include "motley/workers/fleet.hpp"

namespace motley::cli {

struct TrainMembersOptions {
  MachineOptions machine;  // this one
  std::string listen;      // address or name of this machine; empty: found
  bool relays = false;     // between machines that cannot connect to each other
  std::size_t most_handshakes = StrangerLimits{}.most_of_address;
  std::string token_lifetime = "24 h";
  std::filesystem::path run;  // whose deployment it is
  std::string store;          // where it is kept: etcd://HOST:PORT/PREFIX; empty: in a file of this machine
  bool quiet = false;
  std::function<bool()> stopped;  // asked often while machines are waited for
};

class TrainMembers {
 public:
  explicit TrainMembers(TrainMembersOptions options) : options_(std::move(options)) {}
  // The deployment ends, unless another driver has taken it up.
  ~TrainMembers();
  TrainMembers(const TrainMembers&) = delete;
  TrainMembers& operator=(const TrainMembers&) = delete;

  // Prints the line by which machines join, and waits for those of the plan. Throws an interrupted error where it is
  // stopped, and an input error where a machine is not as described.
  Fleet& gather(const TrainPlan& plan, const std::filesystem::path& weights, bool with_states);

  // The run waits to be resumed: agents do not end, and look for the driver. Where nothing was started, nothing.
  void leave();
  // Throws StoreFenced where another driver has taken the deployment up.
  void check_held() const;
  bool is_fenced() const;

 private:
  void report(const std::string& what, const std::string& detail);

  const TrainMembersOptions options_;
  Instant started_ = Clock::now();
  std::unique_ptr<DeploymentStore> store_;
  std::optional<Coordination> coordination_;
  std::optional<OwnAgent> own_agent_;
};

}  // namespace motley::cli
