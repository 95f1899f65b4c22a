// How a plan is served, and for `motley serve` the HTTP side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/deployment/deployment_state.hpp"
#include "motley/serving/driver.hpp"

namespace motley {

struct ServeSettings {
  std::filesystem::path model_folder;
  std::string host = "127.0.0.1";
  int port = 8000;                   // 0: any free one
  bool insecure = false;             // allows a host that other machines reach
  std::string api_key;               // empty: none is asked for
  std::string operator_key;          // of POST /plan, /drain, /link; empty: nobody may use them
  std::vector<std::string> origins;  // of pages that may use the API: see ServerOptions, likewise
  std::size_t new_per_address = 512;
  std::int64_t max_queue = 256;
  double drain_s = 30;  // how long requests may go on after SIGINT or SIGTERM
  Replan replan;        // finds a plan without the devices that were lost; without it such a loss ends the serving
  RestartRule restart{.deaths = 3};
  std::function<Value()> deployment = {};  // see ServiceOptions; likewise
  // Returns the members that are there and came by the same link as one that is revoked.
  std::function<std::vector<std::string>(const std::string& member, bool revoke)> drain = {};
  std::function<double(bool revoke, std::optional<double> lifetime_s)> new_link = {};
  // While the driver lives: it serves a plan, or it is about to end. The second returns when it is not used any more.
  std::function<void(Driver&)> on_driver = {};
  std::function<void()> before_end = {};

  // What happens, for people: ("weights", "box/0"). From several threads; see EventLog.
  std::function<void(const std::string& what, const std::string& detail)> report = [](const auto&, const auto&) {};
  std::function<void(int port)> on_listening = {};  // requests are answered, before anything is served
  std::function<void(int port)> on_ready;           // every route has produced a token
};

}  // namespace motley
