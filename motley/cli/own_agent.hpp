// This machine's own agent, and signals before a server catches them: what `up` and `serve --agents` do beside serving.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "motley/comm/net/wakeup.hpp"

namespace motley::cli {

// Catches SIGINT and SIGTERM from its start until somebody else does. One at a time.
class EarlySignals {
 public:
  EarlySignals();
  EarlySignals(const EarlySignals&) = delete;
  EarlySignals& operator=(const EarlySignals&) = delete;

  int descriptor() const { return wake_.descriptor(); }  // readable once one has come
  bool came() const;

 private:
  Wakeup wake_;
};

// `motley join` as a child, which is started again until the deployment ends.
class OwnAgent {
 public:
  // The link goes by the environment: arguments can be seen by others.
  OwnAgent(std::string link, std::vector<std::string> arguments);
  // Once the deployment has ended: then the agent ends by itself.
  ~OwnAgent();
  OwnAgent(const OwnAgent&) = delete;
  OwnAgent& operator=(const OwnAgent&) = delete;

 private:
  void run(const std::stop_token& stop) const;
  int start() const;

  const std::string link_;
  const std::vector<std::string> arguments_;
  Wakeup wake_;
  std::jthread thread_;
};

}  // namespace motley::cli
