#include "motley/sim/network.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "motley/plan/example_test.hpp"
#include "motley/sim/plans_test.hpp"
#include "motley/sim/summary.hpp"

namespace motley {
namespace {

TEST(SimNetwork, AStepsLoadAddsUpItsSequences) {
  const ServePlan plan = timed_plan({{}}, {{0}});
  const Router router(plan, {});
  const sim::Network network(plan, router);
  // Four tokens of a prompt behind ten others, and one token behind twenty that is the last known.
  const StepLoad load =
      network.load_of({.id = 1,
                       .chain = 0,
                       .sequences = {{.id = 1, .position = 10, .count = 4, .blocks = {}, .samples = false},
                                     {.id = 2, .position = 20, .count = 1, .blocks = {}, .samples = true}}});
  EXPECT_DOUBLE_EQ(load.tokens, 5);
  EXPECT_DOUBLE_EQ(load.context, (4 * 12 + 20.5) / 5);
  EXPECT_DOUBLE_EQ(load.cached, 12 + 20.5);
  EXPECT_DOUBLE_EQ(load.logits, 1);
}

// Two machines, a stage of each route on either: what goes there does not wait for what comes back.
TEST(SimNetwork, EachDirectionBetweenMachinesIsALink) {
  ServePlan plan = timed_plan({{.layers = {0, 2}}, {.layers = {2, 4}}, {.layers = {0, 2}}, {.layers = {2, 4}}},
                              {{0, 1}, {2, 3}}, 0.01, 1e6);
  plan.stages[2].devices = {"m1/0"};
  plan.stages[3].devices = {"m0/0"};
  const SimResult result = simulate(plan, regular(2, 0, 8, 2), {});
  ASSERT_EQ(result.links.size(), 2u);
  EXPECT_EQ(result.links[0].from, result.links[1].to);
  EXPECT_NEAR(result.links[0].bytes, result.links[1].bytes, tick);
}

// Seven layers' keys and values go one way, those of the eighth another: decoding waits for the last to arrive.
TEST(SimRoles, DecodingBeginsWithTheLastTransfer) {
  const ServePlan plan = timed_plan({{.tokens_per_s = 1e9, .layers = {0, 8}, .role = StageRole::prefill},
                                     {.tokens_per_s = 1e9, .layers = {0, 7}, .role = StageRole::decode},
                                     {.tokens_per_s = 1e9, .layers = {7, 8}, .role = StageRole::decode}},
                                    {{0, 1, 2}}, 0, 1e4);
  const RequestRecord record = simulate(plan, regular(1, 0, 10, 2), {}).records[0];
  const double layer_bytes = 2 * 64 * 2, hidden_bytes = 64 * 2;
  EXPECT_NEAR(record.last_token_s - record.first_token_s,
              10 * 7 * layer_bytes / 1e4 + hidden_bytes / 1e4 + token_id_bytes / 1e4, 1e-6);
}

// A stage that prefills holds the prompt and one token, however long the answer.
TEST(SimRoles, AnswersNeedNoRoomWhereTheyArePrefilled) {
  const ServePlan plan =
      timed_plan({{.role = StageRole::prefill, .kv_tokens = 16}, {.role = StageRole::decode}}, {{0, 1}});
  const SimResult result = simulate(plan, regular(1, 0, 10, 50), {});
  EXPECT_EQ(result.all.finished, 1);
  EXPECT_EQ(result.records[0].emitted, 50);
}

// What a stage was at when its device left is over when that is back; an answer is as long as before.
TEST(SimFaults, AStageComesBackIdleAndGoesOn) {
  ServePlan plan = timed_plan({{.tokens_per_s = 1}}, {{0}});
  const SimResult lost = simulate(plan, regular(1, 0, 100, 1), {.faults = {{"m0/0", 10, 20}}});
  EXPECT_NEAR(lost.records[0].last_token_s, 120, tick);
  plan.model.arch.context = 20;
  const SimResult cut = simulate(plan, regular(1, 0, 10, 50), {.faults = {{"m0/0", 15.5, 20}}});
  EXPECT_TRUE(cut.records[0].finished());
  EXPECT_EQ(cut.records[0].emitted, 10) << "as much as fits behind the prompt, with what was out before the fault";
}

TEST(SimQueues, BlocksInUseAreCounted) {
  const ServePlan plan = timed_plan({{.tokens_per_s = 10, .kv_tokens = 64}}, {{0}});
  const SimResult result = simulate(plan, regular(1, 0, 10, 5), {});
  ASSERT_EQ(result.queues.size(), 1u);
  EXPECT_NEAR(result.queues[0].kv_mean, 0.25, tick);  // one block of four, all the time
  EXPECT_NEAR(result.queues[0].kv_peak, 0.25, tick);
}

TEST(SimTimes, MeasuredOnesReplaceThoseOfTheCostModel) {
  const ServePlan plan = timed_plan({{}, {}}, {{0, 1}});
  const HopSpeed link{0.5, 1e12};
  const PipelineTime times{.visits = {{.stage = 0, .time = {.fixed_s = 2}}, {.stage = 1, .time = {.fixed_s = 3}}},
                           .crossings = {{.time = {.small = link, .large = link, .token_bytes = 1}}},
                           .back_s = 0.25};
  const SimResult result = simulate(plan, {{0, 1, 2, "chat"}}, {.times = times});
  EXPECT_NEAR(result.all.ttft_s.p50, 5.5, 0.3);
  EXPECT_NEAR(result.all.tpot_s.p50, 5.75, 1e-6);
}

TEST(SimRequests, ATimeThatIsNoneIsRefused) {
  const ServePlan plan = timed_plan({{}}, {{0}});
  for (const double arrival_s : {-1.0, std::nan("")})
    EXPECT_THROW(simulate(plan, {{arrival_s, 1, 1, "chat"}}, {}), Error) << arrival_s;
}

TEST(Summary, PercentilesLieBetweenTheSortedValues) {
  const Percentiles percentiles = sim::percentiles_of({5, 1, 4, 2, 3});
  EXPECT_DOUBLE_EQ(percentiles.p50, 3);
  EXPECT_DOUBLE_EQ(percentiles.p90, 4.6);
  EXPECT_DOUBLE_EQ(percentiles.p99, 4.96);
  EXPECT_DOUBLE_EQ(sim::percentiles_of({7}).p99, 7);
  EXPECT_DOUBLE_EQ(sim::percentiles_of({}).p50, 0);
}

TEST(Summary, CountsEveryRequestOnce) {
  const Workload workload = workload_of(1, 1);
  const std::vector<RequestRecord> records = {
      {.arrival_s = 0, .first_token_s = 1, .last_token_s = 1, .output_tokens = 1, .emitted = 1},
      {.arrival_s = 0, .first_token_s = 1, .last_token_s = 5, .output_tokens = 3, .emitted = 3},
      {.arrival_s = 1, .output_tokens = 4, .emitted = 2},
      {.arrival_s = 1, .output_tokens = 4, .refused = true},
      {.arrival_s = 2, .output_tokens = 4, .refused = true}};
  SimResult result;
  sim::summarize(workload, records, {}, 2, {6}, result);
  EXPECT_EQ(result.all.requests, 5);
  EXPECT_EQ(result.all.finished, 2);
  EXPECT_EQ(result.all.refused, 2);
  EXPECT_EQ(result.all.unfinished, 1);
  EXPECT_DOUBLE_EQ(result.all.tokens_per_s, 3);
  EXPECT_DOUBLE_EQ(result.all.slo_attainment, 0.4);
  EXPECT_DOUBLE_EQ(result.all.tpot_s.p50, 2) << "one token has no time between tokens";
  EXPECT_DOUBLE_EQ(result.all.ttft_s.p50, 1);
}

}  // namespace
}  // namespace motley
