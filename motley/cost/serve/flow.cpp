#include "motley/cost/serve/flow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/cost/serve/hand_over.hpp"
#include "motley/cost/serve/pass.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/cost/serve/stage_group.hpp"
#include "motley/solve/flow.hpp"

namespace motley {

double tokens_through(const Workload& workload) {
  return workload.mean_prompt_tokens() - workload.mean_cached_tokens() +
         std::max(0.0, workload.mean_output_tokens() - 1);
}

double part_seen(const Workload& workload, StageRole role) {
  if (role == StageRole::any) return 1;
  const double prompt = (workload.mean_prompt_tokens() - workload.mean_cached_tokens()) / tokens_through(workload);
  return role == StageRole::prefill ? prompt : 1 - prompt;
}

TokenRates::TokenRates(const Cluster& cluster, const Model& model, const Workload& workload, const Profile& profile,
                       const StepLimits& step, const CostOptions& cost)
    : cluster_(cluster),
      arch_(model.arch),
      workload_(workload),
      profile_(profile),
      step_(step),
      options_(with_gamma(cost, profile, model.name)),
      cost_(options_, cluster, arch_) {}

const ServeForm& TokenRates::form(std::int64_t sequences, Phase phase, std::int64_t batches) {
  auto& form = forms_[{sequences, phase, batches}];
  if (!form)
    form = make_form(options_, cluster_, arch_,
                     {.prompt_tokens = workload_.mean_prompt_tokens(),
                      .output_tokens = workload_.mean_output_tokens(),
                      .sequences = sequences,
                      .step = step_limits(step_, batches),
                      .phase = phase,
                      .loaded = true,
                      .cached_tokens = workload_.mean_cached_tokens()});
  return *form;
}

double TokenRates::stage(const PathStage& stage, std::int64_t sequences, StageRole role) {
  if (stage.streamed == nullptr)
    if (const auto measured =
            measured_tokens_per_s(profile_, cluster_, stage.group->devices, std::llround(sum_of_layers(stage.layers))))
      return *measured;
  const Phase phase = role == StageRole::any       ? Phase::both
                      : role == StageRole::prefill ? Phase::prefill
                                                   : Phase::decode;
  const ServeForm& priced = form(sequences, phase, stage.streamed != nullptr ? stage.streamed->batches : 1);
  return part_seen(workload_, role) * tokens_through(workload_) * priced.requests_per_job() /
         price_stage(priced, stage).load_s;
}

double TokenRates::hidden_bytes(const TensorGroup& group) const { return cost_.activation_bytes(group, 1); }

double TokenRates::link(const TensorGroup& from, const TensorGroup& to) const {
  const double token_bytes = cost_.crossing_bytes(from, 1);
  const double message_bytes = token_bytes * static_cast<double>(step_.max_tokens);
  double most = 0;
  for (const int a : from.devices)
    for (const int b : to.devices) {
      const MeasuredLink measured = measured_link(profile_, cluster_, a, b);
      const double rate = measured.tokens ? measured.tokens->tokens_per_s
                          : measured.rate ? bytes_per_s(*measured.rate, message_bytes) / token_bytes
                                          : hop_speed(cluster_, a, b).bandwidth_bytes_per_s / token_bytes;
      most = std::max(most, rate);
    }
  return most;
}

namespace {

struct PlanStage {
  TensorGroup group;
  double capacity = 0;
  double share = 0;  // of all tokens that pass the layers
};

struct PlanLink {
  std::string name;
  double capacity = 0;
  double share = 0;
};

class PlanRates {
 public:
  PlanRates(const ServePlan& plan, const CostOptions& options)
      : plan_(plan), rates_(plan.cluster, plan.model, plan.workload, plan.profile, plan.step, options) {
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      index_[plan.stages[i].id] = static_cast<int>(i);
      stages_.push_back({.group = stage_group(plan, plan.stages[i])});
    }
    const std::vector<std::int64_t> sequences = sequences_per_stage(price_serve(plan, options));
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const Stage& stage = plan.stages[i];
      const std::optional<StreamedStage> streamed =
          stage.offload ? std::optional(streamed_stage(plan, stage)) : std::nullopt;
      stages_[i].capacity = rates_.stage({.group = &stages_[i].group,
                                          .ends = {stage.embedding, stage.head},
                                          .layers = layer_counts(plan.model.arch, stage.layers),
                                          .streamed = streamed ? &*streamed : nullptr},
                                         sequences[i], stage.role);
    }
    add_shares();
  }

  PlanFlow flow() const {
    PlanFlow result;
    maximise(result);
    at_weights(result);
    return result;
  }

 private:
  // Of the largest batch among the routes through a stage.
  std::vector<std::int64_t> sequences_per_stage(const ServeCost& cost) const {
    std::vector<std::int64_t> sequences(stages_.size(), 1);
    for (std::size_t r = 0; r < plan_.routes.size(); ++r)
      for (const auto& hop : plan_.routes[r].path) {
        std::int64_t& most = sequences[index_.at(hop.stage)];
        most = std::max(most, sequences_per_step(cost.routes[r].batch, cost.routes[r].micro_batches));
      }
    return sequences;
  }

  const std::string& machine_of(const TensorGroup& group) const {
    return plan_.cluster.machines[plan_.cluster.devices[group.devices.front()].machine].name;
  }

  void add_shares() {
    double weights = 0;
    for (const auto& route : plan_.routes) weights += route.weight;
    std::map<std::pair<std::string, std::string>, std::size_t> between_machines;
    for (const auto& route : plan_.routes) {
      const double share = route.weight / weights;
      for (std::size_t hop = 0; hop < route.path.size(); ++hop) {
        const int stage = index_.at(route.path[hop].stage);
        const double seen = share * part_seen(plan_.workload, plan_.stages[stage].role);
        stages_[stage].share += seen;
        if (hop + 1 == route.path.size()) break;
        const int next = index_.at(route.path[hop + 1].stage);
        const auto [entry, added] = hop_links_.try_emplace({stage, next}, hop_links_.size());
        if (added) add_link(stage, next, route.path[hop].activation_type, between_machines);
        for (const std::size_t link : links_of_hop_[entry->second]) links_[link].share += seen;
      }
      // Keys and values count as that many hidden states.
      for (const KvMove& move : kv_moves(plan_, route)) {
        const int from = index_.at(route.path[move.from].stage), to = index_.at(route.path[move.to].stage);
        const double hidden_states = move.bytes / rates_.hidden_bytes(stages_[from].group);
        links_[link_of(from, to, {}, between_machines)].share += share * hidden_states / tokens_through(plan_.workload);
      }
    }
  }

  // Everything from one machine to another takes one way, as in the simulator; inside a machine every pair has its own.
  void add_link(int from, int to, std::optional<DType> sent_in,
                std::map<std::pair<std::string, std::string>, std::size_t>& between_machines) {
    const bool hands_over =
        plan_.stages[from].role == StageRole::prefill && plan_.stages[to].role != StageRole::prefill;
    if (hands_over) {  // keys and values go there, no hidden states
      hop_capacity_.push_back(FlowNetwork::unlimited);
      links_of_hop_.emplace_back();
      return;
    }
    hop_capacity_.push_back(capacity_of(from, to, sent_in));
    links_of_hop_.push_back({link_of(from, to, sent_in, between_machines)});
  }

  double capacity_of(int from, int to, std::optional<DType> sent_in) const {
    TensorGroup sender = stages_[from].group;
    sender.sends_in = sent_in;
    return rates_.link(sender, stages_[to].group);
  }

  std::size_t link_of(int from, int to, std::optional<DType> sent_in,
                      std::map<std::pair<std::string, std::string>, std::size_t>& between_machines) {
    const double capacity = capacity_of(from, to, sent_in);
    const std::string &here = machine_of(stages_[from].group), &there = machine_of(stages_[to].group);
    const auto pair = std::pair(here, there);
    const std::string name = fmt::format("{} > {}", plan_.stages[from].id, plan_.stages[to].id);
    if (const auto found = between_machines.find(pair); here != there && found != between_machines.end()) {
      PlanLink& shared = links_[found->second];
      if (shared.name != name) shared.name = fmt::format("{} > {}", here, there);
      shared.capacity = std::max(shared.capacity, capacity);
      return found->second;
    }
    const auto named = [&](const PlanLink& link) { return link.name == name; };
    if (const auto known = std::find_if(links_.begin(), links_.end(), named); here == there && known != links_.end())
      return static_cast<std::size_t>(known - links_.begin());
    between_machines[pair] = links_.size();
    links_.push_back({name, capacity, 0});
    return links_.size() - 1;
  }

  // The flow counts all tokens of a request; a stage of one phase sees a part of them.
  double for_all(double tokens_per_s, int stage) const {
    const double part = part_seen(plan_.workload, plan_.stages[stage].role);
    return part > 0 ? tokens_per_s / part : FlowNetwork::unlimited;
  }

  void maximise(PlanFlow& result) const {
    double total = 0;
    for (const auto& stage : stages_) total += stage.capacity;
    const int count = static_cast<int>(stages_.size()), source = 2 * count, sink = source + 1;
    FlowNetwork network(2 * count + 2, source, sink, total * 0x1p-44);
    std::map<int, std::string> names;
    for (int i = 0; i < count; ++i)
      names[network.add_edge(2 * i, 2 * i + 1, for_all(stages_[i].capacity, i))] = plan_.stages[i].id;
    std::set<int> first, last;
    for (const auto& route : plan_.routes) {
      first.insert(index_.at(route.path.front().stage));
      last.insert(index_.at(route.path.back().stage));
    }
    for (const int stage : first) network.add_edge(source, 2 * stage, FlowNetwork::unlimited);
    for (const int stage : last) network.add_edge(2 * stage + 1, sink, FlowNetwork::unlimited);
    for (const auto& [hop, number] : hop_links_)
      names[network.add_edge(2 * hop.first + 1, 2 * hop.second, for_all(hop_capacity_[number], hop.first))] =
          fmt::format("{} > {}", plan_.stages[hop.first].id, plan_.stages[hop.second].id);
    result.most_tokens_per_s = network.maximise();
    for (const int edge : network.min_cut()) result.cut.push_back(names.at(edge));
  }

  void at_weights(PlanFlow& result) const {
    double rate = std::numeric_limits<double>::infinity();
    const auto limit = [&](const std::string& name, double capacity, double share) {
      if (share <= 0 || capacity / share >= rate) return;
      rate = capacity / share;
      result.bottleneck = name;
    };
    for (std::size_t i = 0; i < stages_.size(); ++i) limit(plan_.stages[i].id, stages_[i].capacity, stages_[i].share);
    for (const auto& link : links_) limit(link.name, link.capacity, link.share);
    result.tokens_per_s = rate;
    result.requests_per_s = rate / tokens_through(plan_.workload);
    result.output_tokens_per_s = result.requests_per_s * plan_.workload.mean_output_tokens();
    for (std::size_t i = 0; i < stages_.size(); ++i)
      result.stages.push_back({plan_.stages[i].id, stages_[i].capacity, rate * stages_[i].share});
    for (const auto& link : links_) result.links.push_back({link.name, link.capacity, rate * link.share});
  }

  const ServePlan& plan_;
  TokenRates rates_;
  std::map<std::string, int> index_;
  std::vector<PlanStage> stages_;
  std::vector<PlanLink> links_;
  std::map<std::pair<int, int>, std::size_t> hop_links_;  // hops by stages
  std::vector<double> hop_capacity_;
  std::vector<std::vector<std::size_t>> links_of_hop_;
};

}  // namespace

PlanFlow plan_flow(const ServePlan& plan, const CostOptions& options) { return PlanRates(plan, options).flow(); }

}  // namespace motley
