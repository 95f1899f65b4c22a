#include "motley/server/metrics.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "motley/base/reference_test.hpp"

namespace motley {
namespace {

std::shared_ptr<const ServePlan> with_routes(const std::vector<std::string>& ids) {
  ServePlan plan;
  for (const std::string& id : ids) plan.routes.emplace_back().id = id;
  return std::make_shared<const ServePlan>(std::move(plan));
}

// One route, one worker, one request: every family has a member with its labels.
std::string page() {
  DriverStatus status;
  status.plan = with_routes({"r0"});
  status.waiting = {3};
  status.running = {2};
  WorkerStatus& worker = status.workers.emplace_back();
  worker.device = "box/0", worker.stage = "r0/s0", worker.busy_s = 0.5;
  status.generated_tokens = 7;
  status.replayed_tokens = {{"r0/s0", 3}};
  Metrics metrics;
  metrics.count_request("/v1/models", 200);
  metrics.observe_first_token(0.02);
  return metrics.text(status);
}

// "label, label" of a line `name{label="...",label="..."} value`; without `le`, which every histogram has.
std::string labels_of(const std::string& line) {
  std::string labels;
  const auto open = line.find('{');
  for (auto at = open; at != std::string::npos && line[at] != '}';) {
    const auto end = line.find('=', at);
    const std::string label = line.substr(at + 1, end - at - 1);
    if (label != "le") labels += fmt::format("{}`{}`", labels.empty() ? "" : ", ", label);
    at = line.find_first_of(",}", line.find('"', end + 2));
  }
  return labels;
}

// A row per family, from what a scraper is told.
std::string metrics_markdown() {
  std::string out = "| name | type | labels | meaning |\n|---|---|---|---|\n", name, help;
  std::istringstream lines(page());
  for (std::string line, type; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      const auto space = line.find(' ', 7);
      name = line.substr(7, space - 7), help = line.substr(space + 1);
    } else if (line.starts_with("# TYPE ")) {
      type = line.substr(line.rfind(' ') + 1);
    } else if (!name.empty()) {  // the first line with a value
      out += fmt::format("| `{}` | {} | {} | {} |\n", name, type, labels_of(line), help);
      name.clear();
    }
  }
  return out;
}

TEST(Metrics, FollowTheDriver) {
  const std::string text = page();
  EXPECT_NE(text.find("motley_requests_waiting{route=\"r0\"} 3\n"), std::string::npos);
  EXPECT_NE(text.find("motley_generated_tokens_total 7\n"), std::string::npos);
  EXPECT_NE(text.find("motley_worker_busy_seconds_total{device=\"box/0\",stage=\"r0/s0\"} 0.5\n"), std::string::npos);
  EXPECT_NE(text.find("motley_time_to_first_token_seconds_count 1\n"), std::string::npos);
}

TEST(Metrics, FollowAChangeOfPlan) {
  DriverStatus status;
  status.plan = with_routes({"r0", "r1"});
  status.epoch = 1;
  status.waiting = status.running = {1, 2};
  status.workers.push_back({.device = "box/0", .stage = "r0/s0", .alive = true, .allocated = {}, .busy_s = 2});
  status.workers.push_back({.device = "box/1", .stage = "r1/s0", .alive = true, .allocated = {}, .busy_s = 3});
  Metrics metrics;
  EXPECT_NE(metrics.text(status).find("motley_requests_waiting{route=\"r1\"} 2\n"), std::string::npos);
  status.plan = with_routes({"r0"});
  status.epoch = 2;
  status.waiting = status.running = {4};
  status.workers.pop_back();
  const std::string text = metrics.text(status);
  EXPECT_NE(text.find("motley_requests_waiting{route=\"r0\"} 4\n"), std::string::npos);
  EXPECT_NE(text.find("motley_plan_epoch 2\n"), std::string::npos);
  EXPECT_EQ(text.find("{route=\"r1\"}"), std::string::npos);
  EXPECT_EQ(text.find("motley_worker_up{device=\"box/1\""), std::string::npos);
  EXPECT_NE(text.find("motley_worker_busy_seconds_total{device=\"box/1\",stage=\"r1/s0\"} 3\n"), std::string::npos);
}

TEST(Metrics, ReferenceIsCurrent) { expect_text_is_current("metrics.md", metrics_markdown()); }

}  // namespace
}  // namespace motley
