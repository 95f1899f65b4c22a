#include "motley/comm/communicator.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "motley/comm/in_process.hpp"

namespace motley {
namespace {

Epoch epoch_of(int ranks) {
  Epoch epoch;
  epoch.group = "test";
  epoch.number = 7;
  for (int r = 0; r < ranks; ++r)
    epoch.members.push_back({.id = "m" + std::to_string(r), .incarnation = 1, .host = "", .address = ""});
  return epoch;
}

template <class Body>
void on_all_ranks(int ranks, Body body) {
  InProcessFabric fabric(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      Communicator communicator(epoch_of(ranks), fabric.transport(r));
      body(communicator);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Communicator, SumsVectorsOfAnySize) {
  for (const int ranks : {1, 2, 3, 4, 8})
    on_all_ranks(ranks, [&](Communicator& group) {
      for (const std::size_t count : {1U, 7U, 1000U, 100'003U, 1'000'003U}) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i % 1000) + 10 * group.rank());
        const auto outcome = group.all_reduce(std::as_writable_bytes(std::span(values)), CollectiveElement::fp32, {});
        ASSERT_EQ(outcome.status, OperationStatus::ok) << outcome.cause;
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(values[i], static_cast<float>(static_cast<int>(i % 1000) * ranks + 5 * ranks * (ranks - 1))) << i;
      }
    });
}

}  // namespace
}  // namespace motley
