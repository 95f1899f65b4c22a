// Groups for tests: all ranks in this process, or one in each of two.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

constexpr double linking_timeout_s = 20;

// "shm": the ranks share memory; "tcp": they do not.
inline std::string host_of_kind(const std::string& kind) { return kind == "shm" ? "box" : ""; }

inline std::vector<std::string> names_of(int ranks) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) names.push_back("box/" + std::to_string(rank));
  return names;
}

struct LinkedGroups {
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::vector<std::unique_ptr<WorkerGroup>> of_rank;

  LinkedGroups(const std::string& kind, int ranks, std::int64_t window_bytes = 0, const std::string& name = "test")
      : of_rank(static_cast<std::size_t>(ranks)) {
    std::vector<WorkerAddress> addresses;
    for (int rank = 0; rank < ranks; ++rank) {
      fabrics.push_back(std::make_unique<Fabric>(FabricOptions{.key = "secret", .identity = {}}));
      addresses.push_back({fabrics.back()->address(), host_of_kind(kind)});
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        const auto r = static_cast<std::size_t>(rank);
        of_rank[r] = std::make_unique<WorkerGroup>(name, names_of(ranks), rank, 1, addresses, *fabrics[r],
                                                   linking_timeout_s, std::stop_token(), window_bytes);
        // Connections over TCP are complete with the first operation of both sides.
        float sum = 1;
        of_rank[r]->all_reduce(std::as_writable_bytes(std::span(&sum, 1)), CollectiveElement::fp32);
      });
    for (std::thread& thread : threads) thread.join();
  }
  std::unique_ptr<WorkerGroup>& operator[](std::size_t rank) { return of_rank[rank]; }
  const std::unique_ptr<WorkerGroup>& operator[](std::size_t rank) const { return of_rank[rank]; }
  std::size_t size() const { return of_rank.size(); }
};

// This process's rank of two; `socket` leads to the other's, which does the same.
struct LinkedProcess {
  Fabric fabric{{.key = "secret", .identity = {}}};
  WorkerGroup group;

  LinkedProcess(const std::string& kind, int rank, int socket)
      : group("test", names_of(2), rank, 1, addresses(kind, rank, socket), fabric, linking_timeout_s) {}

 private:
  std::vector<WorkerAddress> addresses(const std::string& kind, int rank, int socket) const {
    std::array<char, 64> text{};
    fabric.address().copy(text.data(), text.size() - 1);
    if (::write(socket, text.data(), text.size()) != std::ssize(text)) throw Error(ErrorCode::peer, "no address sent");
    if (::read(socket, text.data(), text.size()) != std::ssize(text)) throw Error(ErrorCode::peer, "no address came");
    std::vector<WorkerAddress> all(2, {fabric.address(), host_of_kind(kind)});
    all[static_cast<std::size_t>(1 - rank)].address = text.data();
    return all;
  }
};

}  // namespace motley
