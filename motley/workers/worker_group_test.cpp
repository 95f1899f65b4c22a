#include "motley/workers/worker_group.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

// Runs `part(rank)` on a thread per rank.
template <class Part>
void all_ranks(int size, Part part) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&part, rank] { part(static_cast<std::size_t>(rank)); });
  for (auto& thread : threads) thread.join();
}

std::span<std::byte> bytes_of(auto& values) { return std::as_writable_bytes(std::span(values)); }

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::minstd_rand random(seed + 1);
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random() >> 8);
  return data;
}

std::string peer_error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return (error.code() == ErrorCode::peer ? "peer: " : "other: ") + std::string(error.what());
  }
  return "none";
}

class WorkerGroups : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, WorkerGroups, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return test.param; });

float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Rounds by looking at both neighbours: slow, and unlike what is tested.
std::uint16_t float_to_bf16(float value) {
  const auto below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  const auto above = static_cast<std::uint16_t>(below + 1);
  const double to_below = std::abs(double{value} - bf16_to_float(below)),
               to_above = std::abs(double{bf16_to_float(above)} - value);
  if (to_below != to_above) return to_below < to_above ? below : above;
  return below % 2 == 0 ? below : above;
}

template <class T>
std::vector<T> random_term(std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<T> term(elements);
  for (T& value : term) {
    if constexpr (std::is_same_v<T, float>)
      value = normal(random);
    else
      value = float_to_bf16(normal(random));
  }
  return term;
}

template <class T>
T plain_sum(const std::vector<std::vector<T>>& terms, std::size_t i) {
  const auto widen = [](T value) {
    if constexpr (std::is_same_v<T, float>)
      return value;
    else
      return bf16_to_float(value);
  };
  float sum = widen(terms[0][i]);
  for (std::size_t r = 1; r < terms.size(); ++r) sum += widen(terms[r][i]);
  if constexpr (std::is_same_v<T, float>)
    return sum;
  else
    return float_to_bf16(sum);
}

template <class T>
void check_all_reduce(const std::string& kind, CollectiveElement element) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    const auto groups = LinkedGroups(kind, ranks);
    for (const std::size_t elements : {0U, 1U, 17U, 4096U, 4097U, 16'385U, 200'003U}) {
      std::vector<std::vector<T>> data;
      for (int r = 0; r < ranks; ++r)
        data.push_back(
            random_term<T>(elements, static_cast<unsigned>(ranks * 1000 + r) + static_cast<unsigned>(elements)));
      std::vector<T> sums;
      for (std::size_t i = 0; i < elements; ++i) sums.push_back(plain_sum(data, i));
      all_ranks(ranks, [&](std::size_t r) { groups[r]->all_reduce(bytes_of(data[r]), element); });
      for (const auto& result : data)  // bits, not values
        ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(result)), std::as_bytes(std::span(sums))))
            << ranks << " ranks, " << elements;
    }
  }
}
TEST_P(WorkerGroups, AllReduceIsThePlainSumInRankOrderFp32) {
  check_all_reduce<float>(GetParam(), CollectiveElement::fp32);
}
TEST_P(WorkerGroups, AllReduceIsThePlainSumInRankOrderBf16) {
  check_all_reduce<std::uint16_t>(GetParam(), CollectiveElement::bf16);
}

// Numbers whose sums are exact in any order.
TEST_P(WorkerGroups, AllReduceFollowsGroupsToThePlainSum) {
  const CollectiveGroup ring = flat_group({3, 1, 4, 0, 2}, GroupPattern::ring);
  const CollectiveGroup nested{
      .members = {flat_group({0, 2}, GroupPattern::direct), flat_group({1, 3, 4}, GroupPattern::direct)}};
  for (const CollectiveGroup& group : {ring, nested}) {
    constexpr int ranks = 5;
    const auto groups = LinkedGroups(GetParam(), ranks);
    all_ranks(ranks, [&](std::size_t r) { groups[r]->add_up_along(group); });
    for (const std::size_t elements : {0U, 1U, 17U, 4097U, 200'003U}) {
      std::vector<std::vector<float>> data(ranks, std::vector<float>(elements));
      for (std::size_t r = 0; r < data.size(); ++r)
        for (std::size_t i = 0; i < elements; ++i) data[r][i] = static_cast<float>((r + 1) * (i % 1001));
      std::vector<float> sums;
      for (std::size_t i = 0; i < elements; ++i) sums.push_back(plain_sum(data, i));
      all_ranks(ranks, [&](std::size_t r) { groups[r]->all_reduce(bytes_of(data[r]), CollectiveElement::fp32); });
      for (const auto& result : data) ASSERT_EQ(result, sums) << elements;
    }
  }
}

TEST_P(WorkerGroups, AllGatherTakesBlocksOfAnySizes) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    const auto groups = LinkedGroups(GetParam(), ranks);
    std::mt19937 random(static_cast<unsigned>(ranks));
    for (unsigned round = 0; round < 8; ++round) {
      std::vector<std::int64_t> bounds{0};
      for (int r = 0; r < ranks; ++r)
        bounds.push_back(bounds.back() + (random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 300'000)));
      const auto whole = pattern(static_cast<std::size_t>(bounds.back()), round);
      std::vector<std::vector<std::byte>> data(groups.size(), std::vector<std::byte>(whole.size()));
      for (std::size_t r = 0; r < data.size(); ++r)
        std::copy(whole.begin() + bounds[r], whole.begin() + bounds[r + 1], data[r].begin() + bounds[r]);
      all_ranks(ranks, [&](std::size_t r) { groups[r]->all_gather(data[r], bounds); });
      for (const auto& result : data) ASSERT_EQ(result, whole);
    }
  }
  const auto alone = LinkedGroups(GetParam(), 1);
  std::vector<std::byte> data(10);
  const std::vector<std::int64_t> wrong{0, 9};
  EXPECT_EQ(peer_error_of([&] { alone[0]->all_gather(data, wrong); }),
            "peer: test: the bounds 0, 9 do not divide 10 bytes among 1 ranks");
}

TEST_P(WorkerGroups, MessagesOfAllSizesArriveInOrderBothWays) {
  const auto groups = LinkedGroups(GetParam(), 3);
  const std::vector<std::size_t> sizes{0, 1, 63, 64, 65, 4096, 100'000, 262'144, 3, 1'000'000, 5'000'003};
  all_ranks(2, [&](std::size_t side) {
    WorkerGroup& mine = *groups[2 * side];
    const int peer = side == 0 ? 2 : 0;
    for (unsigned i = 0; i < sizes.size(); ++i) {
      std::vector<std::byte> received(sizes[i]);
      if (side == 0) mine.send(pattern(sizes[i], i), peer);
      mine.receive(received, peer);
      EXPECT_EQ(received, pattern(sizes[i], side == 0 ? 100 + i : i));
      if (side == 1) mine.send(pattern(sizes[i], 100 + i), peer);
    }
  });
}

TEST(SharedWindow, WhatFitsWaitsForNobody) {
  // One thread plays both sides: it would hang if a send waited.
  const auto groups = LinkedGroups("shm", 2, 6 << 20);
  const auto data = pattern(3 << 20, 1);
  for (int round = 0; round < 5; ++round) {
    for (int side = 0; side < 2; ++side)
      for (int i = 0; i < 2; ++i) groups[static_cast<std::size_t>(side)]->send(data, 1 - side);
    for (int side = 0; side < 2; ++side)
      for (int i = 0; i < 2; ++i) {
        std::vector<std::byte> received(data.size());
        groups[static_cast<std::size_t>(side)]->receive(received, 1 - side);
        EXPECT_EQ(received, data);
      }
  }
}

TEST_P(WorkerGroups, AnotherOperationThanExpectedIsAPeerErrorThatTellsBoth) {
  const auto groups = LinkedGroups(GetParam(), 2);
  std::vector<std::string> errors(2);
  all_ranks(2, [&](std::size_t r) {
    std::vector<float> data(4 + r);
    errors[r] = peer_error_of([&] { groups[r]->all_reduce(bytes_of(data), CollectiveElement::fp32); });
  });
  // The one that notices first tells the other.
  const bool first = errors[0].find("(box/1)") != std::string::npos,
             second = errors[1].find("(box/0)") != std::string::npos;
  EXPECT_TRUE(first || second) << errors[0] << "\n" << errors[1];
  for (const std::string& error : errors) {
    EXPECT_EQ(error.substr(0, 12), "peer: test: ");
    EXPECT_NE(error.find("16 bytes"), std::string::npos) << error;
    EXPECT_NE(error.find("20 bytes"), std::string::npos) << error;
  }
}

TEST_P(WorkerGroups, APeerThatLeavesWakesTheWaiterAndLeavesItsMessagesBehind) {
  auto groups = LinkedGroups(GetParam(), 2);
  const auto data = pattern(1000, 0);
  std::vector<std::byte> received(1000);
  std::thread leaving([&] {
    groups[0]->send(data, 1);  // over TCP until it is acknowledged
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    groups[0].reset();
  });
  groups[1]->receive(received, 0);
  EXPECT_EQ(received, data);
  EXPECT_EQ(peer_error_of([&] { groups[1]->receive(received, 0); }),
            fmt::format("peer: test: lost rank 0: {} (box/0)",
                        GetParam() == "shm" ? "its process has closed the connection" : "epoch 1 is over here"));
  EXPECT_GT(groups[1]->waited_s(), 0.01);
  leaving.join();
}

TEST_P(WorkerGroups, WaitingCostsNoProcessorTime) {
  const auto groups = LinkedGroups(GetParam(), 2);
  const auto processor_s = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  };
  double used = 1;
  std::thread waiter([&] {
    std::vector<std::byte> received(8);
    const double before = processor_s();
    groups[1]->receive(received, 0);
    used = processor_s() - before;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  groups[0]->send(pattern(8, 0), 1);
  waiter.join();
  EXPECT_LT(used, 0.02);
  EXPECT_GT(groups[1]->waited_s(), 0.4);
}

TEST(Crossing, BoundsCoverAllRowsAndSendersAreFair) {
  for (int a = 1; a <= 8; ++a)
    for (int b = 1; b <= 8; ++b) {
      std::vector<int> load(static_cast<std::size_t>(a));
      for (int j = 0; j < b; ++j) {
        const int sender = crossing_sender(j, a, b);
        ASSERT_TRUE(sender >= 0 && sender < a);
        ++load[static_cast<std::size_t>(sender)];
      }
      for (const int intervals : load) EXPECT_LE(intervals, (b + a - 1) / a);
    }
  EXPECT_EQ(crossing_bounds(17, 4), (std::vector<std::int64_t>{0, 4, 8, 12, 17}));
  EXPECT_EQ(crossing_bounds(2, 4), (std::vector<std::int64_t>{0, 0, 1, 1, 2}));
}

// Of this process, those of other tests among them.
int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("motley-edge") != std::string::npos ? 1 : 0;
  return count;
}

TEST(SharedWindow, WorkersOfOneHostShareMemory) {
  for (const std::string kind : {"shm", "tcp"}) {
    const int before = shared_mappings();
    const LinkedGroups groups(kind, 2);
    EXPECT_EQ(shared_mappings() > before, kind == "shm");
  }
}

}  // namespace
}  // namespace motley
