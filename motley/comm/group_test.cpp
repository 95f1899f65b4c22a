#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/channel.hpp"
#include "motley/comm/frame.hpp"

namespace motley {
namespace {

struct Pair {
  std::unique_ptr<Channel> near, far;
};

Pair connect(const std::string& kind, std::int64_t largest_frame, const std::string& near, const std::string& far) {
  const DescriptorPair pair = kind == "shm" ? make_shared_memory_pair(largest_frame) : make_tcp_pair();
  return {open_channel(kind, pair.descriptors[0], 0, largest_frame, far),
          open_channel(kind, pair.descriptors[1], 1, largest_frame, near)};
}

std::vector<Group> make_groups(const std::string& kind, int size, std::int64_t largest_frame = 1 << 20) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::vector<std::unique_ptr<Channel>>> channels(n);
  for (auto& row : channels) row.resize(n);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) {
      Pair pair = connect(kind, largest_frame, "rank " + std::to_string(a), "rank " + std::to_string(b));
      channels[a][b] = std::move(pair.near);
      channels[b][a] = std::move(pair.far);
    }
  std::vector<Group> groups;
  for (std::size_t r = 0; r < n; ++r) groups.emplace_back(static_cast<int>(r), std::move(channels[r]), 1);
  return groups;
}

// Runs `part(rank)` on a thread per rank.
template <class Part>
void all_ranks(int size, Part part) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&part, rank] { part(rank); });
  for (auto& thread : threads) thread.join();
}

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

std::span<std::byte> bytes_of(auto& values) { return std::as_writable_bytes(std::span(values)); }

template <class T>
std::vector<std::vector<T>> random_terms(int ranks, std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<std::vector<T>> terms(static_cast<std::size_t>(ranks), std::vector<T>(elements));
  for (auto& term : terms)
    for (T& value : term) {
      if constexpr (std::is_same_v<T, float>)
        value = normal(random);
      else
        value = float_to_bf16(normal(random));
    }
  return terms;
}

template <class T>
std::vector<T> plain_sum(const std::vector<std::vector<T>>& terms) {
  std::vector<T> sums;
  for (std::size_t i = 0; i < terms[0].size(); ++i) {
    if constexpr (std::is_same_v<T, float>) {
      float sum = terms[0][i];
      for (std::size_t r = 1; r < terms.size(); ++r) sum += terms[r][i];
      sums.push_back(sum);
    } else {
      float sum = bf16_to_float(terms[0][i]);
      for (std::size_t r = 1; r < terms.size(); ++r) sum += bf16_to_float(terms[r][i]);
      sums.push_back(float_to_bf16(sum));
    }
  }
  return sums;
}

// What one rank sends for an all-reduce of `elements`, by hand: frames times header, plus payloads.
std::int64_t predicted_bytes(std::int64_t elements, std::int64_t element_bytes, int ranks, int rank, bool direct) {
  const auto header = static_cast<std::int64_t>(frame_header_bytes);
  const std::int64_t others = ranks - 1;
  if (elements == 0) return 0;
  if (direct) return others * (header + elements * element_bytes);
  const std::int64_t mine = (rank + 1) * elements / ranks - rank * elements / ranks;
  return others * header + (elements - mine) * element_bytes + others * (header + mine * element_bytes);
}

class Collectives : public ::testing::TestWithParam<std::string> {
 protected:
  template <class T>
  void check_all_reduce(ElementType type) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      auto groups = make_groups(GetParam(), ranks);
      std::uint64_t step = 0;
      for (const std::size_t elements : {0, 1, 3, 17, 1000, 16384, 16385, 50001, 200003}) {
        auto data =
            random_terms<T>(ranks, elements, static_cast<unsigned>(ranks * 1000) + static_cast<unsigned>(elements));
        const auto expected = plain_sum(data);
        std::vector<std::int64_t> sent(groups.size());
        all_ranks(ranks, [&](int rank) {
          const auto r = static_cast<std::size_t>(rank);
          const std::int64_t before = groups[r].sent_bytes();
          groups[r].begin_step(step);
          groups[r].all_reduce(type, bytes_of(data[r]));
          sent[r] = groups[r].sent_bytes() - before;
        });
        ++step;
        for (int rank = 0; rank < ranks; ++rank) {
          const auto r = static_cast<std::size_t>(rank);
          // Bits, not values.
          ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(data[r])), std::as_bytes(std::span(expected))))
              << ranks << " ranks, " << elements;
          const bool direct = elements * sizeof(T) <= 65536;
          if (ranks > 1) {
            EXPECT_EQ(sent[r], predicted_bytes(static_cast<std::int64_t>(elements), sizeof(T), ranks, rank, direct))
                << ranks << " ranks, " << elements;
          }
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, Collectives, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return test.param; });

TEST_P(Collectives, AllReduceIsThePlainSumInRankOrderFp32) { check_all_reduce<float>(ElementType::fp32); }
TEST_P(Collectives, AllReduceIsThePlainSumInRankOrderBf16) { check_all_reduce<std::uint16_t>(ElementType::bf16); }

TEST_P(Collectives, TensorsLargerThanTheWindowTravelInPieces) {
  constexpr int ranks = 3;
  auto groups = make_groups(GetParam(), ranks, 1 << 10);
  auto data = random_terms<float>(ranks, 300'001, 5);
  const auto expected = plain_sum(data);
  all_ranks(ranks, [&](int rank) {
    groups[static_cast<std::size_t>(rank)].all_reduce(ElementType::fp32,
                                                      bytes_of(data[static_cast<std::size_t>(rank)]));
  });
  for (const auto& result : data) EXPECT_EQ(result, expected);
}

TEST_P(Collectives, NotANumberAndInfinityStayWhatTheyAre) {
  auto groups = make_groups(GetParam(), 2);
  std::vector<std::vector<std::uint16_t>> data{{0x7f80, 0x7fc0, 0x7f7f, 0x8000}, {0x3f80, 0x3f80, 0x7f7f, 0x8000}};
  all_ranks(2, [&](int rank) {
    groups[static_cast<std::size_t>(rank)].all_reduce(ElementType::bf16,
                                                      bytes_of(data[static_cast<std::size_t>(rank)]));
  });
  const std::vector<std::uint16_t> expected{0x7f80, 0x7fc0, 0x7f80, 0x8000};  // inf + 1, NaN + 1, max + max, -0 + -0
  EXPECT_EQ(data[0], expected);
  EXPECT_EQ(data[1], expected);
}

TEST_P(Collectives, AllGatherRowsFillsEveryRank) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    auto groups = make_groups(GetParam(), ranks, 4 << 10);
    std::mt19937 random(static_cast<unsigned>(ranks));
    for (std::uint64_t step = 0; step < 12; ++step) {
      const std::int64_t columns = 1 + static_cast<std::int64_t>(random() % 300);
      std::vector<std::int64_t> bounds{0};
      for (int r = 0; r < ranks; ++r)
        bounds.push_back(bounds.back() + (random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 200)));
      const auto whole =
          random_terms<float>(1, static_cast<std::size_t>(bounds.back() * columns), static_cast<unsigned>(step))[0];
      std::vector<std::vector<float>> data(groups.size(), std::vector<float>(whole.size(), -1));
      for (std::size_t r = 0; r < data.size(); ++r)
        std::copy(whole.begin() + bounds[r] * columns, whole.begin() + bounds[r + 1] * columns,
                  data[r].begin() + bounds[r] * columns);
      all_ranks(ranks, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        groups[r].begin_step(step);
        groups[r].all_gather_rows(ElementType::fp32, bytes_of(data[r]), columns, bounds);
      });
      for (const auto& result : data) EXPECT_EQ(result, whole);
    }
  }
}

TEST_P(Collectives, GatherBringsBlocksOfUnequalLengthsToRankZero) {
  constexpr int ranks = 4;
  auto groups = make_groups(GetParam(), ranks);
  auto blocks = random_terms<float>(ranks, 40'000, 3);
  for (std::size_t r = 0; r < blocks.size(); ++r) blocks[r].resize(r == 2 ? 0 : 10'000 * (r + 1));
  std::vector<std::vector<float>> gathered;
  for (const auto& block : blocks) gathered.emplace_back(block.size());
  std::vector<std::span<std::byte>> out;
  for (auto& block : gathered) out.push_back(bytes_of(block));
  all_ranks(ranks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    groups[r].gather(ElementType::fp32, bytes_of(blocks[r]), rank == 0 ? out : std::vector<std::span<std::byte>>{});
  });
  EXPECT_EQ(gathered, blocks);
}

TEST_P(Collectives, ARankInAnotherStepIsAPeerError) {
  auto groups = make_groups(GetParam(), 2);
  std::vector<std::string> errors(2);
  all_ranks(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<float> data(4, 1);
    groups[r].begin_step(static_cast<std::uint64_t>(rank));
    try {
      groups[r].all_reduce(ElementType::fp32, bytes_of(data));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer);
      errors[r] = error.what();
    }
  });
  EXPECT_EQ(
      errors[0],
      "rank 1 sent another frame than expected: [epoch 1 step 1 frame 0: rows [0, 4) x 1 fp32, partial] instead of "
      "[epoch 1 step 0 frame 0: rows [0, 4) x 1 fp32, partial]");
  EXPECT_EQ(errors[1].substr(0, 40), "rank 0 sent another frame than expected:");
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

// Two stages and the channels that the crossing between them uses.
struct Stages {
  Stages(const std::string& kind, int a, int b) : senders(a), receivers(b), to(static_cast<std::size_t>(a)) {
    for (auto& row : to) row.resize(static_cast<std::size_t>(b));
    for (int j = 0; j < b; ++j) {
      auto pair = connect(kind, 1 << 12, "sender", "receiver");
      to[static_cast<std::size_t>(crossing_sender(j, a, b))][static_cast<std::size_t>(j)] = pair.near.get();
      near.push_back(std::move(pair.near));
      far.push_back(std::move(pair.far));
    }
    if (b > 1) groups = make_groups(kind, b, 1 << 12);
  }

  // Crosses a random tensor; checks what arrives, and returns the bytes on the wire.
  std::int64_t cross(std::int64_t rows, std::int64_t columns, ElementType type, std::uint64_t step) {
    const FrameTag whole{.epoch = 1, .step = step, .type = type, .rows = rows, .columns = columns};
    std::vector<std::byte> sent(static_cast<std::size_t>(whole.bytes()));
    std::minstd_rand random(static_cast<unsigned>(step) + 1);
    for (std::byte& byte : sent) byte = static_cast<std::byte>(random() >> 8);
    const std::int64_t before = sent_bytes();
    std::vector<std::vector<std::byte>> received(static_cast<std::size_t>(receivers),
                                                 std::vector<std::byte>(sent.size()));
    for (int rank = 0; rank < senders; ++rank)
      send_crossing(whole, sent, rank, senders, to[static_cast<std::size_t>(rank)]);
    all_ranks(receivers, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      Group* group = groups.empty() ? nullptr : &groups[r];
      if (group != nullptr) group->begin_step(step);
      receive_crossing(whole, received[r], *far[r], group);
    });
    for (const auto& copy : received) EXPECT_EQ(copy, sent);
    return sent_bytes() - before;
  }

  std::int64_t sent_bytes() const {
    std::int64_t sum = 0;
    for (const auto& channel : near) sum += channel->sent_bytes();
    for (const auto& channel : far) sum += channel->sent_bytes();
    for (const auto& group : groups) sum += group.sent_bytes();
    return sum;
  }

  int senders, receivers;
  std::vector<std::vector<Channel*>> to;
  std::vector<std::unique_ptr<Channel>> near, far;
  std::vector<Group> groups;
};

class Crossings : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Crossings, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return test.param; });

TEST_P(Crossings, EveryReceiverEndsWithTheTensorAndTheWireCarriesWhatWasPredicted) {
  for (int a = 1; a <= 8; ++a)
    for (int b = 1; b <= 8; ++b) {
      Stages stages(GetParam(), a, b);
      std::uint64_t step = 0;
      for (std::int64_t rows = 1; rows <= 17; rows += GetParam() == "shm" ? 1 : 4) {
        const std::int64_t columns = 3 + rows % 5;
        const ElementType type = rows % 2 == 0 ? ElementType::bf16 : ElementType::fp32;
        // Each row crosses once, then b - 1 times inside the stage; each non-empty interval has a header per frame.
        const std::int64_t intervals = std::min<std::int64_t>(rows, b);
        const std::int64_t row_bytes = columns * (type == ElementType::bf16 ? 2 : 4);
        const std::int64_t predicted =
            b * (rows * row_bytes + intervals * static_cast<std::int64_t>(frame_header_bytes));
        EXPECT_EQ(stages.cross(rows, columns, type, step++), predicted) << a << " -> " << b << ", " << rows << " rows";
      }
    }
}

}  // namespace
}  // namespace motley
