// `motley serve`: workers, text and the HTTP server of one plan, from start to orderly end.
#pragma once

#include <memory>

#include "motley/comm/net/stop_signals.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/server/serve_settings.hpp"
#include "motley/serving/served_deployment.hpp"

namespace motley {

class PlanServer {
 public:
  // Takes the port, and answers that nothing is served yet. Throws where the port is in use, and an input error for a
  // tokenizer that is not the model's. What is given outlives it.
  PlanServer(ServePlan plan, ServedDeployment& deployment, StopSignals& signals, ServeSettings settings);
  ~PlanServer();  // no worker process is left behind
  PlanServer(const PlanServer&) = delete;
  PlanServer& operator=(const PlanServer&) = delete;

  int port() const;
  // Returns when every route has produced a token, or the deployment waits for another plan. Throws what hinders the
  // start. The first signal after that is for run().
  void start();
  // Serves until the first signal, and lets requests under way end; a second one ends the process. When a worker dies,
  // requests wait while workers start again or another plan takes effect; where none does, they get an error and it
  // throws a peer error.
  void run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley
