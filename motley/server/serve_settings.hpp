// How a plan is served, and for `motley serve` the HTTP side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "motley/base/event_log.hpp"

namespace motley {

struct ServeSettings {
  std::filesystem::path model_folder;  // or a GGUF file
  std::string host = "127.0.0.1";
  int port = 8000;                   // 0: any free one
  bool insecure = false;             // allows a host that other machines reach
  std::string api_key;               // empty: none is asked for
  std::string operator_key;          // of POST /plan, /drain, /link; empty: no client may use them
  std::vector<std::string> origins;  // of pages that may use the API: see ServerOptions
  std::size_t new_per_address = 512;
  std::int64_t max_queue = 256;
  bool prefix_cache = true;     // see DriverOptions
  bool share_prefixes = false;  // see ServiceOptions
  bool split_reasoning = true;  // alike
  double drain_s = 30;          // how long requests may go on after SIGINT or SIGTERM
  Report report = [](const std::string&, const std::string&) {};
};

}  // namespace motley
