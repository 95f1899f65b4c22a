// The chain kernel on one thread: chains of equal layers, of layers that all differ, with many transient sizes; solved
// exactly, certified to 0.1 %, and as whole fronts. Then the whole search for llama2-7b on 8 devices under the
// published cost form, next to the published time. `chain_bench [SEEDS]`
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>

#include "bench/published/galvatron_search.hpp"
#include "motley/base/random.hpp"
#include "motley/solve/strategy_chain.hpp"

namespace motley {
namespace {

struct Case {
  std::string name;
  int sites, options, layouts;
  bool equal_sites;
  int transient_sizes;  // 0: none
  double budget_share;  // of the way from the least memory to that of the fastest chain
};

// Options as sharding and recomputation make them: a layer of `scale` seconds and bytes, whose memory is bought with
// time at falling returns, and noise of a tenth.
StrategyRun layer(const Case& shape, double scale, const std::function<double()>& draw) {
  StrategyRun run;
  for (int i = 0; i < shape.options; ++i) {
    const double share = std::pow(2.0, -5 * draw());
    const int layout = static_cast<int>(draw() * shape.layouts);
    run.options.push_back(
        {.time_s = scale * 0.010 * (1 + 0.3 / share * (0.9 + 0.2 * draw())),
         .bytes = scale * 1e9 * share * (0.9 + 0.2 * draw()),
         .transient_bytes = shape.transient_sizes == 0 ? 0 : 1e8 * std::floor(draw() * shape.transient_sizes),
         .layout_in = layout,
         .layout_out = layout});
  }
  return run;
}

StrategyChain make(const Case& shape, std::uint64_t seed) {
  std::uint64_t index = 0;
  const auto draw = [&] { return uniform_at(seed, index++); };
  StrategyChain chain;
  chain.layout_change_s.assign(static_cast<std::size_t>(shape.layouts),
                               std::vector<double>(static_cast<std::size_t>(shape.layouts)));
  for (int a = 0; a < shape.layouts; ++a)
    for (int b = 0; b < shape.layouts; ++b)
      if (a != b) chain.layout_change_s[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] = 0.004 * draw();
  if (shape.equal_sites) {
    chain.runs = {layer(shape, 1, draw)};
    chain.runs.front().repeat = shape.sites;
  } else {
    for (int site = 0; site < shape.sites; ++site) chain.runs.push_back(layer(shape, 0.5 + draw(), draw));
  }
  return chain;
}

// Of processor time: other programs do not count.
double milliseconds(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

void run(const Case& shape, std::uint64_t seeds) {
  double exact_median = 0, exact_most = 0, close_most = 0, front_most = 0, coarse_most = 0;
  std::size_t points = 0;
  std::int64_t partial_chains = 0, gaps = 0;
  std::vector<double> exact_times;
  double front_gap = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const StrategyChain chain = make(shape, seed);
    const double least = solve_strategy_chain(chain, 0).shortage.least_bytes;
    const double most = solve_strategy_chain(chain, 1e300).bytes;
    const double budget = least + shape.budget_share * (most - least);
    StrategyAnswer exact, close;
    exact_times.push_back(milliseconds([&] { exact = solve_strategy_chain(chain, budget); }));
    close_most =
        std::max(close_most, milliseconds([&] { close = solve_strategy_chain(chain, budget, {.tolerance = 1e-3}); }));
    if (exact.status != StrategyStatus::optimal || close.gap > 1.001e-3) ++gaps;
    partial_chains = std::max(partial_chains, exact.evaluated);
    if (seed > 0) continue;
    const auto front = [&](StrategyLimits limits) {
      limits.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      const StrategyFront made = strategy_front(chain, limits);
      points = made.points.size();
      front_gap = made.gap_s / made.points.back().time_s;
    };
    coarse_most = milliseconds([&] { front({.tolerance = 1e-3}); });
    front_most = milliseconds([&] { front({}); });
  }
  std::sort(exact_times.begin(), exact_times.end());
  exact_median = exact_times[exact_times.size() / 2];
  exact_most = exact_times.back();
  fmt::print(
      "{:<34} {:>5} {:>7} {:>7} {:>6.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9} {:>6} {:>10.1f} {:>10.1f} {:>8} {:>9.2g}\n",
      shape.name, shape.sites, shape.options, shape.layouts, shape.budget_share, exact_median, exact_most, close_most,
      partial_chains, gaps, coarse_most, front_most, points, front_gap);
}

void run_galvatron(int batch, int gib) {
  const GalvatronForm form(read_galvatron_profile(MOTLEY_SOURCE_DIR "/data/galvatron/llama-2-7b-8-devices.json"));
  GalvatronOutcome outcome;
  const double ms =
      milliseconds([&] { outcome = search_galvatron(form, {.batch = batch, .memory_mib = gib * 1024.0}); });
  fmt::print("llama2-7b, 8 devices of {} GB, {} samples: {} knapsacks, {:.3f} s, {:.2f} samples/s\n", gib, batch,
             outcome.knapsacks, ms / 1000, outcome.plan ? outcome.plan->samples_per_s() : 0);
}

}  // namespace
}  // namespace motley

int main(int count, char** arguments) {
  const std::uint64_t seeds = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 5;
  fmt::print("{:<34} {:>5} {:>7} {:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>6} {:>10} {:>10} {:>8} {:>9}\n",
             "chain (processor ms)", "sites", "options", "layouts", "budget", "exact", "worst", "0.1 %", "partial",
             "unmet", "front 0.1%", "front", "points", "gap");
  for (const double budget : {0.1, 0.5, 0.9})
    for (const auto& shape : {motley::Case{"equal layers", 32, 24, 4, true, 0, budget},
                              motley::Case{"equal layers", 96, 50, 8, true, 0, budget},
                              motley::Case{"equal layers, 4 transient sizes", 96, 50, 8, true, 4, budget},
                              motley::Case{"layers that all differ", 32, 24, 4, false, 0, budget},
                              motley::Case{"layers that all differ", 96, 50, 8, false, 0, budget},
                              motley::Case{"all differ, 4 transient sizes", 96, 50, 8, false, 4, budget},
                              motley::Case{"all differ, 1 layout", 96, 50, 1, false, 0, budget}})
      motley::run(shape, seeds);
  fmt::print("\nwhole search (the published planner: 43 to 189 s)\n");
  motley::run_galvatron(16, 36);
  motley::run_galvatron(64, 24);
}
