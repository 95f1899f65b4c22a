#include "motley/cost/serve/serve_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "motley/base/rounding.hpp"
#include "motley/base/units.hpp"
#include "motley/cost/serve/hand_over.hpp"
#include "motley/cost/serve/pass.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/cost/serve/stage_group.hpp"

namespace motley {
namespace {

// Hops that a request passes together: all of a route, or those before and those after the hand-over to decoding.
struct RoutePart {
  std::size_t first_hop = 0, hops = 0;
  std::unique_ptr<ServeForm> form = {};  // at the route's batch
  double more_chunks_s = 0;              // of the prompt of a request that is alone
};

struct PricedRoute {
  const Route* route = nullptr;
  double share = 1;  // of all requests
  std::int64_t batch = 1;
  std::int64_t micro_batches = 1;
  std::vector<RoutePart> parts = {};
  PhaseSeconds latency = {};       // of a request that waits for no other
  double first_token_s = 0;        // of a request alone
  std::vector<double> loads = {};  // of every stage on its path
  std::vector<KvMove> moves = {};  // from prefill to decode
  double moving_s = 0;
  double busiest_s = 0;  // busy time of its busiest stage or link per request of this route, other routes included

  const ServeForm& form() const { return *parts.back().form; }
  // Before a request is one of the batch: those in flight are decoding where others prefill.
  double before_s() const { return parts.size() > 1 ? first_token_s + moving_s : 0; }
  double alone_s() const { return latency.sum() + moving_s; }
  double cycle() const { return cycle_s(form(), alone_s() - before_s(), busiest_s, batch); }
  double requests_per_s() const { return form().requests_per_job() / cycle(); }
  double loaded_latency_s() const {
    return form().pipeline_always_full() ? alone_s() : before_s() + cycle() * static_cast<double>(batch);
  }
};

// One pricing of a whole plan. Routes are first priced as if each were alone, which settles their micro-batches; then
// those that share stages share their time.
class Pricing {
 public:
  Pricing(const ServePlan& plan, const CostOptions& options)
      : plan_(plan), options_(with_gamma(options, plan.profile, plan.model.name)) {
    for (const auto& stage : plan.stages) {
      groups_.emplace(std::pair(stage.id, std::optional<DType>()), stage_group(plan, stage));
      if (stage.offload) streamed_.emplace(stage.id, streamed_stage(plan, stage));
    }
    for (const auto& route : plan.routes)
      for (const auto& hop : route.path) {
        if (!hop.activation_type) continue;
        TensorGroup sender = groups_.at({plan.stage(hop.stage).id, std::nullopt});
        sender.sends_in = hop.activation_type;
        groups_.emplace(std::pair(hop.stage, hop.activation_type), std::move(sender));
      }
    double weights = 0;
    for (const auto& route : plan.routes) weights += route.weight;
    if (plan.routes.empty() || !(weights > 0))
      throw input_error("the plan has no route with a positive weight",
                        "run `motley verify PLAN` to list all violations, or make a plan with `motley plan serve`");
    for (const auto& route : plan.routes)
      if (route.path.empty())
        throw input_error(fmt::format("route \"{}\" is empty", route.id),
                          "give it a `path` of stages, the first with the embedding, the last with the head");
    const std::vector<std::int64_t> batches = batches_in_memory();
    for (std::size_t i = 0; i < plan.routes.size(); ++i) {
      const Route& route = plan.routes[i];
      routes_.push_back(price_alone(route, batches[i]));
      routes_.back().share = route.weight / weights;
    }
    share_stages();
  }

  const TensorGroup& group(const Hop& hop) const {
    return groups_.at({plan_.stage(hop.stage).id, hop.activation_type});
  }
  const StreamedStage* streamed(const Hop& hop) const {
    const auto found = streamed_.find(hop.stage);
    return found == streamed_.end() ? nullptr : &found->second;
  }
  LayerCounts layers(const Hop& hop) const { return layer_counts(plan_.model.arch, hop.layers); }
  bool has_driver() const { return plan_.cluster.description.driver.has_value(); }
  StageEnds ends(const Hop& hop) const { return {plan_.stage(hop.stage).embedding, plan_.stage(hop.stage).head}; }
  const std::vector<PricedRoute>& routes() const { return routes_; }

  // At the given weights: until the first route can take no more.
  double requests_per_s() const {
    double rate = std::numeric_limits<double>::infinity();
    for (const auto& priced : routes_)
      if (priced.share > 0) rate = std::min(rate, priced.requests_per_s() / priced.share);
    return rate;
  }

 private:
  // The parts of a route, priced for this many sequences in a decode step.
  std::vector<RoutePart> parts_of(const Route& route, std::optional<std::size_t> hand_over, ServePoint point) const {
    const auto part = [&](std::size_t first_hop, std::size_t hops, Phase phase) {
      point.phase = phase;
      return RoutePart{first_hop, hops, make_form(options_, plan_.cluster, plan_.model.arch, point)};
    };
    const std::size_t all = route.path.size();
    std::vector<RoutePart> parts;
    if (hand_over) {
      parts.push_back(part(0, *hand_over, Phase::prefill));
      parts.push_back(part(*hand_over, all - *hand_over, Phase::decode));
    } else {
      parts.push_back(part(0, all, Phase::both));
    }
    return parts;
  }

  // The routes' batches, each at most its part of what the fullest stage on its way has KV room for. Those who prefill
  // for others hand on what they hold.
  std::vector<std::int64_t> batches_in_memory() const {
    const ServePoint point{plan_.workload.mean_prompt_tokens(), plan_.workload.mean_output_tokens(), 1, plan_.step};
    const auto first_kept = [&](const Route& route) { return hand_over_hop(plan_, route).value_or(0); };
    std::map<std::string, double> wanted;  // requests
    for (const auto& route : plan_.routes)
      for (std::size_t hop = first_kept(route); hop < route.path.size(); ++hop)
        wanted[route.path[hop].stage] += static_cast<double>(std::max<std::int64_t>(1, route.batch));
    std::vector<std::int64_t> batches;
    for (const auto& route : plan_.routes) {
      double part = 1;
      for (std::size_t hop = first_kept(route); hop < route.path.size(); ++hop) {
        const Stage& stage = plan_.stage(route.path[hop].stage);
        double requests = requests_in(point, static_cast<double>(stage.kv_tokens));
        if (stage.kv_sequences > 0) requests = std::min(requests, static_cast<double>(stage.kv_sequences));
        part = std::min(part, requests / wanted[stage.id]);
      }
      const double fits = std::floor(part * static_cast<double>(route.batch) + 1e-9);
      batches.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(fits)));
    }
    return batches;
  }

  PricedRoute price_alone(const Route& route, std::int64_t most_batch) const {
    const std::optional<std::size_t> hand_over = hand_over_hop(plan_, route);
    const std::vector<KvMove> moves = hand_over ? kv_moves(plan_, route) : std::vector<KvMove>();
    const StepLimits step = step_limits(plan_.step, batches_on(plan_, route));
    const ServePoint one{.prompt_tokens = plan_.workload.mean_prompt_tokens(),
                         .output_tokens = plan_.workload.mean_output_tokens(),
                         .step = step,
                         .cached_tokens = plan_.workload.mean_cached_tokens()};
    const auto priced_at = [&](std::int64_t batch, std::int64_t micro_batches, const ServePoint& point) {
      PricedRoute priced{.route = &route, .batch = batch, .micro_batches = micro_batches, .moves = moves};
      priced.parts = parts_of(route, hand_over, point);
      price_parts(priced);
      return priced;
    };
    PricedRoute best;
    at_best_chunk(one, [&](const ServePoint& point) {
      PricedRoute alone = priced_at(1, 1, point);
      const double seconds = alone.latency.prefill_s;
      if (best.route == nullptr || seconds < best.latency.prefill_s) best = std::move(alone);
      return seconds;
    });
    const double first_token_s = best.first_token_s = best.latency.prefill_s;
    if (best.form().pipeline_always_full()) {
      best.batch = static_cast<std::int64_t>(best.form().requests_per_job());
      return best;
    }
    const auto batch = static_cast<std::int64_t>(setting(options_, "motley.batch", static_cast<double>(most_batch)));
    std::vector<std::int64_t> counts = micro_batch_counts(batch, step);
    if (const double fixed = setting(options_, "motley.micro_batches", 0); fixed > 0)
      counts = {std::min(batch, static_cast<std::int64_t>(fixed))};
    for (const std::int64_t count : counts) {
      if (batch == 1) break;
      ServePoint point = one;
      point.sequences = sequences_per_step(batch, count);
      point.loaded = true;
      PricedRoute priced = priced_at(batch, count, point);
      priced.first_token_s = first_token_s;
      if (count == counts.front() || priced.requests_per_s() > best.requests_per_s() * (1 + 1e-12))
        best = std::move(priced);
    }
    return best;
  }

  void price_parts(PricedRoute& priced) const {
    for (auto& part : priced.parts) {
      std::vector<PathStage> path;
      for (std::size_t i = 0; i < part.hops; ++i) {
        const Hop& hop = priced.route->path[part.first_hop + i];
        path.push_back({&group(hop), ends(hop), layers(hop), streamed(hop)});
      }
      const PathPrice price = price_path(*part.form, path);
      if (priced.batch == 1) part.more_chunks_s = price.more_chunks_s;
      priced.latency = priced.latency + price.latency + PhaseSeconds{part.more_chunks_s, 0};
      priced.loads.insert(priced.loads.end(), price.loads.begin(), price.loads.end());
    }
    priced.moving_s = seconds_of(priced.moves);
    priced.busiest_s = *std::max_element(priced.loads.begin(), priced.loads.end());
    for (const auto& [link, seconds] : link_loads(priced.moves)) priced.busiest_s = std::max(priced.busiest_s, seconds);
  }

  void share_stages() {
    std::map<std::string, double> busy;  // per request of the whole deployment
    std::map<KvLink, double> busy_links;
    for (const auto& priced : routes_) {
      for (std::size_t i = 0; i < priced.loads.size(); ++i)
        busy[priced.route->path[i].stage] += priced.share * priced.loads[i];
      for (const auto& [link, seconds] : link_loads(priced.moves)) busy_links[link] += priced.share * seconds;
    }
    for (auto& priced : routes_) {
      if (priced.share <= 0) continue;
      priced.busiest_s = 0;
      const auto consider = [&](double seconds) {
        priced.busiest_s = std::max(priced.busiest_s, seconds / priced.share);
      };
      for (const auto& hop : priced.route->path) consider(busy[hop.stage]);
      for (const auto& move : priced.moves) consider(busy_links[move.link]);
    }
  }

  const ServePlan& plan_;
  const CostOptions options_;
  std::map<std::pair<std::string, std::optional<DType>>, TensorGroup> groups_;  // by stage and what it sends in
  std::map<std::string, StreamedStage> streamed_;                               // by stage: those that offload
  std::vector<PricedRoute> routes_;
};

Term scaled(Term term, double factor) {
  term.value *= factor;
  for (auto& child : term.children) child = scaled(std::move(child), factor);
  return term;
}

void explain_part(const Pricing& pricing, const PricedRoute& priced, const RoutePart& part, std::vector<Term>& terms) {
  const std::vector<Hop>& path = priced.route->path;
  const std::size_t end = part.first_hop + part.hops;
  for (std::size_t i = part.first_hop; i < end; ++i) {
    if (const StreamedStage* streamed = pricing.streamed(path[i]))
      terms.push_back(
          part.form->explain_streamed(pricing.group(path[i]), pricing.ends(path[i]), *streamed, path[i].stage));
    else
      terms.push_back(part.form->explain_stage(pricing.group(path[i]), pricing.ends(path[i]), pricing.layers(path[i]),
                                               path[i].stage));
    if (i + 1 < end)
      terms.push_back(part.form->explain_hop(pricing.group(path[i]), pricing.group(path[i + 1]),
                                             fmt::format("{} > {}", path[i].stage, path[i + 1].stage)));
  }
  if (part.more_chunks_s > 0)
    terms.push_back(leaf("chunks after the first", part.more_chunks_s,
                         fmt::format("{:g} times the busiest stage's for one of them", part.form->chunks() - 1)));
  const double seconds =
      part.form->token_return(pricing.group(path[end - 1]), pricing.group(path[part.first_hop])).sum();
  if (seconds > 0)
    terms.push_back(leaf("token return", seconds,
                         pricing.has_driver()
                             ? "from the last stage to the driver, and from it to the first, every step"
                             : "from the last stage to the first, every step"));
}

Term explain_route(const Pricing& pricing, const PricedRoute& priced) {
  std::vector<Term> terms;
  for (const auto& part : priced.parts) {
    if (part.first_hop > 0) {
      double bytes = 0;
      for (const auto& move : priced.moves) bytes += move.bytes;
      terms.push_back(
          leaf("keys and values", priced.moving_s,
               fmt::format("{} of a prompt, from the stages that prefill to those that decode", human_bytes(bytes))));
    }
    explain_part(pricing, priced, part, terms);
  }
  const double waiting = priced.loaded_latency_s() - priced.alone_s();
  if (waiting > 1e-12 * priced.alone_s())
    terms.push_back(leaf("waiting", waiting,
                         fmt::format("{} requests in flight, {} each at the busiest stage", priced.batch,
                                     human_seconds(priced.busiest_s))));
  return sum_of(priced.route->id, std::move(terms));
}

Term explain(const Pricing& pricing) {
  std::vector<Term> terms;
  for (const auto& priced : pricing.routes()) {
    if (priced.share <= 0) continue;
    Term route = scaled(explain_route(pricing, priced), priced.share);
    if (priced.share < 1) route.note = fmt::format("{:.1f} % of the requests", 100 * priced.share);
    terms.push_back(std::move(route));
  }
  Term tree = terms.size() == 1 ? std::move(terms.front()) : sum_of("latency", std::move(terms));
  tree.name = "latency";
  check_consistent(tree);
  return tree;
}

}  // namespace

ServePoint at_best_chunk(ServePoint point, const std::function<double(const ServePoint&)>& first_token_s) {
  constexpr double least_tokens = 16, hopeless = 1.25;  // of the least time
  ServePoint best = point;
  double least_s = std::numeric_limits<double>::infinity();
  double chunks = std::max(1.0, std::ceil(point.computed_tokens() / static_cast<double>(point.step.max_tokens)));
  do {
    point.chunk_tokens = std::ceil(point.computed_tokens() / chunks);
    const double seconds = first_token_s(point);
    if (seconds > hopeless * least_s) break;
    if (seconds < least_s) {
      least_s = seconds;
      best = point;
    }
    chunks = std::max(chunks + 1, std::floor(chunks * 1.25));
  } while (point.computed_tokens() / chunks >= least_tokens);
  return best;
}

std::vector<std::int64_t> batch_grid(std::int64_t most) {
  std::vector<std::int64_t> grid;
  for (std::int64_t power = 1; power <= most; power *= 2) {
    grid.push_back(power);
    if (power > 1 && power * 3 / 2 <= most) grid.push_back(power * 3 / 2);
  }
  return grid;
}

std::vector<std::int64_t> micro_batch_counts(std::int64_t batch, const StepLimits& step) {
  std::vector<std::int64_t> counts;
  for (std::int64_t count = 1; count <= batch; count *= 2)
    if (sequences_per_step(batch, count) <= step.max_sequences) counts.push_back(count);
  if (counts.empty()) counts.push_back(batch);
  return counts;
}

std::int64_t sequences_per_step(std::int64_t batch, std::int64_t micro_batches) {
  return ceil_div(batch, micro_batches);
}

double cycle_s(const ServeForm& form, double latency_s, double load_s, std::int64_t in_flight) {
  return form.pipeline_always_full() ? load_s : std::max(load_s, latency_s / static_cast<double>(in_flight));
}

ServeCost price_serve(const ServePlan& plan, const CostOptions& options) {
  const Pricing pricing(plan, options);
  ServeCost cost;
  cost.requests_per_s = pricing.requests_per_s();
  cost.tokens_per_s = cost.requests_per_s * plan.workload.mean_output_tokens();
  const double decode_steps = std::max(0.0, plan.workload.mean_output_tokens() - 1);
  for (const auto& priced : pricing.routes()) {
    RouteCost route{.route = priced.route->id,
                    .batch = priced.batch,
                    .latency_s = priced.loaded_latency_s(),
                    .bottleneck_s = priced.busiest_s,
                    .first_token_s = priced.first_token_s,
                    .requests_per_s = priced.share * cost.requests_per_s,
                    .micro_batches = priced.micro_batches};
    route.per_token_s = decode_steps > 0 ? (route.latency_s - route.first_token_s) / decode_steps : 0;
    cost.latency_s += priced.share * route.latency_s;
    cost.bottleneck_s = std::max(cost.bottleneck_s, route.bottleneck_s);
    cost.routes.push_back(std::move(route));
  }
  cost.tree = explain(pricing);
  return cost;
}

double first_token_of(const Workload& workload, const RequestClass& request, const RouteCost& route) {
  const double mean = workload.mean_prompt_tokens() - workload.mean_cached_tokens();
  return route.first_token_s * (mean > 0 ? request.computed_prompt_tokens() / mean : 1);
}

double deadline_excess(const Workload& workload, const RouteCost& route) {
  double worst = 0;
  const auto check = [&](double seconds, double deadline_s) {
    if (deadline_s > 0) worst = std::max(worst, seconds / deadline_s - 1);
  };
  for (const auto& request : workload.classes) {
    const double first_token_s = first_token_of(workload, request, route);
    check(first_token_s, request.deadline.first_token_s);
    check(route.per_token_s, request.deadline.per_token_s);
    check(first_token_s + route.per_token_s * std::max(0.0, request.output_tokens.mean - 1), request.deadline.total_s);
  }
  return worst;
}

}  // namespace motley
