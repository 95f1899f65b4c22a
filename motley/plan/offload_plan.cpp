#include "motley/plan/offload_plan.hpp"

#include <fmt/format.h>

#include <cmath>

namespace motley {
namespace {

constexpr std::string_view own_form = "motley";
constexpr const char* only_stage = "r0/s0";

bool is_published(const OffloadPlan& plan) { return !plan.search.cost.empty() && plan.search.cost != own_form; }

// Places of a serving plan of one stage as the keys of this kind.
std::string own_place(std::string place) {
  for (const std::string& prefix : {std::string("stages[0].offload."), std::string("stages[0].")})
    if (place.starts_with(prefix)) return place.substr(prefix.size());
  if (place == "stages[0]" || place == "stages[0].offload") return "plan";
  return place;
}

std::vector<Violation> check_policy(const OffloadPlan& plan) {
  std::vector<Violation> found;
  for (const auto& [name, shares] :
       {std::pair("weights", plan.weights), std::pair("kv", plan.kv), std::pair("activations", plan.activations)}) {
    const double sum = shares.device + shares.host + shares.disk;
    if (std::abs(sum - 1) > share_tolerance)
      found.push_back({name, fmt::format("the shares sum to {}, not to 1", sum), "let them sum to 1"});
  }
  return found;
}

ServePlan one_stage(const OffloadPlan& plan) {
  const Architecture& arch = plan.model.arch;
  ServePlan serve;
  serve.model = plan.model;
  serve.cluster = plan.cluster;
  serve.workload = plan.workload;
  serve.profile = plan.profile;
  serve.step = {
      .max_tokens = plan.batch + plan.prompt_chunk, .max_sequences = plan.batch, .block_tokens = plan.block_tokens};
  const LayerRange all{0, arch.layers};
  serve.stages = {{.id = only_stage,
                   .layers = all,
                   .devices = {plan.device},
                   .shares = {},
                   .embedding = true,
                   .head = true,
                   .kv_tokens = plan.kv_tokens,
                   .kv_sequences = has_states(arch) ? plan.batch * plan.batches : 0,
                   .weight_type = plan.weight_type,
                   .kv_type = plan.kv_type,
                   .offload = Offload{.batches = plan.batches,
                                      .weights = plan.weights,
                                      .kv = plan.kv,
                                      .activations = plan.activations,
                                      .cpu_attention = plan.cpu_attention}}};
  serve.routes = {{.id = "r0",
                   .path = {{.stage = only_stage, .layers = all}},
                   .batch = plan.batch * plan.batches,
                   .micro_batches = plan.batches}};
  serve.predicted.tokens_per_s = plan.predicted.tokens_per_s;
  serve.predicted.latency_s = plan.predicted.latency_s;
  serve.predicted.memory_bytes = plan.predicted.memory_bytes;
  serve.unused = plan.unused;
  serve.search = plan.search;
  return serve;
}

}  // namespace

ServePlan serving_plan(const OffloadPlan& plan) {
  ServePlan serve = one_stage(plan);
  place_layers(*serve.stages[0].offload, plan.model.arch.layers);
  return serve;
}

std::vector<Violation> verify(const OffloadPlan& plan) {
  std::vector<Violation> found = check_policy(plan);
  if (!found.empty() || is_published(plan)) return found;
  for (Violation& violation : verify(one_stage(plan))) {
    violation.place = own_place(std::move(violation.place));
    found.push_back(std::move(violation));
  }
  return found;
}

}  // namespace motley
