#include "motley/cost/offload/offload_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/units.hpp"

namespace motley {
namespace {

double& at(ResourceSeconds& seconds, Resource resource) { return seconds[static_cast<std::size_t>(resource)]; }

void add(ResourceSeconds& sum, const ResourceSeconds& seconds, std::int64_t count) {
  for (std::size_t r = 0; r < resource_count; ++r) sum[r] += static_cast<double>(count) * seconds[r];
}

}  // namespace

template <>
const std::vector<EnumName<Resource>>& enum_names<Resource>() {
  static const std::vector<EnumName<Resource>> names = {
      {Resource::device, "device"},     {Resource::processors, "processors"},   {Resource::upload, "upload"},
      {Resource::download, "download"}, {Resource::disk_read, "disk_read"},     {Resource::disk_write, "disk_write"},
      {Resource::disk, "disk"},         {Resource::host_memory, "host_memory"}, {Resource::waiting, "waiting"}};
  return names;
}

ResourceSeconds PassSeconds::of(const PlacedCounts& counts) const {
  ResourceSeconds sum = fixed;
  for (const auto& [units, homes] : {std::pair(&counts.weights, &weights), std::pair(&counts.kv, &kv),
                                     std::pair(&counts.activations, &activations)}) {
    add(sum, (*homes)[0], units->device);
    add(sum, (*homes)[1], units->host);
    add(sum, (*homes)[2], units->disk);
  }
  return sum;
}

OffloadCost::OffloadCost(const CostOptions& options, const Cluster& cluster, const Model& model, int device,
                         DType weight_type, DType kv_type, double prompt_tokens, double output_tokens)
    : arch_(model.arch),
      step_(options, cluster, model.arch),
      group_(make_group(cluster, model.arch, {device}, {}, weight_type, kv_type, {})),
      tiers_(tiers_of(cluster, device)),
      prompt_tokens_(prompt_tokens),
      output_tokens_(std::max(1.0, output_tokens)),
      layer_bytes_(static_cast<double>(group_.ranks.front().block_bytes)),
      kv_token_bytes_(group_.ranks.front().kv_bytes),
      hidden_bytes_(step_.activation_bytes(group_, 1)),
      attention_bytes_(hidden_bytes_ / static_cast<double>(arch_.hidden) *
                       static_cast<double>(arch_.heads * arch_.head_dim)) {}

// Prompts come in as fast as requests leave: so many tokens per pass, where each prompt takes one pass. Below that, and
// down to what a micro-batch's decodes leave, a request waits longer for its prompt but every pass is smaller.
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
  const double context = prompt_tokens_ + output_tokens_ / 2, half = prompt_tokens_ / 2;
  const double tokens = load.decodes + load.prompts;
  load.step = {.tokens = tokens,
               .context = tokens > 0 ? (load.decodes * context + load.prompts * half) / tokens : 0,
               .cached = load.decodes * step_.seen(context) + load.finished * prompt_passes * step_.seen(half),
               .logits = load.finished * output_tokens_};
  return load;
}

PassSeconds OffloadCost::seconds(const PassShape& shape) const {
  const PassLoad load = this->load(shape);
  const auto batches = static_cast<double>(shape.batches), layers = static_cast<double>(arch_.layers);
  const HostRates& host = tiers_.host;
  const Disk disk = tiers_.disk.value_or(Disk{});
  const auto per = [](double bytes, double rate) { return rate > 0 ? bytes / rate : 0; };
  PassSeconds pass;

  // Computing, but for attention, which depends on where keys and values are.
  const BlockTime block = step_.block_time(group_, load.step);
  const double layer_s = block.products.seconds() + block.elementwise_s + step_.layer_overhead_s(group_);
  const double once_s = layers * layer_s + step_.ends_s(group_, {true, true}, load.step);
  at(pass.fixed, Resource::device) = batches * once_s;
  at(pass.fixed, Resource::waiting) = batches * once_s;
  if (tiers_.is_processor)  // its memory is the host's
    at(pass.fixed, Resource::host_memory) = batches * per(layers * layer_bytes_, host.bandwidth_bytes_per_s);

  // Weights: one read per pass, whatever the number of micro-batches.
  const double copies = tiers_.is_processor ? 2 : 1;  // of host memory's bandwidth: a copy inside it reads and writes
  ResourceSeconds& from_host = pass.weights[1];
  at(from_host, Resource::upload) = per(layer_bytes_, host.upload_bytes_per_s);
  at(from_host, Resource::host_memory) = copies * per(layer_bytes_, host.bandwidth_bytes_per_s);
  if (tiers_.is_processor) {
    // A copy takes cores and bandwidth from computing.
    at(from_host, Resource::device) = at(from_host, Resource::waiting) = at(from_host, Resource::upload);
    // Without a stop in host memory both kinds share two buffers, in order.
    at(from_host, Resource::disk_read) = at(from_host, Resource::upload);
  }
  ResourceSeconds& from_disk = pass.weights[2];
  at(from_disk, Resource::disk_read) = per(layer_bytes_, disk.read_bytes_per_s);
  at(from_disk, Resource::disk) = per(layer_bytes_, disk.both_bytes_per_s);
  at(from_disk, Resource::host_memory) = per(layer_bytes_, host.bandwidth_bytes_per_s);
  if (!tiers_.is_processor) {
    at(from_disk, Resource::upload) = per(layer_bytes_, host.upload_bytes_per_s);
    at(from_disk, Resource::host_memory) *= 2;
  }

  // Keys and values: those cached are read, new ones written, of every micro-batch.
  const double cached = batches * load.step.cached * kv_token_bytes_;
  const double written = batches * load.step.tokens * kv_token_bytes_;
  const double attention_s = block.attention.seconds();
  const auto attend_on_device = [&](ResourceSeconds& seconds) {
    at(seconds, Resource::device) += batches * attention_s;
    at(seconds, Resource::waiting) += batches * attention_s;
  };
  attend_on_device(pass.kv[0]);
  if (tiers_.is_processor) at(pass.kv[0], Resource::host_memory) = per(cached, host.bandwidth_bytes_per_s);
  for (const Tier home : {Tier::host, Tier::disk}) {
    ResourceSeconds& seconds = pass.kv[static_cast<std::size_t>(home)];
    if (home == Tier::disk) {
      at(seconds, Resource::disk_read) = per(cached, disk.read_bytes_per_s);
      at(seconds, Resource::disk_write) = per(written, disk.write_bytes_per_s);
      at(seconds, Resource::disk) = per(cached + written, disk.both_bytes_per_s);
      at(seconds, Resource::host_memory) = per(cached + written, host.bandwidth_bytes_per_s);
    }
    if (tiers_.is_processor && (shape.cpu_attention || home == Tier::disk)) {
      // In place, or where the disk's bytes have arrived: its processors are the device.
      attend_on_device(seconds);
      at(seconds, Resource::host_memory) += per(cached, host.bandwidth_bytes_per_s);
    } else if (shape.cpu_attention) {
      const double flops = load.step.tokens * group_.ranks.front().attention_flops * step_.seen(load.step.context);
      const double host_s = std::max(per(cached / batches, host.bandwidth_bytes_per_s), per(flops, host.flop_per_s));
      const double queries = load.step.tokens * attention_bytes_;  // and as many bytes of results
      const double new_bytes = load.step.tokens * kv_token_bytes_;
      at(seconds, Resource::processors) = batches * host_s;
      at(seconds, Resource::download) = batches * per(queries + new_bytes, host.download_bytes_per_s);
      at(seconds, Resource::upload) = batches * per(queries, host.upload_bytes_per_s);
      at(seconds, Resource::host_memory) += per(cached + written, host.bandwidth_bytes_per_s);
      // The host attends to one micro-batch while the device computes others; before its first and after its last the
      // device computes half a micro-batch.
      const double away_s = batches * (host_s + per(queries + new_bytes, host.download_bytes_per_s) +
                                       per(queries, host.upload_bytes_per_s));
      at(seconds, Resource::waiting) = std::max(0.0, away_s + layer_s - batches * layer_s);
    } else {
      attend_on_device(seconds);
      at(seconds, Resource::upload) += per(cached, host.upload_bytes_per_s);
      at(seconds, Resource::download) += per(written, host.download_bytes_per_s);
      at(seconds, Resource::host_memory) += copies * per(cached + written, host.bandwidth_bytes_per_s);
      if (tiers_.is_processor) at(seconds, Resource::host_memory) += per(cached, host.bandwidth_bytes_per_s);
    }
    // Two micro-batches of a layer arrive while the layer before computes; each of the others takes its transfer's time
    // where that is longer than the computing.
    const double arrival_s = std::max(at(seconds, Resource::upload), at(seconds, Resource::disk_read)) / batches;
    if (!shape.cpu_attention)
      at(seconds, Resource::waiting) += std::max(0.0, batches - 2) * std::max(0.0, arrival_s - layer_s - attention_s);
  }

  // Hidden states of a micro-batch in host memory: down after every layer, and up before the next.
  if (shape.batches > 1) {
    const double bytes = layers * load.step.tokens * hidden_bytes_;
    ResourceSeconds& seconds = pass.activations[1];
    at(seconds, Resource::upload) = per(bytes, host.upload_bytes_per_s);
    at(seconds, Resource::download) = per(bytes, host.download_bytes_per_s);
    at(seconds, Resource::host_memory) = 2 * copies * per(bytes, host.bandwidth_bytes_per_s);
  }
  return pass;
}

OffloadPrice OffloadCost::price(const PassShape& shape, const PassSeconds& seconds, const PlacedCounts& counts) const {
  OffloadPrice price{.seconds = seconds.of(counts)};
  const auto busiest = std::max_element(price.seconds.begin(), price.seconds.end());
  price.pass_s = *busiest;
  price.binding = static_cast<Resource>(busiest - price.seconds.begin());
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

PipelineTime offload_pipeline(const OffloadPlan& plan, const CostOptions& options) {
  const OffloadPrice price = price_offload(plan, options);
  const ServePlan serve = serving_plan(plan);
  StageTime time = StepTimes(serve, options).stage({.route = 0, .first_hop = 0, .hops = 1}, 0);
  const StepLoad load = offload_cost(plan, options).load(shape_of(plan)).step;
  const double resident_s = time.seconds(load), micro_batch_s = price.pass_s / static_cast<double>(plan.batches);
  StageTime::Rank& rank = time.ranks.front();
  const double with_tokens_s = load.tokens * rank.token_s;
  // What a micro-batch of this load takes longer than one whose bytes all lie on the device.
  const double longer_s = std::max(0.0, micro_batch_s - resident_s);
  rank.weights_s = std::max(rank.weights_s, with_tokens_s) + longer_s;
  PipelineTime pipeline{.window = window_of(plan.model.arch)};
  pipeline.visits.push_back({.stage = 0, .share = 1, .time = time});
  return pipeline;
}

Term explain_offload(const OffloadPlan& plan, const CostOptions& options) {
  const OffloadCost cost = offload_cost(plan, options);
  const PassShape shape = shape_of(plan);
  const PassSeconds pass = cost.seconds(shape);
  const PlacedCounts counts = counts_of(plan);
  std::vector<Term> resources;
  for (std::size_t r = 0; r < resource_count; ++r) {
    std::vector<Term> causes;
    const auto cause = [&](std::string name, double seconds, std::string note) {
      if (seconds > 0) causes.push_back(leaf(std::move(name), seconds, std::move(note)));
    };
    cause("computing", pass.fixed[r], fmt::format("{} micro-batches of {} sequences", shape.batches, shape.batch));
    for (const auto& [name, units, homes, what] :
         {std::tuple("weights", counts.weights, &pass.weights, "layers"),
          std::tuple("kv", counts.kv, &pass.kv, "layers"),
          std::tuple("activations", counts.activations, &pass.activations, "micro-batches")})
      for (const auto& [tier, count] : {std::pair(Tier::device, units.device), std::pair(Tier::host, units.host),
                                        std::pair(Tier::disk, units.disk)}) {
        const double each = (*homes)[static_cast<std::size_t>(tier)][r];
        cause(fmt::format("{} on {}", name, name_of(tier)), static_cast<double>(count) * each,
              fmt::format("{} {} at {}", count, what, human_seconds(each)));
      }
    if (!causes.empty()) resources.push_back(sum_of(std::string(name_of(static_cast<Resource>(r))), std::move(causes)));
  }
  const PassLoad load = cost.load(shape);
  return max_of("a pass", std::move(resources),
                fmt::format("{:.1f} tokens per micro-batch, {:.1f} passes per request", load.step.tokens, load.passes));
}

}  // namespace motley
