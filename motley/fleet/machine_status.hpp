// The machines of a deployment as its driver sees them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "motley/agent/agent_messages.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/comm/net/strangers.hpp"
#include "motley/deployment/machines.hpp"

namespace motley {

struct MachineStatus {
  std::string name;  // of the machine
  std::string address;
  std::vector<OfferedDevice> devices;
  std::map<std::string, std::string> out_of_service = {};  // those of them that cannot be used for now, and why
  bool operator==(const MachineStatus&) const = default;
};

struct AgentMachinesOptions {
  std::string listen;  // "10.0.0.5:0"
  RelayAccess access;
  StrangerLimits strangers = {};
  std::string own_name = {};  // of the member on the driver's machine, from which no other fetches weights
  double silence_s = 3;       // an agent that says nothing for this long is lost
  double kept_out_s = 60;     // for one that broke the protocol: it does not come back at once
  // Why this member may not be here; empty: it may. From several threads.
  std::function<std::string(const std::string& name)> objection = {};
  // What happens, for people: ("joined", "box, 1 device"). From several threads, one at a time.
  std::function<void(const std::string& what, const std::string& detail)> report = {};
};

}  // namespace motley
