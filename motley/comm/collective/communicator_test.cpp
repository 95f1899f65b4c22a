#include "motley/comm/collective/communicator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "motley/base/random.hpp"
#include "motley/comm/collective/world_test.hpp"
#include "motley/plan/collective_programs.hpp"

namespace motley {
namespace {

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

#define EXPECT_OK(call)                                          \
  do {                                                           \
    const OperationOutcome ended = call;                         \
    EXPECT_EQ(ended.status, OperationStatus::ok) << ended.cause; \
  } while (false)

// Small integers: sums of a few are exact in every type, so that the order of additions does not matter.
int number_at(int rank, std::size_t i) {
  return static_cast<int>(
      philox4x32({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(rank), 0, 0}, {1, 2})[0] % 13);
}

// Encodes small non-negative integers.
std::vector<std::byte> encode(CollectiveElement element, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(element_bytes(element)));
  const auto put = [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T value = static_cast<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    }
  };
  switch (element) {
    case CollectiveElement::fp32: put(float{}); break;
    case CollectiveElement::fp64: put(double{}); break;
    case CollectiveElement::int8: put(std::int8_t{}); break;
    case CollectiveElement::uint8: put(std::uint8_t{}); break;
    case CollectiveElement::int16: put(std::int16_t{}); break;
    case CollectiveElement::int32: put(std::int32_t{}); break;
    case CollectiveElement::int64: put(std::int64_t{}); break;
    case CollectiveElement::bf16:
    case CollectiveElement::fp16:
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t half =
            element == CollectiveElement::bf16
                ? static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(values[i])) >> 16)
                : std::bit_cast<std::uint16_t>(static_cast<_Float16>(values[i]));
        std::memcpy(bytes.data() + 2 * i, &half, 2);
      }
  }
  return bytes;
}

double plain(CollectiveReduction reduction, CollectiveElement element, int ranks, std::size_t i) {
  double value = number_at(0, i);
  for (int r = 1; r < ranks; ++r) {
    const double next = number_at(r, i);
    if (reduction == CollectiveReduction::max) value = std::max(value, next);
    if (reduction == CollectiveReduction::min) value = std::min(value, next);
    if (reduction == CollectiveReduction::sum || reduction == CollectiveReduction::mean) value += next;
  }
  if (reduction != CollectiveReduction::mean) return value;
  const bool whole = element != CollectiveElement::fp32 && element != CollectiveElement::fp64 &&
                     element != CollectiveElement::fp16 && element != CollectiveElement::bf16;
  return whole ? std::floor(value / ranks) : value / ranks;
}

class EveryTransport : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryTransport, ::testing::Values("local", "shm", "tcp", "tls"),
                         [](const auto& kind) { return kind.param; });

std::vector<CollectiveElement> all_elements() {
  std::vector<CollectiveElement> list;
  for (int e = 0; e < collective_elements; ++e) list.push_back(static_cast<CollectiveElement>(e));
  return list;
}

TEST_P(EveryTransport, ReducesEveryTypeInEveryWay) {
  for (const int ranks : {1, 2, 3, 8}) {
    TestWorld world(GetParam(), ranks);
    world.run([&](Communicator& group) {
      for (const CollectiveElement element : all_elements())
        for (int r = 0; r < collective_reductions; ++r) {
          const auto reduction = static_cast<CollectiveReduction>(r);
          // A mean of 16-bit floats is rounded once; of 1, 2 and 8 ranks it is exact.
          if (reduction == CollectiveReduction::mean && ranks == 3 &&
              (element == CollectiveElement::fp16 || element == CollectiveElement::bf16))
            continue;
          for (const std::size_t count : {1U, 5'001U}) {
            std::vector<double> mine(count), expected(count);
            for (std::size_t i = 0; i < count; ++i) {
              mine[i] = number_at(group.rank(), i);
              expected[i] = plain(reduction, element, ranks, i);
            }
            if (element == CollectiveElement::fp32)
              for (double& value : expected) value = static_cast<float>(value);
            std::vector<std::byte> data = encode(element, mine);
            EXPECT_OK(group.all_reduce(data, element, {.reduction = reduction}));
            ASSERT_EQ(data, encode(element, expected)) << name(element) << " " << name(reduction) << " " << count;
          }
        }
    });
  }
}

TEST_P(EveryTransport, DoesEveryOperationForEverySize) {
  for (const int ranks : {2, 3, 8}) {
    TestWorld world(GetParam(), ranks);
    world.run([&](Communicator& group) {
      const auto n = static_cast<std::size_t>(ranks);
      const auto me = static_cast<std::size_t>(group.rank());
      for (const std::size_t count : {1U, 5U, 30'001U}) {
        // reduce_scatter and all_gather
        std::vector<std::int32_t> blocks(count * n);
        for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = number_at(group.rank(), i);
        EXPECT_OK(group.reduce_scatter(bytes_of(blocks), CollectiveElement::int32, {}));
        for (std::size_t i = me * count; i < (me + 1) * count; ++i)
          ASSERT_EQ(blocks[i], plain(CollectiveReduction::sum, CollectiveElement::int32, ranks, i)) << i;
        EXPECT_OK(group.all_gather(bytes_of(blocks), {}));
        for (std::size_t i = 0; i < blocks.size(); ++i)
          ASSERT_EQ(blocks[i], plain(CollectiveReduction::sum, CollectiveElement::int32, ranks, i)) << i;

        // broadcast and reduce
        const int root = static_cast<int>(count % n);
        std::vector<std::int32_t> data(count);
        for (std::size_t i = 0; i < count; ++i) data[i] = number_at(group.rank(), i);
        EXPECT_OK(
            group.reduce(bytes_of(data), CollectiveElement::int32, root, {.reduction = CollectiveReduction::max}));
        if (group.rank() == root) {
          for (std::size_t i = 0; i < count; ++i)
            ASSERT_EQ(data[i], plain(CollectiveReduction::max, CollectiveElement::int32, ranks, i));
        }
        EXPECT_OK(group.broadcast(bytes_of(data), root, {}));
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(data[i], plain(CollectiveReduction::max, CollectiveElement::int32, ranks, i));

        // all_to_all with blocks of different sizes, some empty
        std::vector<std::int64_t> out_sizes, in_sizes;
        const auto between = [&](std::size_t a, std::size_t b) {
          return static_cast<std::int64_t>(count * ((a + 2 * b) % 3));
        };
        std::vector<std::byte> in, expected;
        for (std::size_t r = 0; r < n; ++r) {
          in_sizes.push_back(between(me, r));
          out_sizes.push_back(between(r, me));
          in.insert(in.end(), static_cast<std::size_t>(between(me, r)), static_cast<std::byte>(10 * me + r));
          expected.insert(expected.end(), static_cast<std::size_t>(between(r, me)),
                          static_cast<std::byte>(10 * r + me));
        }
        std::vector<std::byte> out(expected.size());
        EXPECT_OK(group.all_to_all(in, in_sizes, out, out_sizes, {}));
        ASSERT_EQ(out, expected);

        // messages round a ring, twice
        if (ranks > 1) {
          for (int turn = 0; turn < 2; ++turn) {
            const int next = (group.rank() + 1) % ranks, previous = (group.rank() + ranks - 1) % ranks;
            std::vector<std::int32_t> sent(count, 100 * turn + group.rank()), got(count);
            if (group.rank() == 0) {
              EXPECT_OK(group.send(bytes_of(sent), next, {}));
              EXPECT_OK(group.recv(bytes_of(got), previous, {}));
            } else {
              EXPECT_OK(group.recv(bytes_of(got), previous, {}));
              EXPECT_OK(group.send(bytes_of(sent), next, {}));
            }
            ASSERT_EQ(got, std::vector<std::int32_t>(count, 100 * turn + previous));
          }
        }
        EXPECT_OK(group.barrier({}));
      }
    });
  }
}

// Sums of floats depend on the order of additions: all ranks must have used the same.
TEST_P(EveryTransport, IsBitIdenticalOnAllRanks) {
  constexpr int ranks = 5;
  TestWorld world(GetParam(), ranks);
  std::vector<std::vector<float>> results(ranks);
  world.run([&](Communicator& group) {
    for (const std::size_t count : {100U, 300'000U}) {
      std::vector<float> data(count);
      for (std::size_t i = 0; i < count; ++i)
        data[i] = static_cast<float>(uniform_at(static_cast<std::uint64_t>(group.rank()), i) - 0.5);
      EXPECT_OK(group.all_reduce(bytes_of(data), CollectiveElement::fp32, {}));
      auto& mine = results[static_cast<std::size_t>(group.rank())];
      mine.insert(mine.end(), data.begin(), data.end());
    }
  });
  for (int r = 1; r < ranks; ++r)
    EXPECT_EQ(std::memcmp(results[0].data(), results[static_cast<std::size_t>(r)].data(), results[0].size() * 4), 0)
        << r;
}

// ---- plans ----

CollectiveProgram without_owner(int ranks, int rank, std::int64_t bytes, int chunks) {
  std::vector<double> weights(static_cast<std::size_t>(ranks), 1);
  weights[static_cast<std::size_t>(rank)] = 0;
  return direct_program({.operation = CollectiveOperation::all_reduce,
                         .ranks = ranks,
                         .root = 0,
                         .bytes = bytes,
                         .chunks = chunks,
                         .alignment = 64},
                        weights);
}

std::int64_t sent_bytes(const OperationOutcome& outcome) {
  std::int64_t bytes = 0;
  for (const LinkUsage& link : outcome.links) bytes += link.sent_bytes;
  return bytes;
}

// A rank that owns nothing of the sum sends its vector once; one that owns half of it sends half of the vector to the
// other owner, and its half of the sum to both.
TEST_P(EveryTransport, RunsThePlanOfTheNearestSize) {
  constexpr int ranks = 3;
  TestWorld world(GetParam(), ranks);
  world.run([](Communicator& group) {
    group.use_plans({without_owner(ranks, 0, 96 << 10, 2), without_owner(ranks, 2, 12 << 20, 32)});
    for (const auto& [count, without] : {std::pair<std::size_t, int>{30'001, 0}, {2'000'003, 2}}) {
      std::vector<float> data(count, static_cast<float>(group.rank() + 1));
      const OperationOutcome outcome = group.all_reduce(bytes_of(data), CollectiveElement::fp32, {});
      ASSERT_EQ(outcome.status, OperationStatus::ok) << outcome.cause;
      EXPECT_EQ(std::ranges::count(data, 6.0F), std::ssize(data));
      const double vectors = static_cast<double>(sent_bytes(outcome)) / static_cast<double>(4 * count);
      EXPECT_NEAR(vectors, group.rank() == without ? 1.0 : 1.5, 0.01) << group.rank();
    }
  });
}

TEST(CommunicatorPlans, MustBeTheSameOnAllRanksAndForTheirNumber) {
  TestWorld world("local", 3);
  world.run([](Communicator& group) {
    EXPECT_THROW(group.use_plans({without_owner(4, 0, 96 << 10, 2)}), Error);
    if (group.rank() == 1) group.use_plans({without_owner(3, 0, 96 << 10, 2)});
    std::vector<float> data(30'000);
    const OperationOutcome outcome = group.all_reduce(bytes_of(data), CollectiveElement::fp32, {.timeout_s = 5});
    EXPECT_NE(outcome.status, OperationStatus::ok);
    EXPECT_NE(outcome.cause.find("by another plan"), std::string::npos) << outcome.cause;
  });
}

}  // namespace
}  // namespace motley
