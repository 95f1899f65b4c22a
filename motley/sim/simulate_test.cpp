#include "motley/sim/simulate.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "motley/sim/plans_test.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

std::int64_t emitted_tokens(const SimResult& result) {
  std::int64_t sum = 0;
  for (const RequestRecord& record : result.records) sum += record.emitted;
  return sum;
}

// ---- KV room ----

TEST(KvRoom, IsNeverExceededAndPreemptionsAreCounted) {
  // Five prompts of 64 tokens fit with their first tokens, and not with their last.
  ServePlan plan = timed_plan({{.tokens_per_s = 1000, .kv_tokens = 480}}, {{0}});
  const SimResult result = simulate(plan, regular(40, 0, 64, 100), {.record = Record::timeline});
  EXPECT_EQ(result.all.finished, 40);
  EXPECT_EQ(emitted_tokens(result), 4000);
  EXPECT_GT(result.preemptions, 0);
  EXPECT_LE(result.queues[0].kv_peak, 1);
  EXPECT_GT(result.queues[0].kv_peak, 0.9);
  for (const Timeline::Sample& sample : result.timeline->samples) EXPECT_LE(sample.kv_blocks, 30);
  // What was recomputed is work that a larger cache saves.
  plan.stages[0].kv_tokens = 100'000;
  const SimResult ample = simulate(plan, regular(40, 0, 64, 100), {});
  EXPECT_EQ(ample.preemptions, 0);
  const auto work = [](const SimResult& r) {
    return static_cast<double>(r.stages[0].steps) * r.stages[0].tokens_per_step;
  };
  EXPECT_NEAR(work(ample), 40 * (64 + 99), 0.5);
  EXPECT_GT(work(result), work(ample) + 64);
}

TEST(KvRoom, OutputsAreCutToItAndPromptsWithoutItAreRefused) {
  const ServePlan plan = timed_plan({{.tokens_per_s = 1000, .kv_tokens = 96}}, {{0}});
  const SimResult result = simulate(plan, {{0, 90, 50, "chat"}, {1, 96, 1, "chat"}}, {});
  EXPECT_EQ(result.records[0].output_tokens, 6);
  EXPECT_TRUE(result.records[0].finished());
  EXPECT_TRUE(result.records[1].refused);
  EXPECT_EQ(result.all.slo_attainment, 0.5);
}

// ---- prefixes ----

// A second for 1,000 tokens: the first prompt is computed, of each later one 128 tokens.
TEST(Prefixes, AreComputedOnce) {
  ServePlan plan = timed_plan({{.tokens_per_s = 1000}}, {{0}});
  plan.step.max_tokens = 1024;
  plan.workload.classes[0].cached_share = 0.8;
  const SimResult result = simulate(plan, regular(10, 1, 640, 2), {});
  EXPECT_NEAR(result.records[0].ttft_s(), 0.64, tick);
  for (std::size_t i = 1; i < 10; ++i) EXPECT_NEAR(result.records[i].ttft_s(), 0.128, tick);
  EXPECT_NEAR(result.cached_share, 0.9 * 0.8, 1e-12);
}

// Two alike routes: what the first request has left draws the others after it, as long as no queue outweighs it.
TEST(Prefixes, DrawRequestsToTheirRoute) {
  ServePlan plan = timed_plan({{.tokens_per_s = 1000}, {.tokens_per_s = 1000}}, {{0}, {1}});
  plan.step.max_tokens = 1024;
  plan.workload = workload_of(640, 2);
  plan.workload.classes[0].cached_share = 0.8;
  const SimResult alone = simulate(plan, regular(10, 1, 640, 2), {});
  EXPECT_EQ(alone.stages[1].steps, 0);
  const SimResult at_once = simulate(plan, regular(40, 0, 640, 2), {});
  EXPECT_GT(at_once.stages[1].steps, 0);
}

// ---- faults ----

// Two alike routes of one stage.
ServePlan two_routes() {
  ServePlan plan = timed_plan({{.tokens_per_s = 100}, {.tokens_per_s = 100}}, {{0}, {1}});
  plan.step.max_tokens = 32;
  return plan;
}

TEST(Faults, RequestsGoOnElsewhereWithTheirTokensAsPrompt) {
  // Two requests of 32 + 20 tokens, one per route; the second one's device leaves between two tokens.
  const SimResult result = simulate(two_routes(), regular(2, 0, 32, 20), {.faults = {{"m1/0", 0.405}}});
  EXPECT_EQ(result.restarts, 1);
  EXPECT_EQ(result.all.finished, 2);
  EXPECT_EQ(emitted_tokens(result), 40);
  const RequestRecord& moved = result.records[1];
  EXPECT_NEAR(moved.first_token_s, 0.32, tick);
  // Nine tokens were out. 41 are recomputed on s0 together with the other's decodes, after the step under way.
  EXPECT_GT(moved.last_token_s, 0.41 + 0.41 + 0.10);
  EXPECT_LT(moved.last_token_s, 0.41 + 0.41 + 0.2 + 0.1);
  EXPECT_EQ(result.stages[1].steps, 1 + 9);  // the last one was lost
}

TEST(Faults, WithoutAnotherRouteRequestsWaitUntilItIsBack) {
  const ServePlan plan = timed_plan({{.tokens_per_s = 100}}, {{0}});
  const std::vector<TraceRequest> requests = regular(1, 0, 32, 20);
  const SimResult back = simulate(plan, requests, {.faults = {{"m0/0", 0.405, 5}}});
  EXPECT_EQ(back.restarts, 1);
  EXPECT_EQ(back.all.finished, 1);
  EXPECT_NEAR(back.records[0].last_token_s, 5 + 0.41 + 0.10, tick);  // with 32 + 9 tokens again, then 10 more
  const SimResult gone = simulate(plan, requests, {.faults = {{"m0/0", 0.405}}});
  EXPECT_EQ(gone.all.unfinished, 1);
  EXPECT_EQ(gone.all.slo_attainment, 0);
  EXPECT_EQ(gone.records[0].emitted, 9);
}

TEST(Faults, ARouteThatIsBackTakesRequestsAgain) {
  const SimResult result =
      simulate(two_routes(), regular(200, 0.2, 32, 1), {.faults = {{"m1/0", 10, 20}}, .record = Record::timeline});
  EXPECT_EQ(result.all.finished, 200);
  std::int64_t before = 0, after = 0;
  for (const Timeline::Span& span : result.timeline->spans) {
    if (span.track != 1) continue;
    EXPECT_TRUE(span.start_s < 10 || span.start_s >= 20);
    ++(span.start_s < 10 ? before : after);
  }
  EXPECT_NEAR(static_cast<double>(before), 25, 2);  // half of those that came
  EXPECT_GT(after, 50);
  ASSERT_EQ(result.timeline->marks.size(), 2u);
  EXPECT_EQ(result.timeline->marks[0].what, "m1/0 leaves");
  EXPECT_EQ(result.timeline->marks[1].time_s, 20);
}

TEST(Faults, AStageOfManyRoutesTakesThemAllDown) {
  ServePlan plan = timed_plan({{.tokens_per_s = 200, .layers = {0, 4}},
                               {.tokens_per_s = 200, .layers = {0, 4}},
                               {.tokens_per_s = 300, .layers = {4, 8}},
                               {.tokens_per_s = 300, .layers = {4, 8}}},
                              {{0, 2}, {1, 2}, {1, 3}}, 0.001, 1e6);
  plan.step.max_tokens = 16;
  const SimResult result =
      simulate(plan, regular(60, 0.05, 16, 8), {.faults = {{"m2/0", 1.0004, 4}, {"m0/0", 2.0003, 3}}});
  EXPECT_EQ(result.all.finished, 60);
  EXPECT_GT(result.restarts, 0);
  EXPECT_EQ(emitted_tokens(result), 60 * 8);
}

TEST(Faults, OnesThatCannotBeAreRefused) {
  EXPECT_THROW(simulate(two_routes(), {}, {.faults = {{"m7/0", 1}}}), Error);
  EXPECT_THROW(simulate(two_routes(), {}, {.faults = {{"m1/0", 5, 5}}}), Error);
  EXPECT_THROW(simulate(two_routes(), {}, {.faults = {{"m1/0", -1}}}), Error);
}

// ---- roles ----

// s0 prefills (layers 0-7), s1 and s2 decode (0-4, 4-8); 10 ms and 1 MB/s between any two.
ServePlan split_plan() {
  ServePlan plan = timed_plan({{.tokens_per_s = 1000, .role = StageRole::prefill},
                               {.tokens_per_s = 100, .layers = {0, 4}, .role = StageRole::decode},
                               {.tokens_per_s = 100, .layers = {4, 8}, .role = StageRole::decode}},
                              {{0, 1, 2}}, 0.01, 1e6);
  return plan;
}

TEST(Roles, KeysAndValuesMoveFromPrefillToDecode) {
  const SimResult result = simulate(split_plan(), regular(1, 0, 100, 4), {.record = Record::timeline});
  const RequestRecord& record = result.records[0];
  EXPECT_NEAR(record.first_token_s, 0.1, tick);
  // 100 tokens x 4 layers x 2 x 4 heads x 16 x 2 bytes to each of the two, over links of their own.
  const double transfer_s = 0.01 + 100.0 * 4 * 256 / 1e6;
  const double per_token_s = 0.01 + 0.01 + (0.01 + 128 / 1e6) + (0.01 + 8 / 1e6);
  EXPECT_NEAR(record.last_token_s, 0.1 + transfer_s + 3 * per_token_s, tick);
  EXPECT_EQ(result.stages[0].steps, 1);
  EXPECT_EQ(result.stages[1].steps, 3);
  EXPECT_EQ(result.queues.size(), 2u);
  EXPECT_EQ(result.queues[0].routes, std::vector<std::string>{"r0 prefill"});
  EXPECT_EQ(result.queues[1].routes, std::vector<std::string>{"r0 decode"});
  EXPECT_EQ(std::ranges::count(result.timeline->spans, 0u, &Timeline::Span::step), 2);
}

TEST(Roles, PromptsDoNotHoldUpDecodes) {
  const ServePlan split = split_plan();
  const SimResult result = simulate(split, regular(50, 0.25, 200, 10), {});
  EXPECT_EQ(result.all.finished, 50);
  EXPECT_EQ(emitted_tokens(result), 500);
  EXPECT_NEAR(result.stages[0].use, 50 * 0.2 / result.measured_s, 0.001);
  const SimResult one_token = simulate(split, regular(5, 0.25, 200, 1), {});
  EXPECT_EQ(one_token.all.finished, 5);
  EXPECT_EQ(one_token.stages[1].steps, 0);
}

TEST(Roles, AFaultOnEitherSideStartsAnew) {
  const std::vector<TraceRequest> requests = regular(1, 0, 100, 4);
  for (const auto& [device, leaves_s] : {std::pair("m0/0", 0.05), {"m0/0", 0.15}, {"m2/0", 0.15}, {"m1/0", 0.3}}) {
    const SimResult result = simulate(split_plan(), requests, {.faults = {{device, leaves_s, 1}}});
    EXPECT_EQ(result.restarts, 1) << device << leaves_s;
    EXPECT_EQ(result.all.finished, 1) << device << leaves_s;
    EXPECT_EQ(emitted_tokens(result), 4);
    EXPECT_GT(result.records[0].last_token_s, 1.1);
  }
}

// ---- the whole ----

ServePlan shared_plan() {
  ServePlan plan = timed_plan({{.tokens_per_s = 300, .layers = {0, 4}, .kv_tokens = 2000},
                               {.tokens_per_s = 500, .layers = {0, 4}, .kv_tokens = 3000},
                               {.tokens_per_s = 600, .layers = {4, 8}, .kv_tokens = 2500},
                               {.tokens_per_s = 200, .kv_tokens = 1500}},
                              {{0, 2}, {1, 2}, {3}}, 0.002, 1e6);
  plan.step.max_tokens = 64;
  plan.routes[1].weight = 2;
  plan.workload.classes[0].rate_per_s = 3;
  plan.workload.classes[0].prompt_tokens = {.mean = 80, .p50 = 50, .p99 = 0, .trace = ""};
  plan.workload.classes[0].output_tokens = {.mean = 30, .p50 = 20, .p99 = 0, .trace = ""};
  return plan;
}

TEST(Simulate, TheSameAgainIsTheSameToTheBit) {
  const ServePlan plan = shared_plan();
  const auto play = [&](std::uint64_t seed) {
    return simulate(plan, draw_requests(plan.workload, {.requests = 300, .seed = seed}),
                    {.faults = {{"m0/0", 20.5, 30}}})
        .records;
  };
  const auto same = [](const RequestRecord& a, const RequestRecord& b) {
    return a.arrival_s == b.arrival_s && a.first_token_s == b.first_token_s && a.last_token_s == b.last_token_s;
  };
  EXPECT_TRUE(std::ranges::equal(play(3), play(3), same));
  EXPECT_FALSE(std::ranges::equal(play(3), play(4), same));
}

TEST(Simulate, OnlyTheMeasuredTimeIsJudged) {
  const SimResult result = simulate(timed_plan({{.tokens_per_s = 64}}, {{0}}), regular(100, 1, 32, 1),
                                    {.measure_from_s = 10, .measure_until_s = 30});
  EXPECT_EQ(result.all.requests, 20);
  EXPECT_EQ(result.measured_s, 20);
  EXPECT_NEAR(result.all.tokens_per_s, 1, tick);
  EXPECT_NEAR(result.stages[0].use, 0.5, tick);
  EXPECT_EQ(result.records.size(), 100u);
}

TEST(Simulate, WhatIsOpenAtTheEndIsUnfinished) {
  const SimResult result = simulate(timed_plan({{.tokens_per_s = 64}}, {{0}}), regular(10, 1, 32, 1), {.stop_s = 4.25});
  EXPECT_EQ(result.all.requests, 10);
  EXPECT_EQ(result.all.finished, 4);
  EXPECT_EQ(result.all.unfinished, 6);
  EXPECT_EQ(result.measured_s, 4.25);
  EXPECT_NEAR(result.stages[0].use, 2.25 / 4.25, tick);
}

TEST(Simulate, ProgressIsTold) {
  std::vector<double> shares;
  simulate(timed_plan({{.tokens_per_s = 1e4}}, {{0}}), regular(20'000, 0.01, 32, 1),
           {.progress = [&](double share) { shares.push_back(share); }});
  EXPECT_GE(shares.size(), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(shares));
  EXPECT_LE(shares.back(), 1);
}

TEST(Simulate, RequestsThatMakeNoSenseAreRefused) {
  const ServePlan plan = timed_plan({{.tokens_per_s = 64}}, {{0}});
  EXPECT_THROW(simulate(plan, {{1, 5, 5, "chat"}, {0, 5, 5, "chat"}}, {}), Error);
  EXPECT_THROW(simulate(plan, {{0, 0, 5, "chat"}}, {}), Error);
  EXPECT_THROW(simulate(plan, {{0, 5, 0, "chat"}}, {}), Error);
  EXPECT_EQ(simulate(plan, {}, {}).all.requests, 0);
}

TEST(Simulate, AStageBeyondItsProfileIsRefused) {
  ServePlan plan = timed_plan({{.tokens_per_s = 64}}, {{0}});
  plan.profile.layer_rate[0].tokens_per_s.resize(5);
  EXPECT_THROW(simulate(plan, {}, {}), Error);
}

// Whatever the load and the faults: nothing does two things at once, every step passes its stages in order, and every
// request gets exactly its tokens.
RC_GTEST_PROP(Timelines, AreSound, ()) {
  const ServePlan plan = shared_plan();
  const double scale = *rc::gen::element(0.3, 1.0, 4.0);
  const auto seed = static_cast<std::uint64_t>(*rc::gen::inRange(0, 1000));
  SimOptions options{.record = Record::timeline};
  if (*rc::gen::arbitrary<bool>())
    options.faults = {{"m1/0", 0.1 * *rc::gen::inRange(0, 300) + 0.00017, 40}, {"m3/0", 10.00013, 20}};
  const SimResult result =
      simulate(plan, draw_requests(plan.workload, {.requests = 80, .rate_scale = scale, .seed = seed}), options);

  for (const RequestRecord& record : result.records) {
    RC_ASSERT(record.refused || record.emitted == record.output_tokens);
    RC_ASSERT(record.refused || record.first_token_s > record.arrival_s);
  }
  std::map<std::uint32_t, double> free_s;  // by track
  std::map<std::uint64_t, std::vector<Timeline::Span>> steps;
  for (const Timeline::Span& span : result.timeline->spans) {
    RC_ASSERT(span.start_s >= free_s[span.track]);
    free_s[span.track] = span.start_s + span.duration_s;
    steps[span.step].push_back(span);
  }
  for (const auto& [step, spans] : steps) {
    for (std::size_t i = 1; i < spans.size(); ++i)
      RC_ASSERT(spans[i].start_s >= spans[i - 1].start_s + spans[i - 1].duration_s - tick);
    if (options.faults.empty()) RC_ASSERT(spans.size() == 1u || spans.size() == 3u);
  }
  RC_ASSERT(result.queues[0].kv_peak <= 1 && result.queues[1].kv_peak <= 1);
}

}  // namespace
}  // namespace motley
