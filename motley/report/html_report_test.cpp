#include "motley/report/html_report.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/units.hpp"
#include "motley/cost/collective/collective_price.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/train/train_price.hpp"
#include "motley/plan/collective_programs.hpp"
#include "motley/plan/example_test.hpp"
#include "motley/report/collective_report.hpp"
#include "motley/report/html_map.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/page_test.hpp"
#include "motley/report/table.hpp"
#include "motley/report/train_report.hpp"
#include "motley/sim/plans_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* hostile = "</title><script>alert('x')</script><img src=x onerror=\"y\">";

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// Well formed, nothing to load, nothing to run, whatever the plan's names.
void expect_good(const std::string& page) {
  EXPECT_EQ(nesting_error(page), "");
  for (const char* word : {"<script", "<img", "<link", "<iframe", "http:", "https:", "@import", "javascript:"})
    EXPECT_THAT(page, Not(HasSubstr(word)));
  EXPECT_EQ(count(page, "url("), count(page, "url(#fill"));
  for (std::size_t at = page.find("href=\""); at != std::string::npos; at = page.find("href=\"", at + 1))
    EXPECT_EQ(page[at + 6], '#');
  EXPECT_EQ(count(page, "<h1>"), 1u);
  EXPECT_EQ(count(page, " role=\"img\""), count(page, " role=\"img\" aria-label"));
}

ServePlan priced(ServePlan plan) {
  const ServeCost cost = price_serve(plan, {});
  plan.predicted.tokens_per_s = cost.tokens_per_s;
  plan.predicted.requests_per_s = cost.requests_per_s;
  plan.predicted.latency_s = cost.latency_s;
  plan.predicted.bottleneck_s = cost.bottleneck_s;
  return plan;
}

TEST(ServePage, HasThePlansOwnFigures) {
  const ServePlan plan = priced(box_plan());
  const std::string page = html_report(plan, {.requests = 20});
  expect_good(page);
  for (const char* part : {"id=\"cluster\"", "id=\"stages\"", "id=\"memory\"", "id=\"cost\"", "id=\"timeline\""})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, HasSubstr("llama-2-70b on motivating box"));
  EXPECT_THAT(page, HasSubstr(">" + human_seconds(plan.predicted.latency_s) + "<"));
  EXPECT_THAT(page, HasSubstr("8 of 8"));
  EXPECT_THAT(page, HasSubstr("layers per stage: 52, 18, 10"));
  EXPECT_THAT(page, HasSubstr("style=\"flex-grow:52\""));
  EXPECT_THAT(page, HasSubstr(">52</span>"));
  for (const auto& [device, tiers] : plan.predicted.memory_bytes) {
    const TierMemory& memory = tiers.device;
    EXPECT_THAT(page, HasSubstr("weights " + human_bytes(static_cast<double>(memory.weights))));
    const double share = static_cast<double>(memory.total()) / static_cast<double>(memory.limit);
    EXPECT_LT(share, 0.99);
    EXPECT_THAT(page, HasSubstr(fmt::format("<b>{}</b> {} of {}", percent(share),
                                            human_bytes(static_cast<double>(memory.total())),
                                            human_bytes(static_cast<double>(memory.limit)))))
        << device;
  }
  EXPECT_THAT(page, HasSubstr("20 simulated requests"));
}

// Heights of a stage's curve, from its path: "M0 100L0 75L1 75L1 0...".
double mean_height(const std::string& path) {
  double sum = 0, heights = 0;
  for (std::size_t at = path.find('L'); at != std::string::npos; at = path.find('L', at + 1)) {
    const auto space = path.find(' ', at);
    sum += 100 - std::stod(path.substr(space + 1));
    ++heights;
  }
  return sum / (heights - 1);  // the last goes back to the ground
}

// Without a rate the simulator offers four fifths of what the plan carries; a curve's mean is how busy its stage is.
TEST(ServePage, CurvesAreWhatTheStagesDid) {
  ServePlan plan = priced(box_plan());
  for (auto& described : plan.workload.classes) described.rate_per_s = 0;
  plan.workload.arrival = {};
  const std::string page = html_report(plan, {.requests = 200});
  EXPECT_THAT(page, HasSubstr(fmt::format("{:.3g} requests/s, 80% of the capacity of the plan",
                                          0.8 * plan.predicted.requests_per_s)));
  const std::string curve = "<path class=\"busy\" d=\"", figure = "<div class=\"figure\"><b>";
  std::size_t curves = 0;
  for (std::size_t at = page.find(curve); at != std::string::npos; at = page.find(curve, at + 1), ++curves) {
    const std::size_t from = at + curve.size(), told = page.find(figure, from) + figure.size();
    EXPECT_NEAR(mean_height(page.substr(from, page.find('"', from) - from)), std::stod(page.substr(told)), 3);
  }
  EXPECT_EQ(curves, plan.stages.size());
}

TEST(LinkRange, GoesFromTheLeastToTheMost) {
  LinkRange links;
  links.add(PathSpeed{.latency_s = 4e-3, .bandwidth_bytes_per_s = 2e9});
  links.add(PathSpeed{.latency_s = 3e-3, .bandwidth_bytes_per_s = 1e9});
  LinkRange both;
  both.add(links);
  EXPECT_EQ(both.latency(), "3.00 ms \u2013 4.00 ms");
  EXPECT_EQ(both.bandwidth(), "1.00 GB/s \u2013 2.00 GB/s");
}

TEST(ServePage, IsTheSameToTheByte) {
  const ServePlan plan = priced(garage_plan());
  const std::string page = html_report(plan, {.requests = 30, .seed = 1});
  EXPECT_EQ(page, html_report(plan, {.requests = 30, .seed = 1}));
  EXPECT_NE(page, html_report(plan, {.requests = 30, .seed = 2}));
  EXPECT_LT(page.size(), 200'000u);
}

TEST(ServePage, NamesOfThePlanStayText) {
  ServePlan plan = priced(garage_plan());
  plan.model.name = hostile;
  plan.cluster.description.name = hostile;
  plan.workload.classes[0].name = hostile;
  plan.search.planner = plan.search.objective = hostile;
  for (auto& type : plan.cluster.types) type.name = hostile;
  for (auto& machine : plan.cluster.machines) machine.site = machine.name = hostile;
  for (auto& stage : plan.stages) stage.id = hostile + stage.id;
  for (auto& hop : plan.routes[0].path) hop.stage = hostile + hop.stage;
  plan.routes[0].id = hostile;
  const std::string page = html_report(plan, {.requests = 10});
  expect_good(page);
  EXPECT_GT(count(page, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"), 20u);
}

TEST(ServePage, SaysWhatStaysIdleAndWhy) {
  ServePlan plan = priced(box_plan());
  plan.unused = {{"box/6", "too <small>"}, {"box/7", "too <small>"}};
  plan.stages[2].devices = {"box/5"};
  plan.stages[1].devices = {"box/4"};
  const std::string page = html_report(plan, {.requests = 5});
  EXPECT_THAT(page, HasSubstr("<b>2</b>: box/6-7<span class=\"note\">too &lt;small&gt;</span>"));
  EXPECT_EQ(count(page, "<i class=\"idle\""), 2u);
  EXPECT_THAT(page, HasSubstr("6 of 8"));
}

// Places that the plan does not use need no link.
TEST(ServePage, LinksThatNobodyDescribedAreLeftOut) {
  ServePlan plan = priced(garage_plan());
  plan.cluster = cluster_of(R"(format = "motley.cluster/1"
name = "three sites"
[[machine]]
name = "bench"
site = "a"
devices = ["A6000*2"]
[[machine]]
name = "shelf"
site = "b"
devices = ["A6000*3"]
[[machine]]
name = "laptop"
site = "c"
devices = ["A6000"]
[[link]]
between = ["a", "b"]
latency = "3 ms"
bandwidth = "1 GB/s"
[[link]]
between = ["b", "c"]
latency = "4 ms"
bandwidth = "2 GB/s")");
  const std::string page = html_report(plan, {.requests = 5});
  expect_good(page);
  EXPECT_EQ(count(page, "<line class=\"link used\""), 2u);
  EXPECT_EQ(count(page, "<line class=\"link\""), 0u);
  EXPECT_THAT(page, HasSubstr("a to b: 3.00 ms, 1.00 GB/s, used between stages; b to c: 4.00 ms, 2.00 GB/s"));
}

// From a device to one after it links are slower than back: stages hand over by the slow way, the map tells both.
TEST(ServePage, LinksHaveTwoWays) {
  ServePlan plan = priced(garage_plan());
  NetworkMatrix matrix;
  const std::size_t devices = plan.cluster.devices.size();
  for (std::size_t from = 0; from < devices; ++from) {
    matrix.latency_s.emplace_back(devices, 1e-3);
    matrix.bandwidth_bytes_per_s.emplace_back();
    for (std::size_t to = 0; to < devices; ++to) matrix.bandwidth_bytes_per_s.back().push_back(from < to ? 1e9 : 3e9);
  }
  ClusterDescription description = plan.cluster.description;
  description.network.matrix = matrix;
  plan.cluster = resolve(description, "test");
  const std::string page = html_report(plan, {.requests = 5});
  EXPECT_EQ(count(page, "\u2193 1.00 ms, 1.00 GB/s"), 2u);
  EXPECT_THAT(page, HasSubstr("bench to shelf: 1.00 ms, 1.00 GB/s \u2013 3.00 GB/s, used between stages"));
}

TEST(ServePage, RoutesThatShareStagesAreDrawnOverTheLayers) {
  ServePlan plan = timed_plan({{.tokens_per_s = 300, .layers = {0, 4}},
                               {.tokens_per_s = 400, .layers = {4, 8}},
                               {.tokens_per_s = 400, .layers = {4, 8}}},
                              {{0, 1}, {0, 2}});
  const std::string page = html_report(plan, {.requests = 5});
  expect_good(page);
  EXPECT_THAT(page, HasSubstr("Routes share stages"));
  EXPECT_THAT(page, HasSubstr("x=\"50%\" width=\"50%\"><title>s2: layers 4-7"));
  EXPECT_THAT(page, HasSubstr("s0 \u203a s2"));
}

TEST(ServePage, ATimelineThatCannotBeSaysWhy) {
  ServePlan plan = priced(box_plan());
  plan.workload.arrival = {.process = ArrivalProcess::trace, .file = "gone.csv"};
  const std::string page = html_report(plan, {});
  expect_good(page);
  EXPECT_THAT(page, HasSubstr("Not simulated: "));
  EXPECT_THAT(page, HasSubstr("gone.csv"));
}

// A hundred machines of eight devices, two stages to a machine.
TEST(ServePage, ManyAlikeDevicesStayReadable) {
  ServePlan plan = box_plan();
  plan.cluster = cluster_of(R"(format = "motley.cluster/1"
name = "hall"
[[machine]]
name = "node"
count = 100
devices = ["A100-80*8"])");
  const Stage first = plan.stages[0], last = plan.stages[2];
  plan.stages.clear();
  plan.routes.clear();
  plan.predicted.memory_bytes.clear();
  for (int machine = 0; machine < 100; ++machine) {
    const auto add = [&](const Stage& like, int stage, LayerRange layers) {
      Stage& made = plan.stages.emplace_back(like);
      made.id = fmt::format("r{}/s{}", machine, stage);
      made.layers = layers;
      made.devices.clear();
      for (int slot = 0; slot < 4; ++slot) made.devices.push_back(fmt::format("node-{}/{}", machine, 4 * stage + slot));
    };
    add(first, 0, {0, 40});
    add(last, 1, {40, 80});
    plan.routes.push_back(
        {.id = fmt::format("r{}", machine),
         .path = {{fmt::format("r{}/s0", machine), {0, 40}}, {fmt::format("r{}/s1", machine), {40, 80}}}});
  }
  predict_memory(plan);
  const std::string page = html_report(plan, {.requests = 50});
  expect_good(page);
  EXPECT_LT(page.size(), 1'500'000u);
  EXPECT_EQ(count(page, "class=\"card machine\""), 1u);
  EXPECT_THAT(page, HasSubstr("100 machines"));
  EXPECT_EQ(count(page, "class=\"card pipeline\""), 1u);
  EXPECT_THAT(page, HasSubstr("r0 and 99 equal ones"));
  EXPECT_THAT(page, HasSubstr("400 \u00d7 A100-80"));
}

TrainPlan train_plan() {
  TrainPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/opt-125m");
  plan.cluster = cluster_of(R"(format = "motley.cluster/1"
name = "desk"
[[machine]]
name = "box"
devices = ["RTX 3090*2", "RTX 4090"])");
  plan.workload.training = Training{.sequence_length = 1024, .global_batch = 12, .states = {}};
  plan.replicas = {
      {.share = 1,
       .micro_batches = 6,
       .stages = {{.layers = {0, 7},
                   .devices = {"box/0", "box/1"},
                   .strategies = {{.layers = {0, 3}, .tp = 2}, {.layers = {3, 7}, .tp = 2, .recompute = true}}},
                  {.layers = {7, 12}, .devices = {"box/2"}, .strategies = {{.layers = {7, 12}}}}}}};
  for (std::size_t s = 0; s < 2; ++s) {
    const auto memory = stage_memory(plan, plan.replicas[0], s);
    for (std::size_t i = 0; i < memory.size(); ++i)
      plan.predicted.memory_bytes[plan.replicas[0].stages[s].devices[i]] = memory[i];
  }
  plan.predicted.iteration_s = price_step(plan, {}).iteration_s;
  return plan;
}

TEST(TrainPage, DrawsEveryPassOfAStep) {
  const TrainPlan plan = train_plan();
  const std::string page = html_report(plan);
  expect_good(page);
  EXPECT_THAT(page, HasSubstr("opt-125m on desk"));
  EXPECT_THAT(page, HasSubstr(">" + human_seconds(plan.predicted.iteration_s) + "<"));
  EXPECT_THAT(page, HasSubstr("0-2 tp 2 dp 1, 3-6 tp 2 dp 1 recompute"));
  EXPECT_THAT(page, HasSubstr("optimizer"));
  const auto passes = [](const std::string& of, const std::string& kind) {
    std::size_t found = 0;
    const std::string begin = fmt::format("\"pass {}\" d=\"", kind);
    for (std::size_t at = of.find(begin); at != std::string::npos; at = of.find(begin, at + 1))
      found += count(of.substr(at, of.find("\"></path>", at) - at), "M");
    return found;
  };
  EXPECT_EQ(passes(page, "forward"), 2u * 6);  // stages, micro-batches
  EXPECT_EQ(passes(page, "backward"), 2u * 6);
  EXPECT_EQ(passes(page, "weights"), 0u);
  EXPECT_THAT(page, Not(HasSubstr("that have waited")));
  EXPECT_EQ(page, html_report(plan));

  TrainPlan waits = plan;
  waits.schedule = PipelineSchedule::zb_h1;
  const std::string other = html_report(waits);
  EXPECT_EQ(passes(other, "backward"), 2u * 6);
  EXPECT_EQ(passes(other, "weights"), 6u);  // of the second stage
  EXPECT_THAT(other, HasSubstr("that have waited"));
}

// Two replicas of one stage each, the first on the slower device.
TEST(TrainPage, TheSlowestReplicaComesFirstAndSyncLast) {
  TrainPlan plan = train_plan();
  plan.replicas = {
      {.share = 0.5,
       .micro_batches = 6,
       .stages = {{.layers = {0, 12}, .devices = {"box/2"}, .strategies = {{.layers = {0, 12}}}}}},
      {.share = 0.5,
       .micro_batches = 6,
       .stages = {{.layers = {0, 12}, .devices = {"box/0"}, .strategies = {{.layers = {0, 12}, .split = 2}}}}}};
  const TrainStepPrice price = price_step(plan, {.form = "motley"});
  ASSERT_GT(price.pipelines[1].makespan_s, price.pipelines[0].makespan_s);
  ASSERT_GT(price.exchange_s, 2 * price.update_s);
  const std::string page = html_report(plan);
  EXPECT_THAT(page, HasSubstr("Replica 1 is the slowest of 2."));
  EXPECT_THAT(page, HasSubstr("tp 1 dp 1 split 2"));
  const double end = 1 - price.update_s / price.iteration_s;
  const std::string gradients = mark("m1", end - price.exchange_s / price.iteration_s, end).markup();
  EXPECT_THAT(page, HasSubstr(gradients.substr(0, gradients.find('>'))));
  const std::string report = train_step_report(plan, price);
  EXPECT_THAT(report, HasSubstr(percent(price.pipelines[0].busy_s[0] / price.iteration_s)));
}

TEST(RentPage, ShowsSharesOfCostAndOfClasses) {
  RentPlan plan;
  plan.offers = read<Offers>(parse_json(R"({"format": "motley.offers/1",
    "classes": [{"name": "first", "share": 0.8}, {"name": "</div><script>", "share": 0.2}],
    "types": {"t1": {"price_usd_per_hour": 6, "available": 2}, "t2": {"price_usd_per_hour": 1}},
    "configurations": [{"name": "c1", "devices": {"t1": 1}, "rate_per_s": [1.0, 1.2]},
                       {"name": "c4", "devices": {"t2": 2}, "rate_per_s": [2.4, 1.5]}]})",
                                        "offers"),
                             "offers");
  plan.goal.budget_usd_per_hour = 9;
  plan.fleet = {{"c1", {{"t1", 1}}, 1, 6}, {"c4", {{"t2", 2}}, 1, 2}};
  plan.assignment = {{"first", {{"c1", 0.25}, {"c4", 0.75}}}, {"</div><script>", {{"c1", 1}}}};
  plan.predicted.throughput_per_s = 3;
  plan.predicted.cost_usd_per_hour = 8;
  plan.predicted.homogeneous = {{"t1", 1.5, 6.0}};
  const std::string page = html_report(plan);
  expect_good(page);
  EXPECT_THAT(page, HasSubstr("c1: 6.00 $/h, 75% of the cost"));
  EXPECT_THAT(page, HasSubstr("<rect class=\"fill c1\" x=\"75%\" width=\"25%\"><title>c4: 2.00 $/h, 25% of the cost"));
  EXPECT_THAT(page, HasSubstr("<rect class=\"fill c1\" x=\"25%\" width=\"75%\"><title>c4 75.0%"));
  EXPECT_THAT(page, HasSubstr("of a budget of 9.00 $/h"));
  EXPECT_THAT(page, HasSubstr("1.5 requests/s; 6 requests/s with unlimited devices"));
  EXPECT_THAT(page, HasSubstr("<rect class=\"fill c0\" x=\"0%\" width=\"50%\">"));  // 3 of 6 requests/s
}

TEST(ChainPage, ShowsTheChoiceItsMemoryAndTheFront) {
  ChainPlan plan;
  plan.chain = read<ChainDescription>(parse_json(R"({"format": "motley.chain/1", "name": "<b>", "budget_bytes": 10,
    "sites": [{"name": "layer", "repeat": 3, "options": [{"name": "fast", "time_s": 1, "bytes": 4, "layout": "a"},
                                                         {"name": "thin", "time_s": 2, "bytes": 3, "layout": "b"}]}],
    "layouts": ["a", "b"], "layout_change_s": [[0, 0.3], [0.3, 0]]})",
                                                 "chain"),
                                      "chain");
  plan.choice = {0, 1, 1};
  plan.front = {{6, 9}, {5.3, 10}, {3, 12}};
  const std::string page = html_report(plan);
  expect_good(page);
  EXPECT_THAT(page, HasSubstr("2 of layer take thin: 4.00 s, 6 B"));
  EXPECT_THAT(page, HasSubstr(">5.30 s<"));
  EXPECT_THAT(page, HasSubstr("10 B kept, 0 B transient, of 10 B"));
  EXPECT_EQ(count(page, "<circle"), 3u + 1);
  EXPECT_THAT(page, HasSubstr("class=\"chosen\""));
  EXPECT_THAT(page, HasSubstr("layout changes: 300 ms, 6%"));
}

// Direct exchange of 4000 bytes in five chunks: everybody sends a quarter to each of the others, and again the sum.
TEST(CollectivePage, ShowsWhatRanksSendToEachOther) {
  CollectivePlan plan;
  plan.cluster = cluster_of(R"(format = "motley.cluster/1"
name = "<b>rack"
[[machine]]
name = "node"
count = 4
devices = ["A6000"])");
  plan.program = direct_program({.ranks = 4, .bytes = 4000, .chunks = 5, .alignment = 4}, {});
  plan.program.layout = "direct";
  plan.predicted = price_collective(plan).predicted;
  for (const auto& moved : rank_traffic(plan.program)) EXPECT_EQ(moved, (RankTraffic{6000, 6000, 3000, 5 * 12}));
  const auto bytes = pair_bytes(plan.program);
  for (std::size_t from = 0; from < 4; ++from)
    for (std::size_t to = 0; to < 4; ++to) EXPECT_EQ(bytes[from][to], from == to ? 0 : 2000);

  const std::string page = html_report(plan);
  expect_good(page);
  EXPECT_THAT(page, HasSubstr("all_reduce on &lt;b&gt;rack"));
  EXPECT_THAT(page, HasSubstr("<b>rank 3</b>"));
  EXPECT_THAT(page, HasSubstr("sends 5.86 KiB"));
  EXPECT_THAT(page, HasSubstr("receives 5.86 KiB, of which it adds 2.93 KiB"));
  EXPECT_EQ(count(page, "<rect class=\"pair\""), 12u);
  EXPECT_THAT(page, HasSubstr("node-0/0 to node-3/0: 1.95 KiB"));
  EXPECT_THAT(page, HasSubstr(">" + human_seconds(plan.predicted.limit_s) + "<"));
}

}  // namespace
}  // namespace motley
