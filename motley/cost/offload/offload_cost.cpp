#include "motley/cost/offload/offload_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace motley {
namespace {

ResourceSeconds mean_of(const ResourceSeconds& a, const ResourceSeconds& b, double share_of_b) {
  ResourceSeconds mean;
  for (std::size_t r = 0; r < resource_count; ++r) mean[r] = (1 - share_of_b) * a[r] + share_of_b * b[r];
  return mean;
}

PassSeconds mean_of(const PassSeconds& a, const PassSeconds& b, double share_of_b) {
  PassSeconds mean{.fixed = mean_of(a.fixed, b.fixed, share_of_b)};
  for (std::size_t tier = 0; tier < mean.weights.size(); ++tier) {
    mean.weights[tier] = mean_of(a.weights[tier], b.weights[tier], share_of_b);
    mean.kv[tier] = mean_of(a.kv[tier], b.kv[tier], share_of_b);
    mean.activations[tier] = mean_of(a.activations[tier], b.activations[tier], share_of_b);
  }
  return mean;
}

}  // namespace

OffloadCost::OffloadCost(const CostOptions& options, const Cluster& cluster, const Model& model, int device,
                         DType weight_type, DType kv_type, double prompt_tokens, double output_tokens)
    : kinds_(layer_counts(model.arch, {0, model.arch.layers})),
      step_(options, cluster, model.arch),
      group_(make_group(cluster, model.arch, {device}, {}, weight_type, kv_type, {})),
      tiers_(tiers_of(cluster, device)),
      prompt_tokens_(prompt_tokens),
      output_tokens_(std::max(1.0, output_tokens)) {}

// Prompts come in as fast as requests leave: this many tokens per pass, where each prompt takes one pass. Below that,
// and down to what a micro-batch's decodes leave, a request waits longer for its prompt but every pass is smaller.
std::vector<std::int64_t> OffloadCost::chunks(std::int64_t batch) const {
  const auto sequences = static_cast<double>(batch);
  const auto whole = [](double tokens) { return std::max<std::int64_t>(1, std::llround(std::ceil(tokens))); };
  const double all_at_once = sequences * prompt_tokens_ / output_tokens_;
  if (all_at_once >= prompt_tokens_) return {whole(all_at_once)};
  constexpr double least = 16;
  const double decodes = output_tokens_ - 1;
  std::vector<std::int64_t> found;
  for (double chunk = std::max(least, decodes > 0 ? prompt_tokens_ * (sequences - 1) / decodes : prompt_tokens_);
       chunk < prompt_tokens_; chunk *= 2)
    found.push_back(whole(chunk));
  found.push_back(whole(prompt_tokens_));
  return found;
}

PassLoad OffloadCost::load(const PassShape& shape) const {
  const auto batch = static_cast<double>(shape.batch), chunk = static_cast<double>(shape.prompt_chunk);
  const double decodes = output_tokens_ - 1, prompt_passes = std::max(1.0, prompt_tokens_ / chunk);
  PassLoad load;
  load.passes = decodes + prompt_passes;
  load.finished = batch / load.passes;
  if (prompt_tokens_ > 0) load.finished = std::min(load.finished, chunk / prompt_tokens_);
  load.decodes = load.finished * decodes;
  load.prompts = load.finished * prompt_tokens_;
  load.chunks = load.finished * prompt_passes;
  load.step = step_with(load, load.chunks);
  return load;
}

StepLoad OffloadCost::step_with(const PassLoad& load, double chunks) const {
  const double context = prompt_tokens_ + output_tokens_ / 2, half = prompt_tokens_ / 2;
  const double decodes = std::max(0.0, load.decodes + load.chunks - chunks);
  const double share = load.chunks > 0 ? chunks / load.chunks : 0;  // of the prompts in a mean micro-batch
  const double prompts = share * load.prompts, tokens = decodes + prompts;
  return step_.windowed({.tokens = tokens,
                         .context = tokens > 0 ? (decodes * context + prompts * half) / tokens : 0,
                         .cached = decodes * context + chunks * half,
                         .logits = decodes + share * load.finished},
                        decodes * step_.in_window(context) + chunks * step_.in_window(half));
}

// Chunks of prompts come whole. A micro-batch with one takes longer than a mean one where it computes and the others
// read, so both count by their shares.
PassSeconds OffloadCost::seconds(const PassShape& shape) const {
  const StreamedStage stage{
      .tiers = tiers_,
      .counts = {.weights = {.device = std::llround(sum_of_layers(kinds_))}, .kv = {}, .activations = {}},
      .batches = shape.batches,
      .cpu_attention = shape.cpu_attention,
      .kinds = kinds_};
  const PassLoad load = this->load(shape);
  const auto with = [&](double chunks) {
    return pass_seconds(step_, group_, {true, true}, stage, step_with(load, chunks), shape.batches);
  };
  const double fewer = std::floor(load.chunks), share = load.chunks - fewer;
  return share > 0 ? mean_of(with(fewer), with(fewer + 1), share) : with(fewer);
}

OffloadPrice OffloadCost::price(const PassShape& shape, const PassSeconds& seconds, const PlacedCounts& counts) const {
  OffloadPrice price{.seconds = seconds.of(counts)};
  price.binding = busiest(price.seconds);
  price.pass_s = price.seconds[static_cast<std::size_t>(price.binding)];
  const PassLoad load = this->load(shape);
  price.tokens_per_s = static_cast<double>(shape.batches) * load.finished * output_tokens_ / price.pass_s;
  price.latency_s = load.passes * price.pass_s;
  return price;
}

std::int64_t OffloadCost::kv_tokens(std::int64_t sequences, std::int64_t block_tokens) const {
  const ServePoint point{
      .prompt_tokens = prompt_tokens_, .output_tokens = output_tokens_, .step = {.block_tokens = block_tokens}};
  return kv_tokens_of(point, sequences);
}

PassShape shape_of(const OffloadPlan& plan) {
  return {plan.batch, plan.batches, std::max<std::int64_t>(1, plan.prompt_chunk), plan.cpu_attention};
}

PlacedCounts counts_of(const OffloadPlan& plan) {
  const std::int64_t layers = plan.model.arch.layers;
  return {counts_of(plan.weights, layers), counts_of(plan.kv, layers), counts_of(plan.activations, plan.batches)};
}

OffloadCost offload_cost(const OffloadPlan& plan, const CostOptions& options) {
  return {options,
          plan.cluster,
          plan.model,
          plan.cluster.find_device(plan.device),
          plan.weight_type,
          plan.kv_type,
          plan.workload.mean_prompt_tokens(),
          plan.workload.mean_output_tokens()};
}

OffloadPrice price_offload(const OffloadPlan& plan, const CostOptions& options) {
  const OffloadCost cost = offload_cost(plan, options);
  const PassShape shape = shape_of(plan);
  return cost.price(shape, cost.seconds(shape), counts_of(plan));
}

Term explain_offload(const OffloadPlan& plan, const CostOptions& options) {
  const OffloadCost cost = offload_cost(plan, options);
  const PassShape shape = shape_of(plan);
  const PassLoad load = cost.load(shape);
  return explain_pass(
      "a pass", cost.seconds(shape), counts_of(plan), 1,
      fmt::format("{} micro-batches of {} sequences", shape.batches, shape.batch),
      fmt::format("{:.1f} tokens per micro-batch, {:.1f} passes per request", load.step.tokens, load.passes));
}

}  // namespace motley
