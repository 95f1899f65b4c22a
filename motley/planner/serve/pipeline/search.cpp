#include "motley/planner/serve/pipeline/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "motley/cost/serve/serve_cost.hpp"

namespace motley {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

constexpr double easy_work = 3e6;   // milliseconds: run at once, without coarser ones before
constexpr double most_cells = 8e6;  // 24 bytes each

// How finely devices are dealt out.
struct Level {
  Alike alike = Alike::by_links;
  int unit_size = 1;
};

int largest_unit(const std::vector<DeviceClass>& classes) {
  std::size_t most = 1;
  for (const auto& alike : classes)
    if (alike.one_machine) most = std::max(most, alike.units.size());
  int unit = 1;
  while (unit < static_cast<int>(most)) unit *= 2;
  return unit;
}

std::vector<int> nothing(const StageTable& table) { return std::vector<int>(table.classes().size(), 0); }

std::vector<int> least_use(const ServeOptions& options, const StageTable& table) {
  return options.use_devices == UseDevices::all ? table.counts() : nothing(table);
}

struct BatchShape {
  std::int64_t batch = 1;
  std::int64_t micro_batches = 1;
  std::int64_t sequences() const { return sequences_per_step(batch, micro_batches); }
};

// Grid of batches, by sequences per step and then by batch, ascending.
std::vector<BatchShape> batch_shapes(const ServeOptions& options, const ServeForm& form) {
  if (form.pipeline_always_full()) return {{static_cast<std::int64_t>(form.requests_per_job()), 1}};
  std::vector<BatchShape> shapes;
  const auto fixed = static_cast<std::int64_t>(setting(options.cost, "motley.batch", 0));
  const auto micro_batches = static_cast<std::int64_t>(setting(options.cost, "motley.micro_batches", 0));
  if (fixed > 0 || options.objective == Objective::latency) {
    const std::int64_t batch = std::max<std::int64_t>(1, fixed);
    if (micro_batches > 0) return {{batch, std::min(batch, micro_batches)}};
    for (const std::int64_t count : micro_batch_counts(batch, options.step)) shapes.push_back({batch, count});
    std::reverse(shapes.begin(), shapes.end());
    return shapes;
  }
  for (const std::int64_t batch : batch_grid(options.max_batch))
    for (const std::int64_t count : micro_batch_counts(batch, options.step))
      if (micro_batches == 0 || count == micro_batches) shapes.push_back({batch, count});
  std::ranges::stable_sort(shapes, {}, &BatchShape::sequences);
  return shapes;
}

class PartSearch {
 public:
  explicit PartSearch(const ServeProblem& problem) : problem_(problem) {}

  // False where it stopped at the deadline.
  bool run(const std::shared_ptr<const StageTable>& table) {
    table_ = table;
    const auto probe = problem_.form(problem_.point(1));
    std::int64_t too_many = std::numeric_limits<std::int64_t>::max(), saturated = 0, quickest_of = 0;
    double quickest_s = 0;
    std::vector<BatchShape> late;  // whose quickest chain misses a deadline
    const std::vector<BatchShape> shapes = batch_shapes(problem_.options, *probe);
    if (shapes.size() > 1 && !try_largest_steps(shapes, too_many)) return false;
    for (const BatchShape& shape : shapes) {
      if (shape.batch >= too_many || shape.sequences() == saturated) continue;
      // No chain takes less than the quickest with the least room for keys and values.
      if (shape.sequences() == quickest_of && quickest_s >= cutoff_s() * static_cast<double>(shape.batch)) continue;
      // More sequences per step or more steps under way only make requests wait longer.
      const auto is_later = [&](const BatchShape& missed) {
        return shape.sequences() >= missed.sequences() && shape.micro_batches >= missed.micro_batches;
      };
      if (problem_.options.objective == Objective::slo && std::any_of(late.begin(), late.end(), is_later)) continue;
      if (answer_.evaluated > 0 && expired(problem_)) return false;
      if (shape.batch == 1 && !probe->pipeline_always_full()) {
        const double cutoff = cutoff_s();
        const std::optional<double> excess = try_alone(shape, cutoff);
        if (!excess && cutoff == infinity) too_many = 1;
        if (excess && *excess > objective_tolerance) late.push_back(shape);
        continue;
      }
      const ServePoint point = problem_.point(shape.sequences(), shape.batch > 1);
      const auto form = problem_.form(point);
      const ChainProblem chains =
          table->problem(*form, point, shape.batch, MemoryRule::true_bytes, least_use(problem_.options, *table));
      ChainSolver solver(chains);
      SearchEnd end = SearchEnd::complete;
      if (shape.sequences() != quickest_of) {
        const auto quickest = solver.least_latency(cutoff_s());
        quickest_of = shape.sequences();
        quickest_s = quickest ? quickest->seconds.latency_s : infinity;
      }
      if (form->pipeline_always_full()) {
        ChainFront front = pareto_front(solver, problem_.deadline);
        for (auto& chain : front.chains) consider(*form, point, shape, std::move(chain));
        end = front.end;
      } else {
        const double cutoff = cutoff_s();
        CycleAnswer least = least_cycle(solver, static_cast<double>(shape.batch), cutoff, problem_.deadline);
        end = least.end;
        // Room for more requests in flight is room for fewer layers: what does not fit now will not fit later.
        if (!least.chain && cutoff == infinity && end == SearchEnd::complete)
          too_many = std::min(too_many, shape.batch);
        // More in flight shortens a cycle that latency bounds; one that load bounds, only where another chain has a
        // lower load.
        const StageSeconds seconds = least.chain ? least.chain->seconds : StageSeconds{0, cutoff};
        const bool load_bound = seconds.load_s * static_cast<double>(shape.batch) >= seconds.latency_s;
        if (load_bound && !solver.least_latency(seconds.load_s * (1 - objective_tolerance)))
          saturated = shape.sequences();
        if (least.chain && consider(*form, point, shape, std::move(*least.chain)) > objective_tolerance)
          late.push_back(shape);
      }
      answer_.evaluated += solver.evaluated();
      if (end == SearchEnd::deadline) return false;
    }
    return true;
  }

  PartAnswer& answer() { return answer_; }

 private:
  // A pipeline whose cycle is not shorter than this cannot be better than the best so far. One that is as short may be:
  // it may wait less.
  double cutoff_s() const {
    if (!answer_.best || problem_.options.objective == Objective::latency) return infinity;
    if (problem_.options.objective == Objective::slo && answer_.best->excess > objective_tolerance) return infinity;
    return (1 + 2 * objective_tolerance) / answer_.best->requests_per_s;
  }

  // What large steps reach rules out most small ones, so these are tried first: the most requests in flight that fit.
  // False where it stopped at the deadline.
  bool try_largest_steps(const std::vector<BatchShape>& shapes, std::int64_t& too_many) {
    if (problem_.options.objective == Objective::latency) return true;
    const std::int64_t most = shapes.back().sequences();
    for (auto shape = shapes.rbegin(); shape != shapes.rend() && shape->sequences() == most; ++shape) {
      if (shape->batch == 1) return true;
      const ServePoint point = problem_.point(most, true);
      const auto form = problem_.form(point);
      const ChainProblem chains =
          table_->problem(*form, point, shape->batch, MemoryRule::true_bytes, least_use(problem_.options, *table_));
      ChainSolver solver(chains);
      CycleAnswer least = least_cycle(solver, static_cast<double>(shape->batch), infinity, problem_.deadline);
      answer_.evaluated += solver.evaluated();
      if (least.chain) consider(*form, point, *shape, std::move(*least.chain));
      if (least.end == SearchEnd::deadline) return false;
      if (least.chain) return true;
      too_many = shape->batch;
    }
    return true;
  }

  // One request at a time, with every size of chunks: the sum of the stages' times and the busiest one's for every
  // further chunk. Returns by how much the best exceeds the deadlines; none where no chain that takes less than the
  // cutoff fits.
  std::optional<double> try_alone(const BatchShape& shape, double cutoff) {
    std::optional<double> excess;
    at_best_chunk(problem_.point(1), [&](const ServePoint& point) {
      const auto form = problem_.form(point);
      const ChainProblem chains = table_->problem(*form, point, 1, MemoryRule::true_bytes,
                                                  least_use(problem_.options, *table_), LoadOf::further_chunks);
      ChainSolver solver(chains);
      std::optional<Chain> best;
      const auto total = [](const Chain& chain) { return chain.seconds.latency_s + chain.seconds.load_s; };
      double bound = infinity;
      while (auto chain = solver.least_latency(bound, best ? total(*best) : cutoff)) {
        bound = chain->seconds.load_s * (1 - objective_tolerance);
        if (total(*chain) < (best ? total(*best) : cutoff)) best = std::move(chain);
        if (bound <= 0 || expired(problem_)) break;
      }
      answer_.evaluated += solver.evaluated();
      if (!best) return infinity;
      const double seconds = total(*best);
      const double here = consider(*form, point, shape, std::move(*best));
      excess = std::min(excess.value_or(infinity), here);
      return seconds;
    });
    return excess;
  }

  // Returns by how much the chain exceeds the deadlines.
  double consider(const ServeForm& form, const ServePoint& point, const BatchShape& shape, Chain chain) {
    Candidate candidate{.table = table_, .chain = std::move(chain)};
    candidate.batch = shape.batch;
    candidate.micro_batches = shape.micro_batches;
    candidate.offload = table_->place(form, point, shape.batch, candidate.chain.stages);
    const PathPrice price = table_->price(form, candidate.chain.stages, candidate.offload);
    candidate.first_token_s = point.loaded ? infinity : price.first_token_s();
    if (point.loaded)
      at_best_chunk(problem_.point(1), [&](const ServePoint& at) {
        const double seconds =
            table_->price(*problem_.form(at), candidate.chain.stages, candidate.offload).first_token_s();
        candidate.first_token_s = std::min(candidate.first_token_s, seconds);
        return seconds;
      });
    const double alone_s = shape.batch == 1 ? price.more_chunks_s : 0;
    const StageSeconds seconds = candidate.chain.seconds = {price.latency.sum() + alone_s, price.busiest_s()};
    const double cycle = cycle_s(form, seconds.latency_s, seconds.load_s, shape.batch);
    candidate.latency_s = form.pipeline_always_full() ? seconds.latency_s : cycle * static_cast<double>(shape.batch);
    candidate.requests_per_s = form.requests_per_job() / cycle;
    RouteCost route{.latency_s = candidate.latency_s};
    route.first_token_s = candidate.first_token_s;
    const double decode_steps = problem_.workload.mean_output_tokens() - 1;
    if (decode_steps > 0) route.per_token_s = (candidate.latency_s - route.first_token_s) / decode_steps;
    candidate.excess = deadline_excess(problem_.workload, route);
    const double excess = candidate.excess;
    if (!answer_.best || better(candidate, *answer_.best, problem_.options.objective))
      answer_.best = std::move(candidate);
    return excess;
  }

  const ServeProblem& problem_;
  std::shared_ptr<const StageTable> table_;
  PartAnswer answer_;
};

std::shared_ptr<const StageTable> make_table(const ServeProblem& problem, const std::vector<int>& devices,
                                             Level level) {
  return std::make_shared<const StageTable>(problem, collapse(problem.cluster, devices, level.alike, level.unit_size));
}

ChainProblem chain_problem(const ServeProblem& problem, const StageTable& table, std::int64_t batch, MemoryRule rule,
                           std::vector<int> must_use) {
  const ServePoint point = problem.point(1);
  return table.problem(*problem.form(point), point, batch, rule, std::move(must_use));
}

double work_of(const ServeProblem& problem, const StageTable& table) {
  const ChainProblem chains = chain_problem(problem, table, 1, MemoryRule::true_bytes, nothing(table));
  const double cells = chain_cells(chains);
  return cells > most_cells ? infinity : cells * static_cast<double>(chains.options.size());
}

// The finest level that can be solved within the limits, or the coarsest of all.
std::shared_ptr<const StageTable> finest_table(const ServeProblem& problem, const std::vector<int>& devices) {
  for (const Alike alike : {Alike::by_links, Alike::by_type}) {
    const int largest = largest_unit(collapse(problem.cluster, devices, alike, 1));
    for (int unit = 1; unit <= largest; unit *= 2) {
      auto table = make_table(problem, devices, {alike, unit});
      if (work_of(problem, *table) <= thorough_work) return table;
    }
  }
  return nullptr;
}

int compare(double a, double b) { return at_most(a, b) ? (at_most(b, a) ? 0 : -1) : 1; }

// "2 A5000: 1 layers > 4 A6000: 79 layers"
std::string layout_text(const ServeProblem& problem, const StageTable& table, const std::vector<ChainStage>& stages) {
  std::vector<std::string> parts;
  for (const auto& stage : stages) {
    std::vector<std::pair<std::string, int>> types;
    for (const int device : table.kinds()[stage.option].group.devices) {
      const std::string& name = problem.cluster.type_of(device).name;
      if (types.empty() || types.back().first != name) types.emplace_back(name, 0);
      ++types.back().second;
    }
    std::vector<std::string> names;
    for (const auto& [name, count] : types) names.push_back(fmt::format("{} {}", count, name));
    parts.push_back(fmt::format("{}: {} layers{}", fmt::join(names, " + "), stage.units,
                                table.kinds()[stage.option].tiers ? " that stream" : ""));
  }
  return fmt::format("{}", fmt::join(parts, " > "));
}

}  // namespace

bool better(const Candidate& a, const Candidate& b, Objective objective) {
  if (objective == Objective::slo && compare(a.excess, b.excess) != 0) return a.excess < b.excess;
  const int by_rate = compare(b.requests_per_s, a.requests_per_s);  // -1: a has more
  const int by_latency = compare(a.latency_s, b.latency_s);
  const int primary = objective == Objective::latency ? by_latency : by_rate;
  const int secondary = objective == Objective::latency ? by_rate : by_latency;
  return primary != 0 ? primary < 0 : secondary < 0;
}

PartAnswer search_part(const ServeProblem& problem, const std::vector<int>& devices) {
  PartSearch search(problem);
  const auto exact = make_table(problem, devices, {});
  const double work = work_of(problem, *exact);
  bool in_time = true;
  if (work > easy_work) {
    // Coarse levels first: each is quick compared with the next, and the best so far counts when time runs out.
    for (const Alike alike : {Alike::by_type, Alike::by_links})
      for (int unit = largest_unit(exact->classes()); unit >= 1 && in_time; unit /= 2) {
        if (alike == Alike::by_links && unit == 1) continue;
        const auto table = make_table(problem, devices, {alike, unit});
        if (work_of(problem, *table) <= problem.most_work) in_time = search.run(table);
      }
  }
  if (work <= problem.most_work && in_time) search.answer().exact = search.run(exact) && exact->all_sizes();
  return std::move(search.answer());
}

std::vector<FrontEntry> whole_front(const ServeProblem& problem, const std::vector<int>& devices) {
  const auto table = finest_table(problem, devices);
  if (!table) return {};
  const MemoryRule rule = problem.options.cost.form == "motley" ? MemoryRule::true_bytes : MemoryRule::form_only;
  const ChainProblem chains = chain_problem(problem, *table, 1, rule, table->counts());
  ChainSolver solver(chains);
  std::vector<FrontEntry> front;
  for (const auto& chain : pareto_front(solver, problem.deadline).chains) {
    FrontEntry entry{.latency_s = chain.seconds.latency_s, .bottleneck_s = chain.seconds.load_s, .stages = {}};
    const auto devices_of_stage = table->devices_of(chain.stages);
    const std::vector<LayerRange> layers = layers_of(chain.stages);
    for (std::size_t i = 0; i < chain.stages.size(); ++i) {
      FrontEntry::Stage stage{{}, layers[i]};
      for (const int device : devices_of_stage[i]) stage.devices.push_back(problem.cluster.devices[device].name);
      entry.stages.push_back(std::move(stage));
    }
    front.push_back(std::move(entry));
  }
  return front;
}

std::vector<IdleUnits> explain_idle(const ServeProblem& problem, const Candidate& candidate) {
  const StageTable& table = *candidate.table;
  std::vector<int> used(table.classes().size(), 0);
  for (const auto& stage : candidate.chain.stages)
    for (std::size_t k = 0; k < used.size(); ++k) used[k] += table.kinds()[stage.option].takes[k];

  const ServePoint point =
      problem.point(sequences_per_step(candidate.batch, candidate.micro_batches), candidate.batch > 1);
  const auto form = problem.form(point);
  const bool latency = problem.options.objective == Objective::latency;
  const double tokens = problem.workload.mean_output_tokens() * form->requests_per_job();
  const auto text = [&](const StageSeconds& seconds) {
    const double cycle = cycle_s(*form, seconds.latency_s, seconds.load_s, candidate.batch);
    return latency ? fmt::format("{:.4g} s per request", seconds.latency_s)
                   : fmt::format("{:.4g} tokens/s", tokens / cycle);
  };
  std::vector<IdleUnits> idle;
  for (std::size_t k = 0; k < used.size(); ++k) {
    const auto& units = table.classes()[k].units;
    if (used[k] == static_cast<int>(units.size())) continue;
    IdleUnits entry;
    for (std::size_t i = used[k]; i < units.size(); ++i)
      entry.devices.insert(entry.devices.end(), units[i].begin(), units[i].end());
    std::vector<int> must_use = nothing(table);
    must_use[k] = used[k] + 1;
    const ChainProblem chains = table.problem(*form, point, candidate.batch, MemoryRule::true_bytes, must_use);
    ChainSolver solver(chains);
    const double in_flight = form->pipeline_always_full() ? infinity : static_cast<double>(candidate.batch);
    const auto with =
        latency ? solver.least_latency() : least_cycle(solver, in_flight, infinity, problem.deadline).chain;
    const std::string what = fmt::format("{} more {}", units[0].size(), problem.cluster.type_of(entry.devices[0]).name);
    entry.reason =
        with ? fmt::format("{} with {} in use, {} without; the best layout that uses it is {}", text(with->seconds),
                           what, text(candidate.chain.seconds), layout_text(problem, table, with->stages))
             : fmt::format("no layout with {} in use fits in memory", what);
    idle.push_back(std::move(entry));
  }
  return idle;
}

std::int64_t most_layers_placed(const ServeProblem& problem, const std::vector<int>& devices) {
  const auto table = finest_table(problem, devices);
  if (!table) return 0;
  std::int64_t fits = 0, too_many = problem.model.arch.layers + 1;
  ChainProblem chains = chain_problem(problem, *table, 1, MemoryRule::true_bytes, nothing(*table));
  while (too_many - fits > 1) {
    chains.units = fits + (too_many - fits) / 2;
    if (!chains.kind_of_unit.empty()) {  // the model's first layers
      const std::vector<std::uint16_t>& kinds = problem.model.arch.kind_of_layer;
      chains.kind_of_unit.assign(kinds.begin(), kinds.begin() + chains.units);
    }
    ChainSolver solver(chains);
    (solver.least_latency() ? fits : too_many) = chains.units;
  }
  return fits;
}

}  // namespace motley
