// Measures the links between this machine and others, on a thread of its own.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "motley/agent/agent_messages.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/comm/transport/fabric.hpp"

namespace motley {

class LinkProbe {
 public:
  // As the member `name`; all that are named must do the same. `wake` is notified when it is done.
  LinkProbe(ProbeLinks asked, std::string name, std::shared_ptr<Fabric> fabric, const Wakeup& wake);
  ~LinkProbe();  // gives up, as far as it is still connecting
  LinkProbe(const LinkProbe&) = delete;
  LinkProbe& operator=(const LinkProbe&) = delete;

  // Once it is done.
  std::optional<ProbedLinks> result() const;

 private:
  mutable std::mutex mutex_;
  std::optional<ProbedLinks> result_;
  std::jthread thread_;
};

}  // namespace motley
