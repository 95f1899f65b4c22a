#include "motley/cost/serve_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "motley/base/units.hpp"

namespace motley {
namespace {

struct PricedRoute {
  const Route* route = nullptr;
  double share = 1;  // of all requests
  PhaseSeconds latency = {};
  std::vector<double> loads = {};  // of every stage on its path
  double busiest_s = 0;            // busy time of its busiest stage per request of this route, other routes included
  double cycle_s = 0;
};

// One pricing of a whole plan: groups are made once, forms once per size of a micro-batch.
class Pricing {
 public:
  explicit Pricing(const ServePlan& plan) : plan_(plan) {
    for (const auto& stage : plan.stages) {
      std::vector<int> devices;
      for (const auto& name : stage.devices) devices.push_back(plan.cluster.find_device(name));
      groups_.emplace(stage.id, make_group(plan.cluster, plan.model.arch, std::move(devices), stage.shares,
                                           stage.weight_type, stage.kv_type, plan.step));
    }
    double weights = 0;
    for (const auto& route : plan.routes) weights += route.weight;
    if (plan.routes.empty() || !(weights > 0)) throw input_error("the plan has no route with a positive weight");
    for (const auto& route : plan.routes) {
      if (route.path.empty()) throw input_error(fmt::format("route \"{}\" is empty", route.id));
      routes_.push_back({.route = &route, .share = route.weight / weights});
    }
  }

  const TensorGroup& group(const Hop& hop) const { return groups_.at(plan_.stage(hop.stage).id); }
  StageEnds ends(const Hop& hop) const { return {plan_.stage(hop.stage).embedding, plan_.stage(hop.stage).head}; }

  // Latency, loads and rates of all routes with `in_flight` requests on each. Returns requests per second.
  double price(const ServeForm& form, std::int64_t in_flight) {
    std::map<std::string, double> busy;  // per request of the whole deployment
    for (auto& priced : routes_) {
      price_alone(form, priced);
      for (std::size_t i = 0; i < priced.loads.size(); ++i)
        busy[priced.route->path[i].stage] += priced.share * priced.loads[i];
    }
    double rate = std::numeric_limits<double>::infinity();
    for (auto& priced : routes_) {
      priced.busiest_s = 0;
      if (priced.share <= 0) continue;
      for (const auto& hop : priced.route->path)
        priced.busiest_s = std::max(priced.busiest_s, busy[hop.stage] / priced.share);
      priced.cycle_s = cycle_s(form, priced.latency.sum(), priced.busiest_s, in_flight);
      rate = std::min(rate, form.requests_per_job() / priced.cycle_s / priced.share);
    }
    return rate;
  }

  const std::vector<PricedRoute>& routes() const { return routes_; }

 private:
  void price_alone(const ServeForm& form, PricedRoute& priced) const {
    const auto& path = priced.route->path;
    priced.latency = {};
    priced.loads.clear();
    for (std::size_t i = 0; i < path.size(); ++i) {
      StagePrice price = form.block(group(path[i])) * static_cast<double>(path[i].layers.size()) +
                         form.ends(group(path[i]), ends(path[i]));
      if (i + 1 < path.size()) price = price + form.hop(group(path[i]), group(path[i + 1]));
      priced.latency = priced.latency + price.latency;
      priced.loads.push_back(price.load.sum());
    }
    if (path.size() > 1) priced.latency = priced.latency + form.token_return(group(path.back()), group(path.front()));
  }

  const ServePlan& plan_;
  std::map<std::string, TensorGroup> groups_;
  std::vector<PricedRoute> routes_;
};

double loaded_latency(const ServeForm& form, const PricedRoute& route, std::int64_t in_flight) {
  if (form.pipeline_always_full()) return route.latency.sum();
  return route.cycle_s * static_cast<double>(in_flight);
}

Term scaled(Term term, double factor) {
  term.value *= factor;
  for (auto& child : term.children) child = scaled(std::move(child), factor);
  return term;
}

Term explain_route(const Pricing& pricing, const ServeForm& form, const PricedRoute& priced, std::int64_t in_flight) {
  const auto& path = priced.route->path;
  std::vector<Term> terms;
  for (std::size_t i = 0; i < path.size(); ++i) {
    terms.push_back(
        form.explain_stage(pricing.group(path[i]), pricing.ends(path[i]), path[i].layers.size(), path[i].stage));
    if (i + 1 < path.size())
      terms.push_back(form.explain_hop(pricing.group(path[i]), pricing.group(path[i + 1]),
                                       fmt::format("{} > {}", path[i].stage, path[i + 1].stage)));
  }
  if (path.size() > 1)
    if (const double seconds = form.token_return(pricing.group(path.back()), pricing.group(path.front())).sum();
        seconds > 0)
      terms.push_back(leaf("token return", seconds, "from the last stage to the first, every step"));
  const double waiting = loaded_latency(form, priced, in_flight) - priced.latency.sum();
  if (waiting > 1e-12 * priced.latency.sum())
    terms.push_back(leaf("waiting", waiting,
                         fmt::format("{} requests in flight, {} each at the busiest stage", in_flight,
                                     human_seconds(priced.busiest_s))));
  return sum_of(priced.route->id, std::move(terms));
}

Term explain(const Pricing& pricing, const ServeForm& form, std::int64_t in_flight) {
  std::vector<Term> terms;
  for (const auto& priced : pricing.routes()) {
    if (priced.share <= 0) continue;
    Term route = scaled(explain_route(pricing, form, priced, in_flight), priced.share);
    if (priced.share < 1) route.note = fmt::format("{:.1f} % of the requests", 100 * priced.share);
    terms.push_back(std::move(route));
  }
  Term tree = terms.size() == 1 ? std::move(terms.front()) : sum_of("latency", std::move(terms));
  tree.name = "latency";
  check_consistent(tree);
  return tree;
}

ServePoint point_of(const ServePlan& plan, std::int64_t sequences) {
  return {plan.workload.mean_prompt_tokens(), plan.workload.mean_output_tokens(), sequences, plan.step};
}

}  // namespace

std::vector<std::int64_t> micro_batch_counts(std::int64_t batch, const StepLimits& step) {
  std::vector<std::int64_t> counts;
  for (std::int64_t count = 1; count <= batch; count *= 2)
    if (sequences_per_step(batch, count) <= step.max_sequences) counts.push_back(count);
  if (counts.empty()) counts.push_back(batch);
  return counts;
}

std::int64_t sequences_per_step(std::int64_t batch, std::int64_t micro_batches) {
  return (batch + micro_batches - 1) / micro_batches;
}

double cycle_s(const ServeForm& form, double latency_s, double load_s, std::int64_t in_flight) {
  return form.pipeline_always_full() ? load_s : std::max(load_s, latency_s / static_cast<double>(in_flight));
}

ServeCost price_serve(const ServePlan& plan, const CostOptions& options) {
  Pricing pricing(plan);
  ServeCost cost;
  const auto form_of = [&](std::int64_t sequences) {
    return make_form(options, plan.cluster, plan.model.arch, point_of(plan, sequences));
  };
  std::unique_ptr<ServeForm> form = form_of(1);
  const auto full = form->pipeline_always_full();
  cost.batch =
      full ? static_cast<std::int64_t>(form->requests_per_job())
           : static_cast<std::int64_t>(setting(options, "motley.batch",
                                               static_cast<double>(std::max<std::int64_t>(1, plan.predicted.batch))));
  std::vector<std::int64_t> counts = full ? std::vector<std::int64_t>{1} : micro_batch_counts(cost.batch, plan.step);
  if (const double fixed = setting(options, "motley.micro_batches", 0); fixed > 0)
    counts = {std::min(cost.batch, static_cast<std::int64_t>(fixed))};

  std::int64_t best = 0;
  for (const std::int64_t count : counts) {
    const auto candidate = full ? nullptr : form_of(sequences_per_step(cost.batch, count));
    const double rate = pricing.price(candidate ? *candidate : *form, cost.batch);
    if (rate <= cost.requests_per_s * (1 + 1e-12)) continue;
    cost.requests_per_s = rate;
    best = count;
  }
  if (!full) form = form_of(sequences_per_step(cost.batch, best));
  cost.requests_per_s = pricing.price(*form, cost.batch);
  cost.tokens_per_s = cost.requests_per_s * plan.workload.mean_output_tokens();

  const double decode_steps = std::max(0.0, plan.workload.mean_output_tokens() - 1);
  for (const auto& priced : pricing.routes()) {
    RouteCost route{.route = priced.route->id, .first_token_s = priced.latency.prefill_s, .micro_batches = best};
    route.latency_s = loaded_latency(*form, priced, cost.batch);
    route.bottleneck_s = priced.busiest_s;
    route.per_token_s = decode_steps > 0 ? (route.latency_s - route.first_token_s) / decode_steps : 0;
    route.requests_per_s = priced.share * cost.requests_per_s;
    cost.latency_s += priced.share * route.latency_s;
    cost.bottleneck_s = std::max(cost.bottleneck_s, route.bottleneck_s);
    cost.routes.push_back(std::move(route));
  }
  cost.tree = explain(pricing, *form, cost.batch);
  return cost;
}

double deadline_excess(const Workload& workload, const RouteCost& route) {
  double worst = 0;
  const auto check = [&](double seconds, double deadline_s) {
    if (deadline_s > 0) worst = std::max(worst, seconds / deadline_s - 1);
  };
  const double mean_prompt = workload.mean_prompt_tokens();
  for (const auto& request : workload.classes) {
    // Prefill is near enough proportional to the prompt.
    const double first_token_s = route.first_token_s * (mean_prompt > 0 ? request.prompt_tokens.mean / mean_prompt : 1);
    check(first_token_s, request.deadline.first_token_s);
    check(route.per_token_s, request.deadline.per_token_s);
    check(first_token_s + route.per_token_s * std::max(0.0, request.output_tokens.mean - 1), request.deadline.total_s);
  }
  return worst;
}

}  // namespace motley
