// The steady token rate of a serving plan as a flow: through stages that each pass on a number of tokens per second,
// over links that do.
//
// Tokens are counted as they pass the layers: a request of s_in + s_out tokens sends s_in + s_out - 1 of them through
// every layer (the last one that comes out is not read again). docs/concepts/planner-placement.md.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/serve/step.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

double tokens_through(const Workload& workload);  // of a mean request
// Of those, the part that a stage of this role sees: prefill the prompt, decode the rest.
double part_seen(const Workload& workload, StageRole role);

// Tokens per second that stages and links pass on. Where the profile measured them, that; otherwise the closed form's
// steady rate (sending overlaps with computing) and the bandwidth.
class TokenRates {
 public:
  // All must outlive it.
  TokenRates(const Cluster& cluster, const Model& model, const Workload& workload, const Profile& profile,
             const StepLimits& step, const CostOptions& cost);

  // Tokens of its role, holding this many layers, with this many sequences in a decode step. Throws an input error
  // where the profile says that the group cannot hold them.
  double stage(const PathStage& stage, std::int64_t sequences, StageRole role = StageRole::any);
  double hidden_bytes(const TensorGroup& group) const;  // of a token
  // Hidden states, over the fastest pair of devices.
  double link(const TensorGroup& from, const TensorGroup& to) const;

 private:
  const ServeForm& form(std::int64_t sequences, Phase phase, std::int64_t batches);

  const Cluster& cluster_;
  const Architecture& arch_;
  const Workload& workload_;
  const Profile& profile_;
  StepLimits step_;
  CostOptions options_;
  StepCost cost_;
  // By sequences per step, and micro-batches of a pass.
  std::map<std::tuple<std::int64_t, Phase, std::int64_t>, std::unique_ptr<ServeForm>> forms_;
};

// A stage or a link, and what goes through it.
struct FlowPart {
  std::string name;  // "r0/s1"; "r0/s1 > r0/s2" between stages; "box > lab" where routes share machines' links
  double capacity_tokens_per_s = 0;
  double tokens_per_s = 0;
  double use() const { return tokens_per_s / capacity_tokens_per_s; }
};

struct PlanFlow {
  // The most that the plan's stages and links can carry, over any chain that its routes' hops make.
  double most_tokens_per_s = 0;
  std::vector<std::string> cut;  // the stages and links that limit it

  // With the requests divided by the routes' weights: until the first stage or link is full.
  double tokens_per_s = 0;
  double requests_per_s = 0;
  double output_tokens_per_s = 0;
  std::vector<FlowPart> stages;  // in the plan's order, at that rate
  std::vector<FlowPart> links;
  std::string bottleneck;  // its name
};

// A stage's rate is that of all layers it holds, also for routes that compute a part of them. Keys and values that
// prefill hands over to decode load the links at the routes' weights; `most_tokens_per_s` does not know them. Throws an
// input error as price_serve and TokenRates do.
PlanFlow plan_flow(const ServePlan& plan, const CostOptions& options);

}  // namespace motley
