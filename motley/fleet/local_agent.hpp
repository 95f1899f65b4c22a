// The agent of the driver's own machine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "motley/comm/net/wakeup.hpp"

namespace motley {

// A child, which is started again until the deployment ends.
class LocalAgent {
 public:
  // `command`: program and arguments, as of `motley join`. It finds the link in MOTLEY_LINK: arguments can be seen by
  // others.
  LocalAgent(std::vector<std::string> command, std::string link, double restart_s = 1);
  // Once the deployment has ended the agent ends by itself; where it does not, it is killed.
  ~LocalAgent();
  LocalAgent(const LocalAgent&) = delete;
  LocalAgent& operator=(const LocalAgent&) = delete;

  // The agent ends at once, and its workers with it.
  void kill();
  // It was refused, has said why, and is not started again.
  bool was_refused() const { return refused_; }

 private:
  void run(const std::stop_token& stop);
  int start() const;
  int wait_for(int child);

  const std::vector<std::string> command_;
  const std::string link_;
  const double restart_s_;  // before it is started again
  Wakeup wake_;
  std::mutex mutex_;
  std::condition_variable ended_;
  int child_ = 0;
  std::atomic<bool> refused_ = false;
  std::jthread thread_;
};

}  // namespace motley
