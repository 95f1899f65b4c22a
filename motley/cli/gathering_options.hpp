// The options of what brings machines together: `up`, `serve --agents` and `train --agents`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>

#include "motley/base/event_log.hpp"
#include "motley/cli/machine_options.hpp"
#include "motley/fleet/gathering.hpp"

namespace motley::cli {

struct GatheringFlags {
  MachineOptions machine;  // this one
  std::string listen;      // address or name of this machine; empty: found
  bool relays = false;     // between machines that cannot connect to each other
  std::size_t most_handshakes = StrangerLimits{}.most_of_address;
  std::string token_lifetime = "24 h";
  std::string store;  // of what a driver needs to take the deployment up; empty: a file of this machine's
};

// --listen, --token-lifetime, --relay, --max-handshakes and the options of this machine.
void add_gathering_options(CLI::App& verb, GatheringFlags& flags);
// --store URL.
CLI::Option* add_store_option(CLI::App& verb, std::string& store, const std::string& help);
// --max-handshakes.
void add_handshakes_option(CLI::App& verb, std::size_t& most);

// But for model and stop. Throws an input error for what no machine can offer or be called, and for a --token-lifetime
// that is not above 0.
GatheringOptions gathering_options(const GatheringFlags& flags, EventLog& events);

}  // namespace motley::cli
