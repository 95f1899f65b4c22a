#include "motley/report/compare_report.hpp"

#include <gtest/gtest.h>

#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

Cluster priced(const std::string& first, const std::string& second) {
  return cluster_of("format = \"motley.cluster/1\"\nmachine = [{ name = \"a\", devices = [\"card*2\"]" + first +
                    " }, { name = \"b\", devices = [\"card*3\"]" + second + " }]\n" + R"(
[[device_type]]
name = "card"
vendor = "nvidia"
memory = "16 GiB"
memory_bandwidth = "400 GB/s"
flops = { fp16 = "40 TFLOP/s" }
price = "0.5 $/h"
)");
}

ServePlan plan_of(const Cluster& cluster, double tokens_per_s, double latency_s) {
  ServePlan plan;
  plan.cluster = cluster;
  plan.routes.resize(2);
  plan.stages.resize(3);
  plan.unused = {{"b/2", "spare"}};
  plan.predicted.tokens_per_s = tokens_per_s;
  plan.predicted.requests_per_s = tokens_per_s / 100;
  plan.predicted.latency_s = latency_s;
  plan.predicted.bottleneck_s = 0.25;
  return plan;
}

// A machine's own price covers its devices; without one theirs add up.
TEST(CompareReport, APriceIsOfMachinesOrOfTheirDevices) {
  EXPECT_NEAR(usd_per_hour(priced("", "")), 5 * 0.5, 1e-12);
  EXPECT_NEAR(usd_per_hour(priced(", price = \"3 $/h\"", "")), 3 + 3 * 0.5, 1e-12);
  EXPECT_NEAR(usd_per_hour(priced(", price = \"3 $/h\"", ", price = \"4 $/h\"")), 7, 1e-12);
  Cluster unpriced = priced(", price = \"3 $/h\"", "");
  for (auto& type : unpriced.types) type.usd_per_hour = 0;
  EXPECT_EQ(usd_per_hour(unpriced), 0);  // not known, in place of too little
}

// 2.5 $/h at 1000 tokens/s: 3.6 million tokens an hour, 0.6944 $ for a million.
TEST(CompareReport, FiguresStandBesideTheFirstPlans) {
  const Cluster cluster = priced("", "");
  const ServePlan one = plan_of(cluster, 1000, 2), other = plan_of(cluster, 1500, 1);
  const Value json = compare_json({{"one", &one}, {"other", &other}});
  const auto& plans = json.find("plans")->as_array();
  ASSERT_EQ(plans.size(), 2u);
  const auto number = [](const Value& plan, const char* key) { return plan.find(key)->as_number(); };
  EXPECT_EQ(plans[1].find("name")->as_string(), "other");
  EXPECT_EQ(number(plans[0], "routes"), 2);
  EXPECT_EQ(number(plans[0], "stages"), 3);
  EXPECT_EQ(number(plans[0], "devices"), 4);
  EXPECT_EQ(number(plans[0], "idle"), 1);
  EXPECT_NEAR(number(plans[0], "usd_per_million_tokens"), 2.5 / 3.6, 1e-9);
  EXPECT_NEAR(number(*plans[1].find("relative"), "tokens_per_s"), 1.5, 1e-12);
  EXPECT_NEAR(number(*plans[1].find("relative"), "latency_s"), 0.5, 1e-12);
  const std::string text = compare_report({{"one", &one}, {"other", &other}});
  EXPECT_NE(text.find("1500 (x 1.50)"), std::string::npos) << text;
  EXPECT_NE(text.find("(x 0.50)"), std::string::npos) << text;
  EXPECT_EQ(text.find("(x 1.00)"), std::string::npos) << "what is equal is not compared:\n" << text;
  EXPECT_EQ(text.find("inside deadlines"), std::string::npos) << "no plan knows it:\n" << text;
}

}  // namespace
}  // namespace motley
