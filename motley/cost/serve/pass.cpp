#include "motley/cost/serve/pass.hpp"

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

EnumNames<Resource> names_of(Bound<Resource>) {
  return {
      {Resource::device, "device"},     {Resource::processors, "processors"},   {Resource::upload, "upload"},
      {Resource::download, "download"}, {Resource::disk_read, "disk_read"},     {Resource::disk_write, "disk_write"},
      {Resource::disk, "disk"},         {Resource::host_memory, "host_memory"}, {Resource::waiting, "waiting"}};
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

Resource busiest(const ResourceSeconds& seconds) {
  return static_cast<Resource>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
}

PassSeconds pass_seconds(const StepCost& cost, const TensorGroup& group, StageEnds ends, const StreamedStage& stage,
                         const StepLoad& load, std::int64_t micro_batches) {
  const auto batches = static_cast<double>(micro_batches), layers = static_cast<double>(stage.layers());
  const MemoryTiers& tiers = stage.tiers;
  const HostRates& host = tiers.host;
  const Disk disk = tiers.disk.value_or(Disk{});
  const Rank& rank = group.ranks.front();
  // Of a layer, whichever kinds have their home where: their mean.
  double layer_bytes = 0, layer_s = 0, attention_s = 0, cached_bytes = 0, token_bytes = 0, attention_flops = 0;
  for (std::size_t kind = 0; kind < stage.kinds.size(); ++kind) {
    const double share = stage.kinds[kind] / layers;
    const BlockTime block = cost.block_time(group, kind, load);
    layer_bytes += share * static_cast<double>(rank.blocks[kind].bytes);
    layer_s += share * (block.products.seconds() + block.elementwise_s + cost.layer_overhead_s(group));
    attention_s += share * block.attention.seconds();
    cached_bytes += share * load.cached_of(rank.blocks[kind]) * rank.blocks[kind].kv_bytes;
    token_bytes += share * rank.blocks[kind].kv_bytes;
    attention_flops += share * load.tokens * rank.blocks[kind].attention_flops * load.context_of(rank.blocks[kind]);
  }
  const double query_bytes = cost.attention_bytes(group, 1);
  const auto per = [](double bytes, double rate) { return rate > 0 ? bytes / rate : 0; };
  PassSeconds pass;

  // Computing, but for attention, which depends on where keys and values are.
  const double once_s = layers * layer_s + cost.ends_s(group, ends, load);
  at(pass.fixed, Resource::device) = batches * once_s;
  at(pass.fixed, Resource::waiting) = batches * once_s;
  if (tiers.is_processor)  // its memory is the host's
    at(pass.fixed, Resource::host_memory) = batches * per(layers * layer_bytes, host.bandwidth_bytes_per_s);

  // Weights: one read per pass, whatever the number of micro-batches.
  const double copies = tiers.is_processor ? 2 : 1;  // of host memory's bandwidth: a copy inside it reads and writes
  ResourceSeconds& from_host = pass.weights[1];
  at(from_host, Resource::upload) = per(layer_bytes, host.upload_bytes_per_s);
  at(from_host, Resource::host_memory) = copies * per(layer_bytes, host.bandwidth_bytes_per_s);
  if (tiers.is_processor)  // which copies the layer, and computes with it then
    at(from_host, Resource::device) = at(from_host, Resource::waiting) = at(from_host, Resource::upload);
  ResourceSeconds& from_disk = pass.weights[2];
  at(from_disk, Resource::disk_read) = per(layer_bytes, disk.read_bytes_per_s);
  at(from_disk, Resource::disk) = per(layer_bytes, disk.both_bytes_per_s);
  at(from_disk, Resource::host_memory) = per(layer_bytes, host.bandwidth_bytes_per_s);
  if (!tiers.is_processor) {
    at(from_disk, Resource::upload) = per(layer_bytes, host.upload_bytes_per_s);
    at(from_disk, Resource::host_memory) *= 2;
  }

  // Keys and values: those cached are read, new ones written, of every micro-batch.
  const double cached = batches * cached_bytes;
  const double written = batches * load.tokens * token_bytes;
  const auto attend_on_device = [&](ResourceSeconds& seconds) {
    at(seconds, Resource::device) += batches * attention_s;
    at(seconds, Resource::waiting) += batches * attention_s;
  };
  attend_on_device(pass.kv[0]);
  if (tiers.is_processor) at(pass.kv[0], Resource::host_memory) = per(cached, host.bandwidth_bytes_per_s);
  for (const Tier home : {Tier::host, Tier::disk}) {
    ResourceSeconds& seconds = pass.kv[static_cast<std::size_t>(home)];
    if (home == Tier::disk) {
      at(seconds, Resource::disk_read) = per(cached, disk.read_bytes_per_s);
      at(seconds, Resource::disk_write) = per(written, disk.write_bytes_per_s);
      at(seconds, Resource::disk) = per(cached + written, disk.both_bytes_per_s);
      at(seconds, Resource::host_memory) = per(cached + written, host.bandwidth_bytes_per_s);
    }
    if (tiers.is_processor && (stage.cpu_attention || home == Tier::disk)) {
      // In place, or where the disk's bytes have arrived: its processors are the device.
      attend_on_device(seconds);
      at(seconds, Resource::host_memory) += per(cached, host.bandwidth_bytes_per_s);
    } else if (stage.cpu_attention) {
      const double host_s =
          std::max(per(cached_bytes, host.bandwidth_bytes_per_s), per(attention_flops, host.flop_per_s));
      const double queries = load.tokens * query_bytes;  // and as many bytes of results
      const double new_bytes = load.tokens * token_bytes;
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
      if (tiers.is_processor) at(seconds, Resource::host_memory) += per(cached, host.bandwidth_bytes_per_s);
    }
    // Two micro-batches of a layer arrive while the layer before computes; each of the others takes its transfer's time
    // where that is longer than the computing.
    const double arrival_s = std::max(at(seconds, Resource::upload), at(seconds, Resource::disk_read)) / batches;
    if (!stage.cpu_attention)
      at(seconds, Resource::waiting) += std::max(0.0, batches - 2) * std::max(0.0, arrival_s - layer_s - attention_s);
  }

  // Hidden states of a micro-batch in host memory: down after every layer, and up before the next.
  if (stage.batches > 1) {
    const double part = batches / static_cast<double>(stage.batches);
    const double bytes = part * layers * cost.activation_bytes(group, load.tokens);
    ResourceSeconds& seconds = pass.activations[1];
    at(seconds, Resource::upload) = per(bytes, host.upload_bytes_per_s);
    at(seconds, Resource::download) = per(bytes, host.download_bytes_per_s);
    at(seconds, Resource::host_memory) = 2 * copies * per(bytes, host.bandwidth_bytes_per_s);
  }
  return pass;
}

PassCut cut_step(const StepLoad& step, std::int64_t batches, std::int64_t max_tokens) {
  const auto needed = static_cast<std::int64_t>(std::ceil(step.tokens / static_cast<double>(max_tokens) - 1e-9));
  const std::int64_t count = std::clamp<std::int64_t>(needed, 1, batches);
  const auto part = 1 / static_cast<double>(count);
  return {{part * step.tokens, step.context, part * step.cached, part * step.logits, step.window_context,
           part * step.window_cached},
          count};
}

ResourceSeconds PassCost::resources(const StepLoad& step) const {
  const PassCut cut = cut_step(step, stage_.batches, max_tokens_);
  return pass_seconds(cost_, group_, ends_, stage_, cut.each, cut.micro_batches).of(stage_.counts);
}

double PassCost::seconds(const StepLoad& step) const { return std::ranges::max(resources(step)); }

Term explain_pass(std::string name, const PassSeconds& pass, const PlacedCounts& counts, double times,
                  const std::string& what, std::string note) {
  std::vector<Term> resources;
  for (std::size_t r = 0; r < resource_count; ++r) {
    std::vector<Term> causes;
    const auto cause = [&](std::string of, double seconds, std::string because) {
      if (seconds > 0) causes.push_back(leaf(std::move(of), times * seconds, std::move(because)));
    };
    cause("computing", pass.fixed[r], what);
    for (const auto& [of, units, homes, kind] :
         {std::tuple("weights", counts.weights, &pass.weights, "layers"),
          std::tuple("kv", counts.kv, &pass.kv, "layers"),
          std::tuple("activations", counts.activations, &pass.activations, "micro-batches")})
      for (const auto& [tier, count] : {std::pair(Tier::device, units.device), std::pair(Tier::host, units.host),
                                        std::pair(Tier::disk, units.disk)}) {
        const double each = (*homes)[static_cast<std::size_t>(tier)][r];
        cause(fmt::format("{} on {}", of, name_of(tier)), static_cast<double>(count) * each,
              fmt::format("{} {} at {}", count, kind, human_seconds(each)));
      }
    if (!causes.empty()) resources.push_back(sum_of(std::string(name_of(static_cast<Resource>(r))), std::move(causes)));
  }
  return max_of(std::move(name), std::move(resources), std::move(note));
}

MemoryTiers shared_among(MemoryTiers tiers, std::int64_t devices) {
  const auto part = 1 / static_cast<double>(devices);
  tiers.host_bytes /= devices;
  if (tiers.disk) {
    tiers.disk->capacity_bytes /= devices;
    for (double* rate : {&tiers.disk->read_bytes_per_s, &tiers.disk->write_bytes_per_s, &tiers.disk->both_bytes_per_s})
      *rate *= part;
  }
  if (tiers.is_processor) return tiers;
  tiers.host.bandwidth_bytes_per_s *= part;
  tiers.host.flop_per_s *= part;
  return tiers;
}

StreamedStage streamed_stage(const ServePlan& plan, const Stage& stage) {
  const int device = plan.cluster.find_device(stage.devices.at(0));
  const int machine = plan.cluster.devices[static_cast<std::size_t>(device)].machine;
  std::int64_t sharing = 0;
  for (const Stage& other : plan.stages) {
    if (!other.offload) continue;
    const int there = plan.cluster.find_device(other.devices.at(0));
    sharing += plan.cluster.devices[static_cast<std::size_t>(there)].machine == machine ? 1 : 0;
  }
  const Offload& offload = *stage.offload;
  return {.tiers = shared_among(tiers_of(plan.cluster, device), sharing),
          .counts = {counts_of(offload.weights, stage.layers.size()), counts_of(offload.kv, stage.layers.size()),
                     counts_of(offload.activations, offload.batches)},
          .batches = offload.batches,
          .cpu_attention = offload.cpu_attention,
          .kinds = layer_counts(plan.model.arch, stage.layers)};
}

StepLimits step_limits(StepLimits micro_batch, std::int64_t batches) {
  return {micro_batch.max_tokens * batches, micro_batch.max_sequences * batches, micro_batch.block_tokens};
}

std::int64_t batches_on(const ServePlan& plan, const Route& route) {
  std::int64_t batches = 1;
  for (const Hop& hop : route.path) batches = std::max(batches, plan.stage(hop.stage).batches());
  return batches;
}

}  // namespace motley
