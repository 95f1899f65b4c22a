// How a server answers HTTP: what `serve` and `up` share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "motley/server/operator_key.hpp"
#include "motley/server/plan_server.hpp"

namespace motley::cli {

struct ApiOptions {
  std::string api_key, operator_key;
  std::vector<std::string> origins;
  int new_per_address = 512;
  std::string reasoning = "auto";
  std::string prefix_cache = "on";
  bool share_prefixes = false;
};

// --operator-key of the server or of a command to it.
void add_operator_key_option(CLI::App& verb, std::string& key, const std::string& help);

// --api-key, --operator-key, --cors, --new-per-address, --reasoning, --prefix-cache, --share-prefixes.
void add_api_options(CLI::App& verb, ApiOptions& options);

// Throws an input error where clients could change the deployment.
void apply_api_options(const ApiOptions& options, const OperatorKey& key, ServeSettings& settings);

// Serves until a signal; its user's commands find the key of `settings` by themselves.
void serve(const ServePlan& plan, ServedDeployment& deployment, StopSignals& signals, const ServeSettings& settings,
           OperatorKey& key);

}  // namespace motley::cli
