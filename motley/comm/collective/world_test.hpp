// Groups of ranks that are threads of the test, over any of the transports.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "motley/comm/authority/authority.hpp"
#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/comm/transport/in_process_test.hpp"

namespace motley {

inline Epoch epoch_of(int ranks, std::uint64_t number = 7) {
  Epoch epoch;
  epoch.group = "test";
  epoch.number = number;
  for (int r = 0; r < ranks; ++r)
    epoch.members.push_back({.id = "m" + std::to_string(r), .incarnation = 1, .host = "", .address = ""});
  return epoch;
}

// Transports by rank; `kind` is "local", "shm", "tcp" or "tls".
class TestWorld {
 public:
  TestWorld(const std::string& kind, int ranks) : epoch_(epoch_of(ranks)) {
    if (kind == "local") {
      threads_ = std::make_unique<InProcessFabric>(ranks);
      for (int r = 0; r < ranks; ++r) transports.push_back(threads_->transport(r));
      return;
    }
    std::unique_ptr<Authority> authority;
    if (kind == "tls") authority = std::make_unique<Authority>(Authority::create("test"));
    for (int r = 0; r < ranks; ++r) {
      FabricOptions options;
      options.key = "secret";
      if (authority) {
        options.identity = authority->issue("m" + std::to_string(r));
        options.encryption = Encryption::always;
      }
      fabrics.push_back(std::make_unique<Fabric>(options));
      epoch_.members[static_cast<std::size_t>(r)].address = fabrics.back()->address();
      if (kind == "shm") epoch_.members[static_cast<std::size_t>(r)].host = "here";
    }
    transports.resize(static_cast<std::size_t>(ranks));
    std::vector<std::thread> connecting;
    for (int r = 0; r < ranks; ++r)
      connecting.emplace_back([&, r] {
        transports[static_cast<std::size_t>(r)] = fabrics[static_cast<std::size_t>(r)]->connect(epoch_, r, 20);
      });
    for (std::thread& thread : connecting) thread.join();
  }

  const Epoch& epoch() const { return epoch_; }

  // Body(communicator) on a thread per rank.
  template <class Body>
  void run(Body body) {
    std::vector<std::thread> ranks;
    for (auto& transport : transports)
      ranks.emplace_back([&] {
        Communicator communicator(epoch_, std::move(transport));
        body(communicator);
      });
    for (std::thread& thread : ranks) thread.join();
  }

  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::vector<std::unique_ptr<Transport>> transports;

 private:
  Epoch epoch_;
  std::unique_ptr<InProcessFabric> threads_;
};

}  // namespace motley
