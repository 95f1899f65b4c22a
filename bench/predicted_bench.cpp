// What plans of the serving examples are predicted to bring, next to what the simulator shows of them: output tokens
// per second with three times the requests that can be served, and the time of a lone request to its first token.
//
//   predicted_bench
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/saturated.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

std::string source(const std::string& path) { return std::string(MOTLEY_SOURCE_DIR) + "/" + path; }

Cluster from_text(const std::string& text) {
  return resolve(read<ClusterDescription>(parse_toml(text, "text"), "text"), "text");
}

struct Example {
  std::string name;
  Cluster cluster;
  std::string model;
  std::string workload = "";  // file; empty: the default
  ServeOptions options = {};
  double prompt_tokens = 0, output_tokens = 0;  // replaces the workload's
};

std::vector<Example> examples() {
  const auto read_example = [](const std::string& path) { return read_cluster(source("examples/" + path)); };
  std::vector<Example> all;
  all.push_back({"desk", read_example("clusters/desk.toml"), "qwen3-8b"});
  all.push_back({"motivating box", read_example("clusters/motivating-box.toml"), "llama-2-70b"});
  all.push_back({"motivating box, prompts of 128",
                 read_example("clusters/motivating-box.toml"),
                 "llama-2-70b",
                 "",
                 {},
                 128,
                 128});
  all.push_back({"motivating box, prompts of 2000",
                 read_example("clusters/motivating-box.toml"),
                 "llama-2-70b",
                 "",
                 {},
                 2000,
                 128});
  all.push_back({"mixed cloud", read_example("clusters/mixed-cloud.toml"), "llama-2-70b"});
  all.push_back({"two sites", read_example("clusters/two-sites.toml"), "llama-2-70b"});
  all.push_back({"hexgen, full", read_example("hexgen/full.toml"), "llama-2-70b", "examples/hexgen/workload.toml"});
  all.push_back(
      {"hexgen, homogeneous", read_example("hexgen/homogeneous.toml"), "llama-2-70b", "examples/hexgen/workload.toml"});
  all.push_back({"garage",
                 read_example("garage/cluster.toml"),
                 "data/models/tales",
                 "examples/garage/workload.toml",
                 {.step = {.max_tokens = 64, .max_sequences = 8}, .weight_type = DType::fp32}});
  all.push_back({"helix, without its profile", read_example("helix/cluster.toml"), "llama-2-70b",
                 "examples/helix/workload.toml"});
  all.push_back({"two desks", from_text(R"(
format = "motley.cluster/1"
[[machine]]
name = "big"
devices = ["RTX 4090", "RTX 3090"]
[[machine]]
name = "old"
devices = ["RTX 2080 Ti*2", "RTX 3060"]
[network]
within_machine = { latency = "10 us", bandwidth = "12 GB/s" }
within_site = { latency = "0.2 ms", bandwidth = "1 Gbit/s" }
)"),
                 "qwen3-32b"});
  all.push_back({"16 stages",
                 from_text(R"(
format = "motley.cluster/1"
[[machine]]
name = "desk"
count = 16
devices = ["RTX 3060"]
[network]
within_site = { latency = "0.2 ms", bandwidth = "1 Gbit/s" }
)"),
                 "llama-2-70b",
                 "",
                 {.use_devices = UseDevices::all, .replication = Replication::one_pipeline}});
  all.push_back({"two old cards, answers of 2000",
                 from_text(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["RTX 3090*2", "RTX 3060"]
[network]
within_machine = { latency = "10 us", bandwidth = "12 GB/s" }
)"),
                 "qwen3-8b",
                 "",
                 {},
                 100,
                 2000});
  all.push_back({"one device", from_text(R"(
format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["A100-80"]
)"),
                 "qwen3-8b"});
  return all;
}

double seconds_alone(const ServePlan& plan) {
  const SimResult result = simulate(plan,
                                    {{.arrival_s = 0,
                                      .prompt_tokens = std::llround(plan.workload.mean_prompt_tokens()),
                                      .output_tokens = std::llround(plan.workload.mean_output_tokens()),
                                      .class_name = plan.workload.classes[0].name}},
                                    {});
  return result.records.front().ttft_s();
}

void measure(const Example& example) {
  Workload workload = example.workload.empty() ? default_workload() : read_workload(source(example.workload));
  for (RequestClass& request : workload.classes) {
    request.prompt_tokens = {.mean = example.prompt_tokens > 0 ? example.prompt_tokens : request.prompt_tokens.mean,
                             .trace = ""};
    request.output_tokens = {.mean = example.output_tokens > 0 ? example.output_tokens : request.output_tokens.mean,
                             .trace = ""};
  }
  const std::string model = example.model.starts_with("data/") ? source(example.model) : example.model;
  const ServeOutcome outcome = plan_serve(example.cluster, read_model(model), workload, example.options);
  if (!outcome.plan) return fmt::print("{}: {}\n", example.name, outcome.reason);
  const ServePlan& plan = *outcome.plan;
  const ServeCost cost = price_serve(plan, {});
  const double simulated = saturated_tokens_per_s(plan, cost), alone_s = seconds_alone(plan);
  fmt::print("| {} | {:.1f} | {:.1f} | {:.3f} | {:.0f} ms | {:.0f} ms | {:.2f} |\n", example.name, cost.tokens_per_s,
             simulated, simulated / cost.tokens_per_s, 1e3 * cost.routes[0].first_token_s, 1e3 * alone_s,
             cost.routes[0].first_token_s / alone_s);
}

}  // namespace
}  // namespace motley

int main() {
  using namespace motley;
  fmt::print(
      "| example | tokens/s, predicted | simulated | simulated / predicted | first token, predicted | simulated | "
      "ratio |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const Example& example : examples()) measure(example);
}
