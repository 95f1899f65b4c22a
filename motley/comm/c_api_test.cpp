// The C functions: every operation once, between ranks in threads; and what is refused in words.
#include "motley/comm/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace motley {
namespace {

using ::testing::HasSubstr;

constexpr int ranks = 3;
constexpr motley_call sum_call{MOTLEY_SUM, MOTLEY_UNDEFINED, 20};

struct Fabrics {
  std::vector<motley_fabric*> open;
  std::vector<motley_member> members;
  std::array<std::string, ranks> ids;

  explicit Fabrics(const std::vector<std::string>& keys) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::array<char, 512> error{};
      motley_open_options options{};
      options.listen = "127.0.0.1:0";
      options.key = keys[static_cast<std::size_t>(rank)].c_str();
      open.push_back(motley_open(&options, error.data(), error.size()));
      EXPECT_NE(open.back(), nullptr) << error.data();
      auto& id = ids[static_cast<std::size_t>(rank)] = std::to_string(rank);
      members.push_back({id.c_str(), "here", motley_address(open.back()), 0});
    }
  }
  ~Fabrics() {
    for (auto* fabric : open) motley_close(fabric);
  }
  Fabrics(const Fabrics&) = delete;
  Fabrics& operator=(const Fabrics&) = delete;

  motley_group* connect(int rank, double timeout_s, std::string& error) const {
    std::array<char, 512> text{};
    const motley_connect_options options{"g", 1, members.data(), ranks, rank, timeout_s};
    auto* group = motley_connect(open[static_cast<std::size_t>(rank)], &options, text.data(), text.size());
    error = text.data();
    return group;
  }
};

void on_every_rank(const std::function<void(int)>& run) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&run, rank] { run(rank); });
}

void each_operation(motley_group* group, int rank) {
  motley_outcome outcome{};
  const auto ok = [&](const char* operation) {
    EXPECT_EQ(outcome.status, MOTLEY_OK) << operation << ": " << outcome.cause;
    EXPECT_STREQ(outcome.cause, "");
  };
  const auto mine = static_cast<float>(rank);
  std::vector<float> sum(100, mine + 1);
  motley_all_reduce(group, sum.data(), 400, MOTLEY_FP32, &sum_call, &outcome);
  ok("all_reduce");
  EXPECT_EQ(sum, std::vector<float>(100, 6));
  EXPECT_GT(outcome.sent_bytes, 0);
  EXPECT_GT(outcome.time_s, 0);

  std::vector<std::int64_t> most{rank, -rank, 7};
  const motley_call max_call{MOTLEY_MAX, MOTLEY_RESTORE, 20};
  motley_all_reduce(group, most.data(), 24, MOTLEY_INT64, &max_call, &outcome);
  ok("all_reduce");
  EXPECT_EQ(most, (std::vector<std::int64_t>{2, 0, 7}));

  std::vector<double> blocks{1, 2, 3};
  motley_reduce_scatter(group, blocks.data(), 24, MOTLEY_FP64, &sum_call, &outcome);
  ok("reduce_scatter");
  EXPECT_EQ(blocks[static_cast<std::size_t>(rank)], 3.0 * (rank + 1));

  std::vector<std::int32_t> all(ranks, -1);
  all[static_cast<std::size_t>(rank)] = rank * rank;
  motley_all_gather(group, all.data(), 12, &sum_call, &outcome);
  ok("all_gather");
  EXPECT_EQ(all, (std::vector<std::int32_t>{0, 1, 4}));

  std::int32_t word = rank;
  motley_broadcast(group, &word, 4, 2, &sum_call, &outcome);
  ok("broadcast");
  EXPECT_EQ(word, 2);

  word = rank + 1;
  motley_reduce(group, &word, 4, MOTLEY_INT32, 1, &sum_call, &outcome);
  ok("reduce");
  if (rank == 1) {
    EXPECT_EQ(word, 6);
  }

  // Rank a sends b + 1 bytes of value 10 a + b to rank b.
  std::string out, in(static_cast<std::size_t>(3 * (rank + 1)), '?'), expected;
  std::array<std::int64_t, ranks> out_bytes{}, in_bytes{};
  for (int other = 0; other < ranks; ++other) {
    const auto place = static_cast<std::size_t>(other);
    out_bytes[place] = other + 1;
    in_bytes[place] = rank + 1;
    out.append(place + 1, static_cast<char>(10 * rank + other));
    expected.append(static_cast<std::size_t>(rank + 1), static_cast<char>(10 * other + rank));
  }
  motley_all_to_all(group, out.data(), out_bytes.data(), in.data(), in_bytes.data(), &sum_call, &outcome);
  ok("all_to_all");
  EXPECT_EQ(in, expected);

  word = 77;
  if (rank == 0) motley_send(group, &word, 4, 1, &sum_call, &outcome);
  if (rank == 1) {
    word = 0;
    motley_recv(group, &word, 4, 0, &sum_call, &outcome);
  }
  ok("send or recv");
  EXPECT_EQ(word, 77);
  motley_barrier(group, &sum_call, &outcome);
  ok("barrier");
}

TEST(CApi, EveryOperationBetweenThreeRanks) {
  const Fabrics fabrics({"key", "key", "key"});
  on_every_rank([&](int rank) {
    std::string error;
    auto* group = fabrics.connect(rank, 20, error);
    ASSERT_NE(group, nullptr) << error;
    each_operation(group, rank);
    motley_disconnect(group);
  });
}

TEST(CApi, WrongCallsAreRefusedInWords) {
  const Fabrics fabrics({"", "", ""});
  on_every_rank([&](int rank) {
    std::string cause;
    auto* group = fabrics.connect(rank, 20, cause);
    ASSERT_NE(group, nullptr) << cause;
    std::int32_t word = 0;
    motley_outcome outcome{};
    const auto refused = [&](const char* part) {
      EXPECT_EQ(outcome.status, MOTLEY_INVALID);
      EXPECT_THAT(outcome.cause, HasSubstr(part));
    };
    motley_all_reduce(group, &word, 4, 99, &sum_call, &outcome);
    refused("unknown element type 99");
    motley_all_reduce(group, &word, -4, MOTLEY_INT32, &sum_call, &outcome);
    refused("the buffer is missing, or its size is negative");
    const motley_call no_time{MOTLEY_SUM, MOTLEY_UNDEFINED, 0}, no_reduction{17, MOTLEY_UNDEFINED, 1};
    motley_all_reduce(group, &word, 4, MOTLEY_INT32, &no_time, &outcome);
    refused("the options of the call are out of range");
    motley_all_reduce(group, &word, 4, MOTLEY_INT32, &no_reduction, &outcome);
    refused("the options of the call are out of range");
    motley_all_reduce(nullptr, &word, 4, MOTLEY_INT32, &sum_call, &outcome);
    refused("the group or the options of the call are missing");
    std::array<char, 512> error{};
    const char* plan = "no/such/plan.json";
    EXPECT_EQ(motley_use_plans(group, &plan, 1, error.data(), error.size()), MOTLEY_INVALID);
    EXPECT_THAT(error.data(), HasSubstr(plan));
    EXPECT_EQ(motley_use_plans(group, nullptr, 1, error.data(), error.size()), MOTLEY_INVALID);
    // None of them has cost the group anything.
    motley_barrier(group, &sum_call, &outcome);
    EXPECT_EQ(outcome.status, MOTLEY_OK) << outcome.cause;
    motley_disconnect(group);
  });
  std::array<char, 512> error{};
  motley_open_options nowhere{};
  nowhere.listen = "nowhere";
  EXPECT_EQ(motley_open(&nowhere, error.data(), error.size()), nullptr);
  EXPECT_THAT(error.data(), HasSubstr("nowhere"));
  EXPECT_EQ(motley_connect(nullptr, nullptr, error.data(), error.size()), nullptr);
  EXPECT_THAT(error.data(), HasSubstr("the fabric or the members are missing (give all members"));  // with the hint
}

TEST(CApi, AnotherKeyIsTurnedAway) {
  const Fabrics fabrics({"key", "key", "lock"});
  on_every_rank([&](int rank) {
    std::string error;
    auto* group = fabrics.connect(rank, 1, error);
    EXPECT_EQ(group, nullptr);
    EXPECT_NE(error, "");
    motley_disconnect(group);
  });
}

TEST(CApi, AStateIsOneRunOfBytesOrItems) {
  const motley_state state{};
  motley_items items{};
  const auto refusal = [&](const motley_state* run) {
    motley_session_options options{};
    options.coordinators = "127.0.0.1:1";
    options.state = run;
    options.items = &items;
    std::array<char, 512> error{};
    EXPECT_EQ(motley_open_session(&options, error.data(), error.size()), nullptr);
    return std::string(error.data());
  };
  EXPECT_THAT(refusal(nullptr), HasSubstr("the state has no items"));
  items.count = 3;
  EXPECT_THAT(refusal(&state), HasSubstr("one run of bytes or items, not both"));
  items.share = -1;
  EXPECT_THAT(refusal(nullptr), HasSubstr("a share of -1"));
}

TEST(CApi, RevokingEndsWhatWaits) {
  const Fabrics fabrics({"", "", ""});
  on_every_rank([&](int rank) {
    std::string error;
    auto* group = fabrics.connect(rank, 20, error);
    ASSERT_NE(group, nullptr) << error;
    motley_outcome outcome{};
    std::vector<float> values(1000);
    if (rank == 0) motley_revoke(group, "enough");
    // What rank 0 had sent before it noticed may let the others complete one; the next one cannot be.
    for (int i = 0; i < 2 && outcome.status == MOTLEY_OK; ++i)
      motley_all_reduce(group, values.data(), 4000, MOTLEY_FP32, &sum_call, &outcome);
    EXPECT_EQ(outcome.status, MOTLEY_REVOKED) << outcome.cause;
    EXPECT_THAT(outcome.cause, HasSubstr("enough"));
    motley_disconnect(group);
  });
}

}  // namespace
}  // namespace motley
