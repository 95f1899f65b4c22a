#include "motley/probe/fit/probe_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace motley {
namespace {

// Every flow takes a millisecond, and as long as the member that has most to send or receive needs at this rate.
ProbeSample sample_of(const ProbeExchange& exchange, double bytes_per_s) {
  const double time_s = 1e-3 + static_cast<double>(exchange.busiest_bytes()) / bytes_per_s;
  return {exchange, std::vector<double>(exchange.flows.size(), time_s)};
}

std::vector<ProbeSample> run(const ProbeSchedule& schedule, double bytes_per_s) {
  std::vector<ProbeSample> samples;
  while (const auto next = next_exchange(schedule, samples)) {
    samples.push_back(sample_of(*next, bytes_per_s));
    if (samples.size() > 100000) ADD_FAILURE() << "does not end";
  }
  return samples;
}

TEST(ProbeSchedule, EverybodyMeetsEverybodyOnceInDisjointPairs) {
  for (int members = 2; members <= 17; ++members) {
    const auto rounds = meeting_rounds(members);
    EXPECT_EQ(static_cast<int>(rounds.size()), members - 1 + members % 2);
    std::set<MemberPair> met;
    for (const auto& pairs : rounds) {
      std::set<int> busy;
      for (const auto& [a, b] : pairs) {
        EXPECT_LT(a, b);
        EXPECT_LT(b, members);
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second);
        EXPECT_TRUE(met.emplace(a, b).second);
      }
    }
    EXPECT_EQ(static_cast<int>(met.size()), members * (members - 1) / 2);
  }
}

TEST(ProbeSchedule, AllOrderedPairsAreMeasuredFirst) {
  for (const int members : {2, 3, 8, 9, 20}) {
    std::set<MemberPair> flows;
    bool others = false;
    for (const auto& series : probe_series(members)) {
      others = others || series.phase != ProbePhase::flow;
      if (series.phase != ProbePhase::flow) continue;
      EXPECT_FALSE(others);
      if (members <= 8) {
        EXPECT_EQ(series.flows.size(), 1U);
      }
      for (const auto& flow : series.flows) EXPECT_TRUE(flows.insert(flow).second);
    }
    EXPECT_EQ(static_cast<int>(flows.size()), members * (members - 1));
  }
}

TEST(ProbeSchedule, ThreeMembersAreMeasuredInEveryWay) {
  std::vector<std::pair<ProbePhase, std::size_t>> shapes;
  for (const auto& series : probe_series(3)) shapes.emplace_back(series.phase, series.flows.size());
  using enum ProbePhase;
  EXPECT_EQ(shapes, (std::vector<std::pair<ProbePhase, std::size_t>>{{flow, 1},
                                                                     {flow, 1},
                                                                     {flow, 1},
                                                                     {flow, 1},
                                                                     {flow, 1},
                                                                     {flow, 1},
                                                                     {spread, 2},
                                                                     {spread, 2},
                                                                     {spread, 2},
                                                                     {incast, 2},
                                                                     {incast, 2},
                                                                     {incast, 2},
                                                                     {pairs, 2},
                                                                     {pairs, 2},
                                                                     {pairs, 2},
                                                                     {all, 6}}));
}

TEST(ProbeSchedule, LargeGroupsAreSampled) {
  std::set<std::size_t> fan_ins;
  int receivers = 0;
  for (const auto& series : probe_series(64)) {
    if (series.phase != ProbePhase::incast) continue;
    fan_ins.insert(series.flows.size());
    receivers += series.flows.size() == 63 ? 1 : 0;
  }
  EXPECT_EQ(fan_ins, (std::set<std::size_t>{2, 4, 8, 16, 32, 63}));
  EXPECT_EQ(receivers, 4);
}

TEST(ProbeSchedule, SizesGrowUntilTheyTakeLongEnoughAndAreMeasuredTwice) {
  const ProbeSchedule schedule{.members = 3, .seconds = 9.6};  // 0.2 s for the largest exchange of a series
  const auto samples = run(schedule, 1e8);
  for (int series = 0; series < 16; ++series) {
    std::vector<ProbeSample> own;
    std::copy_if(samples.begin(), samples.end(), std::back_inserter(own),
                 [&](const ProbeSample& sample) { return sample.exchange.series == series; });
    ASSERT_GE(own.size(), 3U);
    for (std::size_t i = 1; i + 1 < own.size(); ++i) EXPECT_GT(own[i].exchange.bytes(), own[i - 1].exchange.bytes());
    EXPECT_EQ(own[own.size() - 1].exchange, own[own.size() - 2].exchange);
    EXPECT_GE(own.back().longest_s(), 0.7 * 0.2);
    EXPECT_LE(own.back().longest_s(), 0.21);
  }
}

TEST(ProbeSchedule, TheTimeIsAboutWhatWasAskedFor) {
  for (const int members : {2, 3, 5})
    for (const double rate : {1e6, 1e8, 1e10}) {
      double sum = 0;
      for (const auto& sample : run({.members = members, .seconds = probe_seconds(members)}, rate))
        sum += sample.longest_s();
      EXPECT_LT(sum, 1.2 * probe_seconds(members)) << members << " members at " << rate;
    }
}

TEST(ProbeSchedule, AnExchangeIsBounded) {
  for (const int members : {2, 5, 64})
    for (const auto& sample : run({.members = members, .seconds = 3600}, 1e12))
      EXPECT_LE(sample.exchange.busiest_bytes(), most_probe_bytes);
}

TEST(ProbeSchedule, TimesThatDoNotAgreeAreMeasuredUpToFourTimes) {
  const ProbeSchedule schedule{.members = 2, .seconds = 9};
  std::vector<ProbeSample> samples;
  double time_s = 10;  // long enough at once, and faster every time
  while (const auto next = next_exchange(schedule, samples)) {
    if (next->series > 0) break;
    samples.push_back({*next, {time_s *= 0.8}});
  }
  EXPECT_EQ(samples.size(), 4U);
  samples.resize(1);
  samples.push_back(samples[0]);
  EXPECT_EQ(next_exchange(schedule, samples)->series, 1);
  samples[1].seconds[0] *= 0.97;  // near, but still gaining
  EXPECT_EQ(next_exchange(schedule, samples)->series, 0);
}

TEST(ProbeSchedule, ASizeThatTookLongOnceGrowsOnceItDoesNot) {
  const ProbeSchedule schedule{.members = 2, .seconds = 9};  // 1 s for the largest exchange
  ProbeSample slow{*next_exchange(schedule, {}), {2.0}}, quick = slow;
  EXPECT_EQ(next_exchange(schedule, {slow}), slow.exchange);
  quick.seconds[0] = 0.5;
  EXPECT_EQ(next_exchange(schedule, {slow, quick})->bytes(), 2 * slow.exchange.bytes());
}

TEST(ProbeSchedule, PairsAloneHaveAllTheTime) {
  const auto samples = run({.members = 3, .seconds = 9, .pairs_alone = true}, 1e8);
  EXPECT_EQ(samples.back().exchange.series, 5);  // six ordered pairs
  EXPECT_EQ(samples.back().exchange.phase, ProbePhase::flow);
  EXPECT_NEAR(samples.back().longest_s(), 0.5, 0.05);
}

TEST(ProbeSchedule, LongRoundTripsTakeLongerExchanges) {
  ProbeSchedule schedule{.members = 2, .seconds = 0.5, .pairs_alone = true};
  schedule.round_trip_s = {0, 0.05, 0.05, 0};
  const auto samples = run(schedule, 60e6);
  EXPECT_GE(samples.back().longest_s(), 12 * 0.05);
  EXPECT_LE(samples.back().longest_s(), 2.1 * 12 * 0.05);
  schedule.round_trip_s = {0, 2, 2, 0};  // bounded
  EXPECT_LE(run(schedule, 60e6).back().longest_s(), 2.1 * 1.5);
}

TEST(ProbeSchedule, FlowsTogetherEndTogetherWhereTheirPairsDo) {
  // Member 2 is ten times slower in both directions: what others send to it is ten times less.
  const ProbeSchedule schedule{.members = 3, .seconds = 9.6};
  std::vector<ProbeSample> samples;
  while (const auto next = next_exchange(schedule, samples)) {
    if (next->phase == ProbePhase::spread) {
      ASSERT_EQ(next->flows.size(), 2U);
      EXPECT_NEAR(static_cast<double>(next->flows[0].bytes) / static_cast<double>(next->flows[1].bytes), 10, 0.1);
      return;
    }
    const bool slow = next->flows[0].from == 2 || next->flows[0].to == 2;
    samples.push_back({*next, {static_cast<double>(next->flows[0].bytes) / (slow ? 1e7 : 1e8)}});
  }
  FAIL() << "no spread";
}

}  // namespace
}  // namespace motley
