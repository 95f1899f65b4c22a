// This machine's own agent, and signals before a server catches them: what verbs for several machines do beside serving
// or training.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
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

 private:
  Wakeup wake_;
};

// While it lives, a signal runs `end` and ends the process (130, or with the error that `end` throws), on a thread of
// its own: what the other threads do then cannot be interrupted, or waits for others.
class EndOnSignal {
 public:
  EndOnSignal(const EarlySignals& signals, std::function<void()> end);
  ~EndOnSignal();
  EndOnSignal(const EndOnSignal&) = delete;
  EndOnSignal& operator=(const EndOnSignal&) = delete;

 private:
  Wakeup wake_;
  std::jthread thread_;
};

// `motley join` as a child, which is started again until the deployment ends.
class OwnAgent {
 public:
  // The link goes by the environment: arguments can be seen by others.
  OwnAgent(std::string link, std::vector<std::string> arguments);
  // Once the deployment has ended the agent ends by itself; where it does not, it is killed.
  ~OwnAgent();
  OwnAgent(const OwnAgent&) = delete;
  OwnAgent& operator=(const OwnAgent&) = delete;

  // The agent ends at once, and its workers with it.
  void kill();
  // It was refused, has said why, and is not started again.
  bool was_refused() const { return refused_; }

 private:
  void run(const std::stop_token& stop);
  int start() const;
  int wait_for(int child);

  const std::string link_;
  const std::vector<std::string> arguments_;
  Wakeup wake_;
  std::mutex mutex_;
  std::condition_variable ended_;
  int child_ = 0;
  std::atomic<bool> refused_ = false;
  std::jthread thread_;
};

}  // namespace motley::cli
