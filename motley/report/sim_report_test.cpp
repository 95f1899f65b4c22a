#include "motley/report/sim_report.hpp"

#include <gtest/gtest.h>

#include <map>

#include "motley/sim/plans_test.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

SimResult result_of(std::uint64_t seed) {
  ServePlan plan = timed_plan({{.tokens_per_s = 300, .layers = {0, 4}}, {.tokens_per_s = 400, .layers = {4, 8}}},
                              {{0, 1}}, 0.002, 1e6);
  plan.workload.classes[0].rate_per_s = 6;
  plan.workload.classes[0].prompt_tokens.mean = 40;
  plan.workload.classes[0].output_tokens.mean = 10;
  return simulate(plan, draw_requests(plan.workload, {.requests = 60, .seed = seed}),
                  {.faults = {{"m1/0", 4.003, 6}}, .record = Record::timeline});
}

TEST(SimReport, JsonHasTheKeysThatScriptsReadAndIsTheSameToTheByte) {
  const Value json = sim_json(result_of(1));
  EXPECT_EQ(json.find("requests")->as_integer(), 60);
  EXPECT_EQ(json.find("slo_attainment")->as_number(), 1);
  for (const char* key : {"ttft_s", "tpot_s", "latency_s"}) {
    double last = 0;
    for (const char* share : {"p50", "p90", "p99"}) {
      EXPECT_GE(json.find(key)->find(share)->as_number(), last) << key;
      last = json.find(key)->find(share)->as_number();
    }
    EXPECT_GT(last, 0) << key;
  }
  EXPECT_GT(json.find("tokens_per_s")->as_number(), 10);
  ASSERT_EQ(json.find("stages")->as_array().size(), 2u);
  EXPECT_EQ(json.find("stages")->as_array()[1].find("id")->as_string(), "s1");
  EXPECT_GT(json.find("stages")->as_array()[1].find("use")->as_number(), 0);
  EXPECT_EQ(json.find("classes")->as_array()[0].find("name")->as_string(), "chat");
  EXPECT_EQ(to_json(json), to_json(sim_json(result_of(1))));
  EXPECT_NE(to_json(json), to_json(sim_json(result_of(2))));
}

TEST(SimReport, TablesTellClassesStagesAndTroubles) {
  const std::string text = sim_report(result_of(1));
  for (const char* word : {"60 requests", "chat", "s0", "s1", "m0 > m1", "r0", "after a fault"})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
}

TEST(ChromeTrace, HasATrackPerStageAndLinkAndCountersPerQueue) {
  const SimResult result = result_of(1);
  const std::string text = chrome_trace(*result.timeline);
  EXPECT_EQ(text, chrome_trace(*result_of(1).timeline));
  const Value trace = parse_json(text, "trace");
  std::map<std::string, std::size_t> phases;
  std::map<std::int64_t, std::string> tracks;
  std::map<std::string, std::int64_t> processes;  // of a track
  std::map<std::int64_t, double> free_us;
  for (const Value& event : trace.find("traceEvents")->as_array()) {
    const std::string& phase = event.find("ph")->as_string();
    ++phases[phase];
    if (phase == "M" && event.find("name")->as_string() == "thread_name")
      processes[tracks[event.find("tid")->as_integer()] = event.find("args")->find("name")->as_string()] =
          event.find("pid")->as_integer();
    if (phase != "X") continue;
    const std::int64_t track = event.find("tid")->as_integer();
    ASSERT_TRUE(tracks.contains(track));
    const double start_us = event.find("ts")->as_number();
    EXPECT_GE(start_us, free_us[track] - 0.002);
    free_us[track] = start_us + event.find("dur")->as_number();
  }
  EXPECT_EQ(tracks, (std::map<std::int64_t, std::string>{{1, "s0"}, {2, "s1"}, {3, "m0 > m1"}}));
  EXPECT_EQ(processes, (std::map<std::string, std::int64_t>{{"s0", 1}, {"s1", 1}, {"m0 > m1", 2}}));
  EXPECT_EQ(phases["X"], result.timeline->spans.size());
  EXPECT_EQ(phases["C"], result.timeline->samples.size());
  EXPECT_EQ(phases["i"], 2u);
  EXPECT_GT(phases["C"], 100u);
}

TEST(ChromeTrace, NothingHappenedIsATraceToo) {
  EXPECT_EQ(parse_json(chrome_trace({}), "trace").find("traceEvents")->as_array().size(), 3u);
}

}  // namespace
}  // namespace motley
