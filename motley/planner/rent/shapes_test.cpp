// Configurations from the cost model, held against the price of the same pipeline as a plan.
#include "motley/planner/rent/shapes.hpp"
#include "motley/base/clock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "motley/base/error.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/rent/rent_fleet.hpp"

namespace motley {
namespace {

Offers market_of(std::map<std::string, OfferType> types) {
  Offers market;
  market.types = std::move(types);
  return market;
}

Workload workload_of(std::vector<RequestClass> classes) {
  Workload workload;
  workload.classes = std::move(classes);
  return workload;
}

RequestClass request(std::string name, double rate, double prompt, double output, Deadline deadline = {}) {
  RequestClass one;
  one.name = std::move(name);
  one.rate_per_s = rate;
  one.prompt_tokens.mean = prompt;
  one.output_tokens.mean = output;
  one.deadline = deadline;
  return one;
}

// The configuration as a serving plan on its own machines.
ServePlan as_plan(const Offers& market, const Model& model, const RequestClass& one, const Configuration& shape,
                  const ModelRentOptions& options) {
  RentPlan rented;
  rented.offers = market;
  rented.offers.configurations = {shape};
  rented.fleet = {{shape.name, shape.devices, 1, 0}};
  ServePlan plan;
  plan.model = model;
  plan.cluster = resolve(rented_cluster(rented), "test");
  plan.workload.classes = {one};
  plan.step = options.step;
  std::vector<int> next(plan.cluster.machines.size(), 0);  // slot
  std::int64_t first = 0;
  Route route{.id = "r0", .path = {}};
  for (const auto& layout : shape.stages) {
    Stage stage;
    stage.id = "s" + std::to_string(plan.stages.size());
    stage.layers = {first, first + layout.layers};
    first = stage.layers.end;
    for (std::size_t m = 0; m < plan.cluster.machines.size() && stage.devices.empty(); ++m) {
      const Machine& machine = plan.cluster.machines[m];
      const bool right = plan.cluster.type_of(machine.devices[0]).name == layout.device_type;
      if (!right || next[m] + layout.degree > static_cast<std::int64_t>(machine.devices.size())) continue;
      for (std::int64_t i = 0; i < layout.degree; ++i)
        stage.devices.push_back(plan.cluster.devices[static_cast<std::size_t>(machine.devices[next[m]++])].name);
    }
    stage.embedding = plan.stages.empty();
    stage.head = plan.stages.size() + 1 == shape.stages.size();
    stage.weight_type = model.arch.checkpoint_type;
    stage.kv_type = model.arch.checkpoint_type;
    route.path.push_back({stage.id, stage.layers});
    plan.stages.push_back(std::move(stage));
  }
  plan.routes = {route};
  return plan;
}

// The greatest rate of the same layout over the batches that fit.
double plan_rate(const Offers& market, const Model& model, const RequestClass& one, const Configuration& shape,
                 const ModelRentOptions& options) {
  ServePlan plan = as_plan(market, model, one, shape, options);
  double greatest = 0;
  for (std::int64_t batch = 1; batch <= options.max_batch; batch *= 2) {
    for (auto& stage : plan.stages)
      stage.kv_tokens = kv_tokens_of({one.prompt_tokens.mean, one.output_tokens.mean, 1, plan.step}, batch);
    plan.routes[0].batch = batch;
    if (!verify(plan).empty()) break;
    const double rate = price_serve(plan, {}).requests_per_s;
    EXPECT_GE(rate, greatest * 0.999);  // more in flight is never slower
    greatest = std::max(greatest, rate);
  }
  return greatest;
}

TEST(Shapes, RatesAreThePricesOfTheSamePipelineAsAPlan) {
  const Offers market = market_of({{"A6000", {0.83, 8, {}}}, {"A5000", {0.5, 8, {}}}, {"H100", {2.99, 8, {}}}});
  const Model model = read_model("llama-2-13b");
  const Workload workload = workload_of({request("chat", 1, 512, 128)});
  const ModelRentOptions options;
  ShapeMaker maker(market, model, workload, options);
  std::vector<ShapeSpec> specs = {{{"H100", 1, 1}},
                                  {{"A6000", 1, 1}},
                                  {{"A6000", 2, 1}},
                                  {{"A6000", 1, 2}},
                                  {{"A5000", 4, 2}},
                                  {{"A6000", 1, 1}, {"A5000", 1, 1}},
                                  {{"A6000", 2, 1}, {"A5000", 1, 2}}};
  for (const auto& spec : specs) {
    const Configuration made = maker.make(spec);
    ASSERT_EQ(made.rate_per_s.size(), 1u);
    EXPECT_GT(made.rate_per_s[0], 0) << made.name;
    EXPECT_NEAR(plan_rate(market, model, workload.classes[0], made, options), made.rate_per_s[0],
                1e-6 * made.rate_per_s[0])
        << made.name;
    EXPECT_GE(maker.rate_bounds(spec)[0], made.rate_per_s[0]) << made.name;
    std::int64_t layers = 0;
    for (const auto& stage : made.stages) layers += stage.layers;
    EXPECT_EQ(layers, model.arch.layers);
  }
}

TEST(Shapes, ADeadlineThatNoBatchKeepsIsARateOfZero) {
  const Offers market = market_of({{"H100", {2.99, 8, {}}}});
  const Model model = read_model("llama-2-13b");
  const ModelRentOptions options;
  const Workload free = workload_of({request("chat", 1, 512, 128)});
  const Workload tight =
      workload_of({request("chat", 1, 512, 128, {.first_token_s = 0, .per_token_s = 0.02, .total_s = 0})});
  const Workload hopeless =
      workload_of({request("chat", 1, 512, 128, {.first_token_s = 1e-4, .per_token_s = 0, .total_s = 0})});
  const ShapeSpec spec = {{"H100", 1, 1}};
  const double most = ShapeMaker(market, model, free, options).make(spec).rate_per_s[0];
  const double kept = ShapeMaker(market, model, tight, options).make(spec).rate_per_s[0];
  ShapeMaker refusing(market, model, hopeless, options);
  EXPECT_GT(most, kept);
  EXPECT_GT(kept, 0);
  EXPECT_EQ(refusing.make(spec).rate_per_s[0], 0);
  EXPECT_THAT(refusing.why_unserved(0).reason,
              testing::AllOf(testing::HasSubstr("\"chat\""), testing::HasSubstr("H100")));
}

TEST(Shapes, ADeadlineThatNobodyKeepsIsNamedWithTheNearest) {
  const Model model = read_model("llama-2-13b");
  const Workload workload =
      workload_of({request("easy", 1, 512, 128), request("hard", 1, 512, 128, {.first_token_s = 1e-4})});
  const RentOutcome outcome = plan_rent(market_of({{"H100", {2.99, 8, {}}}}), model, workload,
                                        {.form = RentForm::cheapest, .comparisons = Comparisons::skip}, {});
  EXPECT_FALSE(outcome.plan);
  EXPECT_THAT(outcome.reason, testing::AllOf(testing::HasSubstr("\"hard\""), testing::HasSubstr("to the first token")));
  EXPECT_THAT(outcome.hint, testing::HasSubstr("times as long"));
}

TEST(Shapes, AModelThatNothingHoldsIsNamed) {
  const RentOutcome outcome = plan_rent(market_of({{"A4000", {0.5, 2, {}}}}), read_model("llama-2-70b"),
                                        workload_of({request("chat", 1, 512, 128)}),
                                        {.form = RentForm::cheapest, .comparisons = Comparisons::skip}, {});
  EXPECT_FALSE(outcome.plan);
  EXPECT_THAT(outcome.reason, testing::HasSubstr("llama-2-70b"));
}

TEST(Shapes, OnDemandReachesTheRelaxationOfAllMixedShapes) {
  // Scarce types, so that mixing them pays.
  const Offers market = market_of({{"A6000", {0.83, 3, {}}}, {"A5000", {0.4, 5, {}}}, {"A40", {0.55, 3, {}}}});
  const Model model = read_model("llama-30b");
  const Workload workload = workload_of({request("chat", 1, 512, 128), request("code", 1, 2000, 20)});
  const RentOptions options{.budget_usd_per_hour = 6, .comparisons = Comparisons::skip};
  const ModelRentOptions made;
  const RentOutcome outcome = plan_rent(market, model, workload, options, made);
  ASSERT_TRUE(outcome.plan);
  EXPECT_TRUE(verify(*outcome.plan).empty());

  ShapeMaker maker(market, model, workload, made);
  Offers all = maker.market();
  for (const auto& spec : maker.alike()) all.configurations.push_back(maker.make(spec));
  const std::size_t alike = all.configurations.size();
  Offers only_alike = all;
  for (const auto& spec : maker.mixed()) all.configurations.push_back(maker.make(spec));
  EXPECT_GT(all.configurations.size(), 2 * alike);
  EXPECT_LT(outcome.plan->offers.configurations.size(), all.configurations.size());  // not all were made
  const FleetOptions fleet{.deadline = deadline_in(60)};
  const auto relaxation = [&](const Offers& offers) {
    return relaxed_prices(std::get<RentProblem>(make_problem(offers, options)), fleet).bound;
  };
  EXPECT_NEAR(relaxation(outcome.plan->offers), relaxation(all), 1e-6 * std::abs(relaxation(all)));
  const double everything = plan_rent(all, options).throughput_per_s;
  EXPECT_LE(outcome.throughput_per_s, everything * (1 + 1e-6));
  EXPECT_GE(outcome.throughput_per_s, 0.97 * everything);
  EXPECT_GE(outcome.throughput_per_s, plan_rent(only_alike, options).throughput_per_s * (1 - 1e-6));
}

TEST(Shapes, TheRentedMachinesAreAClusterWithTheirPrices) {
  const Model model = read_model("llama-2-13b");
  const RentOutcome outcome = plan_rent(market_of({{"H100", {2.99, 8, {}}}, {"A6000", {0.83, 8, {}}}}), model,
                                        workload_of({request("chat", 4, 512, 128)}),
                                        {.form = RentForm::cheapest, .comparisons = Comparisons::skip}, {});
  ASSERT_TRUE(outcome.plan);
  const ClusterDescription description = rented_cluster(*outcome.plan);
  const Cluster cluster = resolve(read<ClusterDescription>(write(description), "rented"), "rented");
  std::int64_t devices = 0;
  double usd_per_hour = 0;
  for (const auto& rented : outcome.plan->fleet)
    for (const auto& [type, count] : rented.devices) devices += count * rented.copies;
  for (const auto& machine : cluster.machines)
    usd_per_hour += cluster.description.machines[static_cast<std::size_t>(machine.description)].usd_per_hour;
  EXPECT_EQ(static_cast<std::int64_t>(cluster.devices.size()), devices);
  EXPECT_NEAR(usd_per_hour, outcome.plan->predicted.cost_usd_per_hour, 1e-9);
}

TEST(Shapes, AnUnknownTypeIsAnErrorWithASuggestion) {
  EXPECT_THROW(plan_rent(market_of({{"H10", {2.99, 8, {}}}}), read_model("llama-2-13b"),
                         workload_of({request("chat", 4, 512, 128)}), {.budget_usd_per_hour = 9}, {}),
               Error);
}

}  // namespace
}  // namespace motley
