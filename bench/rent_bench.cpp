// How long renting takes, and how good it is: `rent_bench [paper|built-in|models|columns]...`.
//
//   paper    72 instances of arXiv 2502.00722's size: Llama-3 8B and 70B, its six types at its prices, three traces,
//   four
//            snapshots of availability, three budgets; rates by a roofline. Gap 1e-4.
//   built-in the same without HiGHS, at most 10 s each.
//   models   both models at once: 18 classes. Gap 1e-6.
//   columns  six models, 20 kinds of nodes in three regions, 1,800 to 90,000 replica shapes of up to six nodes: column
//            pools. Gap 1e-2.
//
// One thread. Seconds of the processor, so that other programs do not count; homogeneous fleets and the like are left
// out.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <set>
#include <string>

#include "motley/base/random.hpp"
#include "motley/planner/rent/plan_rent.hpp"

namespace motley {
namespace {

// ---- instances of the paper's size ----

struct Gpu {
  const char* name;
  double usd_per_hour, tflop_per_s, gb_per_s, gib;
  std::array<int, 4> available;
};
constexpr Gpu gpus[] = {
    {"RTX4090", 0.53, 165.2, 1008, 24, {16, 32, 32, 24}}, {"A40", 0.55, 149.7, 696, 48, {12, 8, 16, 24}},
    {"A6000", 0.83, 154.8, 768, 48, {8, 16, 8, 24}},      {"L40", 0.90, 181.05, 864, 48, {12, 16, 8, 16}},
    {"A100", 1.75, 312, 2039, 80, {6, 7, 32, 4}},         {"H100", 2.99, 989.5, 3350, 80, {8, 12, 8, 8}}};
constexpr double inputs[] = {2455, 824, 496}, outputs[] = {510, 253, 18};
constexpr double mixes[3][9] = {{0.33, 0.07, 0.08, 0.07, 0.27, 0.06, 0.06, 0.03, 0.03},
                                {0.22, 0.05, 0.05, 0.21, 0.05, 0.05, 0.19, 0.06, 0.12},
                                {0.04, 0.14, 0.03, 0.20, 0.27, 0.01, 0.25, 0.00, 0.06}};

struct Llm {
  const char* name;
  double billions, layers, kv_bytes_per_token;
};
constexpr Llm llms[] = {{"8b", 8.03, 32, 131072}, {"70b", 70.6, 80, 327680}};

struct Part {
  int gpu, degree, stages;
};

// Requests per second of a pipeline of like stages in one or two parts, by the larger of compute and memory.
double roofline_rate(const Llm& llm, const std::vector<Part>& parts, double in, double out) {
  constexpr double compute = 0.6, bandwidth = 0.8, overhead_s = 4e-3, link_bytes_per_s = 30e9;
  double power = 0, room = 0;
  for (const auto& part : parts) power += part.stages * part.degree * gpus[part.gpu].gb_per_s;
  double batch = 256;
  const double weights = 2e9 * llm.billions;
  for (const auto& part : parts) {
    const double share = part.degree * gpus[part.gpu].gb_per_s / power;  // of the layers, on one stage
    room = part.degree * gpus[part.gpu].gib * 1.0737e9 * 0.9 - share * weights;
    batch = std::min(batch, std::floor(room / (share * llm.kv_bytes_per_token * (in + out))));
  }
  if (batch < 1) return 0;
  double prefill_s = 0, step_s = 0;  // of the slowest stage
  for (const auto& part : parts) {
    const Gpu& gpu = gpus[part.gpu];
    const double share = part.degree * gpu.gb_per_s / power;
    const double reduce = part.degree > 1 ? 4 * share * llm.layers * 8192 * 2 / link_bytes_per_s : 0;  // per token
    const double flops = share * 2e9 * llm.billions / (part.degree * gpu.tflop_per_s * 1e12 * compute);
    prefill_s = std::max(prefill_s, in * (flops + reduce));
    const double bytes = share * (weights + batch * llm.kv_bytes_per_token * (in + out / 2));
    step_s = std::max(step_s, std::max(batch * flops, bytes / (part.degree * gpu.gb_per_s * 1e9 * bandwidth)) +
                                  batch * reduce + overhead_s);
  }
  return 1 / (prefill_s + out * step_s / batch);
}

void add_shapes(Offers& offers, const Llm& llm, int llm_index, int llm_count) {
  const auto add = [&](const std::vector<Part>& parts) {
    Configuration shape;
    shape.name = llm.name;
    shape.model = llm_count > 1 ? llm.name : "";
    double gib = 0, served = 0;
    for (const auto& part : parts) {
      shape.name += fmt::format(" {}*{}x{}", gpus[part.gpu].name, part.degree, part.stages);
      shape.devices[gpus[part.gpu].name] += part.degree * part.stages;
      gib += part.degree * part.stages * gpus[part.gpu].gib;
    }
    if (gib * 1.0737e9 > 12 * 2e9 * llm.billions) return;
    for (int other = 0; other < llm_count; ++other)
      for (const double in : inputs)
        for (const double out : outputs)
          served += shape.rate_per_s.emplace_back(
              other == llm_index || llm_count == 1 ? roofline_rate(llm, parts, in, out) : 0);
    if (served > 0) offers.configurations.push_back(std::move(shape));
  };
  for (int g = 0; g < 6; ++g)
    for (const int degree : {1, 2, 4, 8})
      for (int stages = 1; stages <= 4; ++stages) {
        add({{g, degree, stages}});
        for (int h = g + 1; h < 6 && stages == 1; ++h)
          for (const int other : {1, 2, 4, 8}) add({{g, degree, 1}, {h, other, 1}});
      }
}

Offers paper_market(const std::vector<int>& models, int mix, int snapshot) {
  Offers offers;
  for (const auto& gpu : gpus)
    offers.types[gpu.name] = {
        .usd_per_hour = gpu.usd_per_hour, .available = gpu.available[static_cast<std::size_t>(snapshot)], .domain = {}};
  const int count = static_cast<int>(models.size());
  for (int i = 0; i < count; ++i)
    for (int w = 0; w < 9; ++w)
      offers.classes.push_back({.name = fmt::format("{}-{}", llms[models[i]].name, w),
                                .model = count > 1 ? llms[models[i]].name : "",
                                .demand_per_s = {},
                                .share = mixes[mix][w] / count});
  for (int i = 0; i < count; ++i) add_shapes(offers, llms[models[i]], i, count);
  return offers;
}

// ---- many columns ----

Offers column_market(std::size_t columns) {
  constexpr int models = 6, regions = 3, kinds = 20;
  std::uint64_t drawn = 0;
  const auto draw = [&](double low, double high) { return low + (high - low) * uniform_at(11, drawn++); };
  Offers offers;
  for (int m = 0; m < models; ++m)
    offers.classes.push_back(
        {.name = fmt::format("m{}", m), .model = fmt::format("m{}", m), .demand_per_s = draw(40, 160), .share = {}});
  std::vector<double> price(kinds), speed(kinds);
  for (int k = 0; k < kinds; ++k) {
    price[k] = draw(0.5, 12);
    speed[k] = price[k] * draw(0.7, 1.3);
  }
  const auto type = [](int kind, int region) { return fmt::format("k{:02}@r{}", kind, region); };
  for (int r = 0; r < regions; ++r) {
    const double level = draw(0.9, 1.15);
    for (int k = 0; k < kinds; ++k)
      offers.types[type(k, r)] = {.usd_per_hour = price[k] * level * draw(0.95, 1.05),
                                  .available = static_cast<std::int64_t>(draw(4, 24)),
                                  .domain = {}};
  }
  std::vector<std::vector<double>> taste(models, std::vector<double>(kinds));
  for (auto& row : taste)
    for (double& factor : row) factor = draw(0.6, 1.4);
  std::set<std::string> seen;
  while (offers.configurations.size() < columns) {
    const int m = static_cast<int>(draw(0, models)), r = static_cast<int>(draw(0, regions)),
              nodes = 1 + static_cast<int>(draw(0, 6));
    Configuration shape;
    shape.model = fmt::format("m{}", m);
    double rate = 0;
    for (int i = 0; i < nodes; ++i) {
      const int k = static_cast<int>(draw(0, kinds));
      ++shape.devices[type(k, r)];
      rate += speed[k] * taste[m][k];
    }
    shape.name = shape.model;
    for (const auto& [name, count] : shape.devices) shape.name += fmt::format(" {}*{}", name, count);
    if (!seen.insert(shape.name).second) continue;
    // Pipelines of several nodes hold more KV and lose to their hops.
    rate *= 0.1 * (1 + 0.25 * std::log2(nodes)) * draw(0.9, 1.05);
    shape.rate_per_s.assign(models, 0);
    shape.rate_per_s[m] = rate;
    offers.configurations.push_back(std::move(shape));
  }
  return offers;
}

// ---- running ----

struct Timed {
  double seconds = 0, gap = 0, value = 0;
  SearchStatus status = SearchStatus::heuristic;
};

Timed timed(const Offers& offers, RentOptions options) {
  options.comparisons = Comparisons::skip;
  const std::clock_t start = std::clock();
  const RentOutcome outcome = plan_rent(offers, options);
  Timed result{.seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC};
  if (!outcome.plan) {
    fmt::print("  {}\n", outcome.reason);
    return result;
  }
  result.gap = outcome.plan->search.gap.value_or(1);
  result.status = outcome.plan->search.status;
  result.value =
      options.form == RentForm::cheapest ? outcome.plan->predicted.cost_usd_per_hour : outcome.throughput_per_s;
  return result;
}

void summarize(const std::string& name, std::vector<Timed> all) {
  std::sort(all.begin(), all.end(), [](const Timed& a, const Timed& b) { return a.seconds < b.seconds; });
  double worst_gap = 0;
  int optimal = 0;
  for (const auto& one : all) {
    worst_gap = std::max(worst_gap, one.gap);
    optimal += one.status == SearchStatus::optimal ? 1 : 0;
  }
  fmt::print(
      "{:<34} {:3} instances  median {:7.3f} s  p95 {:7.3f} s  worst {:7.3f} s  to the gap {:3}  worst gap {:.1e}\n",
      name, all.size(), all[all.size() / 2].seconds, all[(all.size() * 95 + 99) / 100 - 1].seconds, all.back().seconds,
      optimal, worst_gap);
}

void run_paper(MilpSolver solver, const std::string& name) {
  for (const int model : {0, 1}) {
    std::vector<Timed> all;
    std::size_t shapes = 0;
    for (int mix = 0; mix < 3; ++mix)
      for (int snapshot = 0; snapshot < 4; ++snapshot) {
        const Offers offers = paper_market({model}, mix, snapshot);
        shapes = offers.configurations.size();
        for (const double money : {15.0, 30.0, 60.0})
          all.push_back(
              timed(offers, {.budget_usd_per_hour = money, .deadline_s = 10, .relative_gap = 1e-4, .solver = solver}));
      }
    summarize(fmt::format("paper {} {} ({} shapes)", llms[model].name, name, shapes), std::move(all));
  }
}

void run_models(MilpSolver solver, const std::string& name) {
  std::vector<Timed> all;
  std::size_t shapes = 0;
  for (int mix = 0; mix < 3; ++mix) {
    const Offers offers = paper_market({0, 1}, mix, 1);
    shapes = offers.configurations.size();
    for (const double money : {30.0, 60.0})
      all.push_back(
          timed(offers, {.budget_usd_per_hour = money, .deadline_s = 60, .relative_gap = 1e-6, .solver = solver}));
  }
  summarize(fmt::format("models {} ({} shapes)", name, shapes), std::move(all));
}

void run_columns() {
  for (const std::size_t columns : {1800u, 18000u, 90000u}) {
    const Offers offers = column_market(columns);
    for (const double gap : {1e-2, 1e-4}) {
      const Timed one = timed(offers, {.form = RentForm::cheapest, .deadline_s = 60, .relative_gap = gap});
      fmt::print("columns {:6}  asked gap {:.0e}  {:7.3f} s  cost {:.2f} $/h  gap {:.1e}  {}\n", columns, gap,
                 one.seconds, one.value, one.gap, name_of(one.status));
    }
  }
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) names = {"paper", "built-in", "models", "columns"};
  for (const auto& name : names) {
    if (name == "paper") run_paper(MilpSolver::best, "default");
    if (name == "built-in") run_paper(MilpSolver::built_in, "built-in");
    if (name == "models") run_models(MilpSolver::best, "default");
    if (name == "columns") run_columns();
  }
  return 0;
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) { return motley::main(argc, argv); }
