// For tests and benchmarks: placements whose routes share stages, with measured rates (Helix's machines and made-up
// ones) and by the cost model.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

struct SharedStages {
  std::string name;
  std::string model;
  std::string cluster;         // TOML
  std::string stages, routes;  // "machine first end, ..." and "weight stage stage ..., ..."
  std::int64_t kv_tokens = 0;  // of every stage
  double load = 0.8;           // of the flow
  double prompt_tokens = 763, output_tokens = 232;
  std::vector<LayerRate> rates = {};
};

// Requests of like lengths as the Azure conversation trace's.
inline Workload conversations(double prompt_tokens, double output_tokens) {
  Workload workload = default_workload();
  workload.classes = {
      {.name = "chat",
       .prompt_tokens = {.mean = prompt_tokens, .p50 = 0, .p99 = 2.5 * prompt_tokens, .trace = ""},
       .output_tokens = {.mean = output_tokens, .p50 = 0.68 * output_tokens, .p99 = 2.6 * output_tokens, .trace = ""},
       .deadline = {}}};
  workload.arrival.process = ArrivalProcess::poisson;
  return workload;
}

inline std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

// Routes share the requests in flight by their weights.
inline ServePlan plan_of(const SharedStages& placement) {
  ServePlan plan;
  plan.model = read_model(placement.model);
  plan.cluster =
      resolve(read<ClusterDescription>(
                  parse_toml("format = \"motley.cluster/1\"\n" + placement.cluster, placement.name), placement.name),
              placement.name);
  plan.workload = conversations(placement.prompt_tokens, placement.output_tokens);
  plan.profile.layer_rate = placement.rates;
  for (const std::string& described : split_at_commas(placement.stages)) {
    std::istringstream in(described);
    std::string machine;
    Stage stage;
    stage.id = "s" + std::to_string(plan.stages.size());
    stage.kv_tokens = placement.kv_tokens;
    in >> machine >> stage.layers.first >> stage.layers.end;
    stage.devices = {machine + "/0"};
    stage.shares = {1};
    stage.embedding = stage.layers.first == 0;
    stage.head = stage.layers.end == plan.model.arch.layers;
    stage.weight_type = stage.kv_type = DType::bf16;
    plan.stages.push_back(std::move(stage));
  }
  double weights = 0;
  for (const std::string& described : split_at_commas(placement.routes)) {
    std::istringstream in(described);
    Route& route = plan.routes.emplace_back();
    route.id = "r" + std::to_string(plan.routes.size() - 1);
    in >> route.weight;
    weights += route.weight;
    for (std::size_t stage = 0; in >> stage;) route.path.push_back({plan.stages[stage].id, plan.stages[stage].layers});
  }
  const ServePoint point{placement.prompt_tokens, placement.output_tokens, 1, plan.step};
  const double in_flight = requests_in(point, static_cast<double>(placement.kv_tokens));
  for (Route& route : plan.routes)
    route.batch = std::max<std::int64_t>(1, static_cast<std::int64_t>(in_flight * route.weight / weights));
  return plan;
}

inline std::vector<SharedStages> placements_with_shared_stages() {
  const auto machines = [](const std::string& list, const std::string& network) {
    std::string toml;
    for (const std::string& described : split_at_commas(list)) {
      std::istringstream in(described);
      std::string name, site, device;
      in >> name >> site;
      std::getline(in >> std::ws, device);
      toml += "[[machine]]\nname = \"" + name + "\"\nsite = \"" + site + "\"\ndevices = [\"" + device + "\"]\n";
    }
    return toml + "[network]\n" + network;
  };
  const auto several = [](const std::string& name, const std::string& site, int count, const std::string& device) {
    return "[[machine]]\nname = \"" + name + "\"\nsite = \"" + site + "\"\ncount = " + std::to_string(count) +
           "\ndevices = [\"" + device + "\"]\n";
  };
  const std::string one_site = several("a", "here", 4, "A100-40") + several("l", "here", 8, "L4") +
                               several("t", "here", 12, "T4") +
                               "[network]\nwithin_site = { latency = \"1 ms\", bandwidth = \"1 GB/s\" }\n";
  const std::string three_sites = several("a", "first", 4, "A100-40") + several("l", "second", 2, "L4") +
                                  several("t", "second", 8, "T4") + several("m", "third", 6, "L4") +
                                  several("u", "third", 4, "T4") +
                                  "[network]\nwithin_site = { latency = \"1 ms\", bandwidth = \"1.25 GB/s\" }\n"
                                  "between_sites = { latency = \"50 ms\", bandwidth = \"12.5 MB/s\" }\n";
  const std::vector<LayerRate> helix = {
      {"A100-40", 1, {23833.9, 11384.3, 7201.4, 5264.6, 4096.7, 3124.1, 2595.7, 2045.6, 1754.4, 1392.6, 1212.2, 952.1}},
      {"L4", 1, {7557.9, 3625.7, 2171.9, 1476.1, 1017.6, 747.8, 531.7}},
      {"T4", 1, {5709.2, 2434.4, 1347.9, 757.9}}};
  const auto all_alike = [](double tokens_per_s) { return std::vector<double>(12, tokens_per_s); };
  const std::vector<LayerRate> own = {
      {"RTX 4090", 1, all_alike(900)}, {"RTX 3090", 1, all_alike(500)}, {"RTX 3060", 1, all_alike(250)}};
  const std::string pairs =
      "a-0 5 14, a-1 22 31, a-2 40 49, a-3 71 80, l-0 0 5, l-1 0 5, l-2 31 36, l-3 31 36, l-4 49 54, l-5 49 54, "
      "l-6 58 63, l-7 58 63, t-0 14 18, t-1 14 18, t-2 18 22, t-3 18 22, t-4 36 40, t-5 36 40, t-6 54 58, t-7 54 58, "
      "t-8 63 67, t-9 63 67, t-10 67 71, t-11 67 71";
  const std::string gigabit = "within_site = { latency = \"0.2 ms\", bandwidth = \"1 Gbit/s\" }\n";
  const std::string ten_gigabit = "within_site = { latency = \"0.1 ms\", bandwidth = \"10 Gbit/s\" }\n";
  return {
      {.name = "24 machines",
       .model = "llama-2-70b",
       .cluster = one_site,
       .stages = "l-0 9 14, t-0 62 66, t-1 60 62, l-1 45 48, t-2 48 51, l-2 9 14, a-0 18 27, t-3 48 51, t-4 14 18, "
                 "a-1 71 80, a-2 51 60, l-3 66 69, t-5 69 71, t-6 5 9, l-4 40 45, t-7 5 9, t-8 62 66, a-3 27 36, "
                 "l-5 40 45, t-9 36 40, t-10 36 40, l-6 0 5, t-11 14 18, l-7 0 5",
       .routes = "757.85 21 13 0 8 6 17 19 14 3 4 10 2 1 11 12 9, 498.13 23 15 5 22 6 17 20 18 3 4 10 2 16 11 12 9, "
                 "167.84 21 15 0 22 6 17 20 14 3 7 10 2 16 11 12 9, 91.88 21 15 0 22 6 17 20 14 3 4 10 2 16 11 12 9",
       .kv_tokens = 281056,
       .rates = helix},
      {.name = "three sites, as planned",
       .model = "llama-2-70b",
       .cluster = three_sites,
       .stages = "a-1 0 9, a-2 9 18, a-0 18 27, a-3 27 36, t-0 36 40, t-5 36 40, t-7 36 40, l-0 40 43, l-1 43 46, "
                 "t-3 46 48, t-1 48 50, t-4 50 53, t-6 50 53, m-2 53 57, t-2 53 57, m-4 57 60, m-3 60 63, u-1 63 65, "
                 "u-2 65 67, u-0 67 69, u-3 69 71, m-0 71 74, m-5 74 77, m-1 77 80",
       .routes = "757.90 0 1 2 3 4 7 8 9 10 11 13 15 16 17 18 19 20 21 22 23, "
                 "584.96 0 1 2 3 5 7 8 9 10 11 14 15 16 17 18 19 20 21 22 23, "
                 "238.60 0 1 2 3 6 7 8 9 10 12 13 15 16 17 18 19 20 21 22 23, "
                 "167.90 0 1 2 3 5 7 8 9 10 12 13 15 16 17 18 19 20 21 22 23, "
                 "5.04 0 1 2 3 5 7 8 9 10 11 13 15 16 17 18 19 20 21 22 23",
       .kv_tokens = 558448,
       .prompt_tokens = 750,
       .output_tokens = 240,
       .rates = helix},
      {.name = "three sites, wide borders",
       .model = "llama-2-70b",
       .cluster = three_sites,
       .stages = "a-0 0 10, a-1 10 20, a-2 20 30, a-3 30 40, l-0 40 45, l-1 40 45, t-0 45 49, t-1 45 49, t-2 49 53, "
                 "t-3 49 53, t-4 53 57, t-5 53 57, t-6 57 61, t-7 57 61, m-0 61 66, m-1 61 66, m-2 66 71, m-3 66 71, "
                 "m-4 71 76, m-5 71 76, u-0 76 80, u-1 76 80",
       .routes = "757.90 0 1 2 3 4 6 8 10 12 14 16 18 20, 375.00 0 1 2 3 5 7 9 11 13 15 17 19 21, "
                 "254.66 0 1 2 3 5 7 9 11 13 14 16 18 21, 5.04 0 1 2 3 4 7 9 11 13 14 16 18 21",
       .kv_tokens = 526160,
       .load = 0.7,
       .rates = helix},
      {.name = "pairs",
       .model = "llama-2-70b",
       .cluster = one_site,
       .stages = pairs,
       .routes = "757.90 4 0 12 14 1 6 16 2 8 18 10 20 22 3, 498.20 5 0 13 15 1 7 17 2 9 19 11 21 23 3, "
                 "259.70 4 0 13 15 1 6 17 2 8 19 10 21 23 3",
       .kv_tokens = 558448,
       .load = 0.95,
       .rates = helix},
      {.name = "unlike replicas",
       .model = "qwen3-8b",
       .cluster = machines("a x RTX 4090, c x RTX 3090, d x RTX 3060, e x RTX 3060, f x RTX 4090, g x RTX 3090, "
                           "h x RTX 3090",
                           "within_site = { latency = \"1 ms\", bandwidth = \"1 GB/s\" }\n"),
       .stages = "a 0 9, c 9 18, d 9 18, e 9 18, f 18 27, g 27 36, h 27 36",
       .routes = "500 0 1 4 5, 250 0 2 4 6, 150 0 3 4 6",
       .kv_tokens = 224752,
       .load = 0.85,
       .prompt_tokens = 300,
       .output_tokens = 300,
       .rates = own},
      {.name = "one hub",
       .model = "qwen3-8b",
       .cluster = machines("a x RTX 3060, b x RTX 3060, c x RTX 3090, d x RTX 4090, e x RTX 3090, f x RTX 3060",
                           "within_site = { latency = \"5 ms\", bandwidth = \"1 Gbit/s\" }\n"),
       .stages = "a 0 12, b 0 12, c 0 12, d 12 24, e 24 36, f 24 36",
       .routes = "250 2 3 4, 250 0 3 4, 250 1 3 5",
       .kv_tokens = 119280,
       .load = 0.9,
       .prompt_tokens = 512,
       .output_tokens = 128,
       .rates = own},
      {.name = "pairs, by the model",
       .model = "llama-2-70b",
       .cluster = one_site,
       .stages = pairs,
       .routes = "3539.96 4 0 12 14 1 6 16 2 8 18 10 20 22 3, 3315.78 5 0 13 15 1 7 17 2 9 19 11 21 23 3, "
                 "224.18 5 0 12 14 1 7 16 2 9 18 11 20 22 3",
       .kv_tokens = 558448},
      {.name = "desks",
       .model = "qwen3-32b",
       .cluster = machines("a x RTX 4090, c x RTX 3090, d x RTX 3090, e x RTX 4090, g x RTX 4090", gigabit),
       .stages = "a 0 16, c 16 32, d 16 32, e 32 48, g 48 64",
       .routes = "1 0 1 3 4, 1 0 2 3 4",
       .kv_tokens = 113296,
       .prompt_tokens = 512,
       .output_tokens = 128},
      {.name = "one head",
       .model = "qwen3-8b",
       .cluster = machines("a x RTX 3060, b x RTX 3060, c x RTX 3060, d x RTX 4090", ten_gigabit),
       .stages = "a 0 12, b 0 12, c 0 12, d 12 36",
       .routes = "3170.08 0 3, 3170.08 1 3, 2515.89 2 3",
       .kv_tokens = 119776,
       .load = 0.9,
       .prompt_tokens = 512,
       .output_tokens = 128},
      {.name = "two sites",
       .model = "qwen3-32b",
       .cluster = machines("a x A100-40, b x A100-40, c y RTX 4090, d y RTX 4090, e y RTX 4090, f y RTX 4090",
                           ten_gigabit + "between_sites = { latency = \"25 ms\", bandwidth = \"1 Gbit/s\" }\n"),
       .stages = "a 0 32, b 0 32, c 32 48, d 32 48, e 48 64, f 48 64",
       .routes = "5793.23 0 2 4, 5630.74 1 3 5, 162.49 0 3 5",
       .kv_tokens = 68864,
       .load = 0.6,
       .prompt_tokens = 1000,
       .output_tokens = 200},
      {.name = "five routes",
       .model = "qwen3-8b",
       .cluster = machines("a x RTX 3060, b x RTX 2080 Ti, c x RTX 3060, d x RTX 3060, e x RTX 2080 Ti, f x RTX 3060, "
                           "g x RTX 3090, h x RTX 3060, i x RTX 2080 Ti, j x RTX 4090",
                           gigabit),
       .stages = "a 0 9, b 0 9, c 0 9, d 9 18, e 9 18, f 9 18, g 18 27, h 18 27, i 27 36, j 27 36",
       .routes = "6731.39 1 4 6 8, 3488.36 0 3 6 9, 3488.36 2 5 7 9, 518.84 0 3 6 8, 518.84 1 4 7 9",
       .kv_tokens = 161328,
       .load = 0.5,
       .prompt_tokens = 256,
       .output_tokens = 256},
      {.name = "long prompts",
       .model = "qwen3-8b",
       .cluster = machines("a x L4, b x L4, d x A100-40, e x L4, f x T4", ten_gigabit),
       .stages = "a 0 12, b 0 12, d 12 24, e 24 36, f 24 36",
       .routes = "8353.34 0 2 3, 5047.14 1 2 4",
       .kv_tokens = 206672,
       .prompt_tokens = 2000,
       .output_tokens = 100},
      {.name = "long answers",
       .model = "qwen3-8b",
       .cluster =
           machines("a x RTX 4090, b x RTX 3090, c x A100-40, d x RTX 3060, e x RTX 3060, f x RTX 3090", ten_gigabit),
       .stages = "a 0 14, b 0 14, c 14 24, d 24 36, e 24 36, f 24 36",
       .routes = "4813.45 0 2 5, 1906.16 1 2 3, 1906.16 1 2 4, 8.67 1 2 5",
       .kv_tokens = 119280,
       .load = 0.75,
       .prompt_tokens = 100,
       .output_tokens = 600},
  };
}

}  // namespace motley
