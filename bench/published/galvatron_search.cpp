#include "bench/published/galvatron_search.hpp"

#include <algorithm>
#include <cmath>

namespace motley {
namespace {

constexpr double cached_share = 0.2;           // withheld for the allocator's cache
constexpr double cached_from_mib = 21 * 1024;  // above 20 GiB, in whole GiB

enum class Splitting { tensor, sequence, both };

// What one knapsack of the published search may use.
struct Task {
  GalvatronRun run;
  int stages = 1;
  Splitting splitting = Splitting::both;
  int largest = 1;  // split, and the size that the buffer of tensor parallelism is made for
};

bool allowed(const GalvatronStrategy& strategy, const Task& task, int devices) {
  const int replicas = std::max(1, std::min(task.run.batch / task.run.micro_batches, devices / task.stages));
  if (strategy.stages != task.stages || strategy.split() > task.largest || strategy.data > replicas) return false;
  if (task.splitting == Splitting::tensor) return strategy.sequence == 1;
  return task.splitting == Splitting::both || strategy.tensor == 1;
}

std::vector<GalvatronStrategy> filter(const std::vector<GalvatronStrategy>& all, const Task& task, int devices) {
  std::vector<GalvatronStrategy> some;
  for (const auto& strategy : all)
    if (allowed(strategy, task, devices)) some.push_back(strategy);
  return some;
}

// In the published order: the first of equal plans is kept.
std::vector<Task> tasks_of(const GalvatronProblem& problem, int devices, int layers) {
  std::vector<Task> tasks;
  for (int micro = 1; micro <= problem.batch; ++micro) {
    if (problem.batch % micro != 0) continue;
    const GalvatronRun run{problem.batch, micro, problem.schedule, problem.reduction};
    for (int stages = 1; stages <= std::min({devices, problem.largest_stages, micro, layers}); stages *= 2) {
      const int largest = std::min(devices / stages, problem.largest_split);
      const int replicas = std::max(1, std::min(problem.batch / micro, devices / stages));
      for (const Splitting splitting : {Splitting::tensor, Splitting::sequence, Splitting::both}) {
        int least = splitting == Splitting::sequence ? largest : 1;
        while (splitting != Splitting::sequence && least < devices / stages / replicas) least *= 2;
        for (int degree = least; degree <= largest; degree *= 2) tasks.push_back({run, stages, splitting, degree});
      }
    }
  }
  return tasks;
}

class Search {
 public:
  Search(const GalvatronForm& form, const GalvatronProblem& problem)
      : form_(form),
        problem_(problem),
        devices_(static_cast<int>(form.profile().devices)),
        layers_(static_cast<int>(form.profile().layers)),
        layer_strategies_(galvatron_strategies(devices_, problem, true)),
        ends_strategies_(galvatron_strategies(devices_, problem, false)) {
    usable_mib_ = problem.memory_mib;
    if (problem.memory_mib >= cached_from_mib) usable_mib_ -= std::floor(cached_share * problem.memory_mib);
  }

  GalvatronOutcome run() {
    for (const auto& task : tasks_of(problem_, devices_, layers_)) try_task(task);
    return std::move(outcome_);
  }

 private:
  std::vector<int> even_cut(int stages) const {
    std::vector<int> cut(static_cast<std::size_t>(stages), layers_ / stages);
    cut.back() += layers_ % stages;
    return cut;
  }

  void try_task(const Task& task) {
    const auto strategies = filter(layer_strategies_, task, devices_);
    const auto cut = even_cut(task.stages);
    if (strategies.empty()) return;
    const double buffer =
        task.splitting == Splitting::sequence ? 0 : std::floor(form_.buffer_mib(task.stages, task.largest, task.run));
    std::vector<StrategyChain> chains;
    for (int stage = 0; stage < task.stages; ++stage)
      chains.push_back(galvatron_chain(form_, strategies, task.run, stage, cut[static_cast<std::size_t>(stage)]));
    for (const auto& ends : filter(ends_strategies_, task, devices_)) {
      GalvatronPlan plan{
          .run = task.run, .stage_layers = cut, .layers = {}, .ends = ends, .step_s = 0, .stage_mib = {}};
      if (!fill_stages(chains, strategies, buffer, plan)) continue;
      price(plan);
      if (!outcome_.plan || plan.samples_per_s() > outcome_.plan->samples_per_s()) outcome_.plan = std::move(plan);
    }
  }

  // False where a stage has no room for its layers.
  bool fill_stages(const std::vector<StrategyChain>& chains, const std::vector<GalvatronStrategy>& strategies,
                   double buffer_mib, GalvatronPlan& plan) {
    const std::vector<double> ends_mib = form_.ends_mib(plan.ends, plan.run);
    for (std::size_t stage = 0; stage < chains.size(); ++stage) {
      const double taken = std::ceil(ends_mib[stage]) + buffer_mib;
      const StrategyAnswer answer = solve_strategy_chain(chains[stage], usable_mib_ - taken);
      ++outcome_.knapsacks;
      if (answer.status == StrategyStatus::infeasible) return false;
      for (const int choice : answer.choice) plan.layers.push_back(strategies[static_cast<std::size_t>(choice)]);
      plan.stage_mib.push_back(taken + answer.bytes);
    }
    return true;
  }

  void price(GalvatronPlan& plan) const {
    const std::vector<GalvatronSeconds> ends = form_.ends_seconds(plan.ends, plan.run);
    std::vector<double> without_sync(ends.size()), with_sync(ends.size());
    std::size_t layer = 0;
    for (std::size_t stage = 0; stage < ends.size(); ++stage) {
      for (int i = 0; i < plan.stage_layers[stage]; ++i, ++layer) {
        const GalvatronSeconds seconds = form_.layer_seconds(plan.layers[layer], plan.run);
        without_sync[stage] += seconds.without_sync_s;
        with_sync[stage] += seconds.with_sync_s;
      }
      without_sync[stage] += ends[stage].without_sync_s;
    }
    plan.step_s = galvatron_pipeline_seconds(without_sync, with_sync, plan.run.micro_batches);
  }

  const GalvatronForm& form_;
  GalvatronProblem problem_;
  int devices_, layers_;
  std::vector<GalvatronStrategy> layer_strategies_, ends_strategies_;
  double usable_mib_ = 0;
  GalvatronOutcome outcome_;
};

}  // namespace

std::vector<GalvatronStrategy> galvatron_strategies(int devices, const GalvatronProblem& problem, bool recompute) {
  std::vector<GalvatronStrategy> strategies;
  const GalvatronStates plain = problem.zero2 ? GalvatronStates::zero2 : GalvatronStates::replicated;
  const auto add = [&](int stages, int tensor, int sequence) {
    const int data = devices / stages / tensor / sequence;
    const std::vector<GalvatronStates> kinds =
        data == 1 ? std::vector{GalvatronStates::replicated} : std::vector{plain, GalvatronStates::zero3};
    for (const GalvatronStates states : kinds)
      for (const bool again : recompute ? std::vector<bool>{false, true} : std::vector<bool>{false})
        strategies.push_back({stages, tensor, sequence, data, states, again});
  };
  for (int stages = 1; stages <= std::min(devices, problem.largest_stages); stages *= 2) {
    const int largest = std::min(devices / stages, problem.largest_split);
    for (int sequence = 1; sequence <= largest; sequence *= 2) add(stages, 1, sequence);
    for (int tensor = 2; tensor <= largest; tensor *= 2) add(stages, tensor, 1);
  }
  return strategies;
}

GalvatronOutcome search_galvatron(const GalvatronForm& form, const GalvatronProblem& problem) {
  return Search(form, problem).run();
}

StrategyChain galvatron_chain(const GalvatronForm& form, const std::vector<GalvatronStrategy>& strategies,
                              const GalvatronRun& run, int stage, int layers) {
  StrategyChain chain;
  StrategyRun site{.options = {}, .repeat = layers};
  for (const auto& strategy : strategies) {
    const int layout = static_cast<int>(site.options.size());
    site.options.push_back({.time_s = form.layer_seconds(strategy, run).with_sync_s,
                            .bytes = std::ceil(form.layer_mib(strategy, run, stage)),
                            .layout_in = layout,
                            .layout_out = layout});
    std::vector<double> changes;
    for (const auto& next : strategies) changes.push_back(form.change_seconds(strategy, next, run));
    chain.layout_change_s.push_back(std::move(changes));
  }
  chain.runs.push_back(std::move(site));
  return chain;
}

}  // namespace motley
