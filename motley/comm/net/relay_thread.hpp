// A relay in the process of a coordinator or a driver.
#pragma once

#include <fmt/format.h>

#include <csignal>
#include <string>
#include <thread>

#include "motley/comm/net/relay.hpp"

namespace motley {

// Its end is not the other's: that is logged.
class RelayThread {
 public:
  explicit RelayThread(const RelayOptions& options)
      : relay_(options), thread_([this, log = options.log](const std::stop_token& stop) {
          sigset_t all;  // signals are for the thread that waits for them
          sigfillset(&all);
          pthread_sigmask(SIG_BLOCK, &all, nullptr);
          try {
            relay_.run(stop);
          } catch (const std::exception& error) {
            if (log) log(fmt::format("trouble what=\"the relay has ended: {}\"", error.what()));
          }
        }) {}
  const std::string& address() const { return relay_.address(); }

 private:
  Relay relay_;
  std::jthread thread_;
};

}  // namespace motley
