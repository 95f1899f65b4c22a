#include "motley/model/offload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"

namespace motley {
namespace {

RankMemory& of(PlacedBytes& bytes, Tier tier) {
  return tier == Tier::device ? bytes.device : tier == Tier::host ? bytes.host : bytes.disk;
}

bool uses(const std::vector<Tier>& homes, Tier tier) {
  return std::find(homes.begin(), homes.end(), tier) != homes.end();
}

}  // namespace

EnumNames<Tier> names_of(Bound<Tier>) { return {{Tier::device, "device"}, {Tier::host, "host"}, {Tier::disk, "disk"}}; }

TierShares shares_of(const TierCounts& counts) {
  const auto total = static_cast<double>(counts.total());
  return {static_cast<double>(counts.device) / total, static_cast<double>(counts.host) / total,
          static_cast<double>(counts.disk) / total};
}

TierCounts counts_of(const TierShares& shares, std::int64_t units) {
  const auto whole = [&](double share, std::string_view tier) {
    const double exact = share * static_cast<double>(units);
    const double count = std::round(exact);
    if (!(share >= 0 && share <= 1) || std::abs(exact - count) > share_tolerance * static_cast<double>(units))
      throw input_error(
          fmt::format("the share {} of `{}` is not a multiple of 1/{}", share, tier, units),
          fmt::format("give whole ones: {}/{} = {}", std::clamp<double>(count, 0, static_cast<double>(units)), units,
                      std::clamp(count / static_cast<double>(units), 0.0, 1.0)));
    return static_cast<std::int64_t>(count);
  };
  const TierCounts counts = {whole(shares.device, "device"), whole(shares.host, "host"), whole(shares.disk, "disk")};
  if (counts.total() != units)
    throw input_error(fmt::format("the shares sum to {}, not to 1", shares.device + shares.host + shares.disk),
                      "let `device`, `host` and `disk` sum to 1");
  return counts;
}

std::vector<Tier> spread(const TierCounts& counts) {
  // Whether the i-th of `total` units is one of the `chosen`.
  const auto picks = [](std::int64_t i, std::int64_t chosen, std::int64_t total) {
    return (i + 1) * chosen / total > i * chosen / total;
  };
  std::vector<Tier> homes;
  std::int64_t away = 0;
  for (std::int64_t i = 0; i < counts.total(); ++i) {
    if (!picks(i, counts.away(), counts.total()))
      homes.push_back(Tier::device);
    else
      homes.push_back(picks(away++, counts.disk, counts.away()) ? Tier::disk : Tier::host);
  }
  return homes;
}

LayerHomes place_layers(const Offload& offload, std::int64_t layers) {
  if (offload.activations.disk > 0)
    throw input_error("activations are on disk, where no stage keeps them", "put them on `device` or `host`");
  return {offload.batches, spread(counts_of(offload.weights, layers)), spread(counts_of(offload.kv, layers)),
          spread(counts_of(offload.activations, offload.batches)), offload.cpu_attention};
}

void check_kv_homes(const Architecture& arch, const std::vector<Tier>& kv) {
  if (!alike_heads(arch) && std::ranges::count(kv, Tier::disk) > 0)
    throw input_error("keys and values are on disk, and the model's layers have heads of several sizes",
                      "put them on `device` or `host`");
}

std::int64_t kv_buffer_tokens(std::int64_t kv_tokens, std::int64_t batches) { return ceil_div(kv_tokens, batches); }

PlacedBytes placed_bytes(const Architecture& arch, const ModelPart& part, const Shard& shard, DType weight_type,
                         DType kv_type, const CacheRoom& caches, const StepLimits& limits, const LayerHomes& placement,
                         bool staged) {
  PlacedBytes bytes;
  bytes.device.weights = weight_bytes(arch, ends_of(part), shard, weight_type);
  std::int64_t largest_away = 0, largest_on_disk = 0;
  for (std::size_t i = 0; i < placement.weights.size(); ++i) {
    const std::int64_t layer = part.layers.first + static_cast<std::int64_t>(i);
    const std::int64_t size = block_bytes(arch, layer, shard, weight_type);
    const Tier home = placement.weights[i];
    of(bytes, home).weights += size;
    if (home != Tier::device) largest_away = std::max(largest_away, size);
    if (home == Tier::disk) largest_on_disk = std::max(largest_on_disk, size);
  }
  bytes.device.weights += offload_buffers * largest_away;
  if (staged) bytes.host.weights += offload_buffers * largest_on_disk;

  for (std::size_t i = 0; i < placement.kv.size(); ++i) {
    const std::int64_t layer = part.layers.first + static_cast<std::int64_t>(i);
    if (arch.kind(layer).delta)
      bytes.device.kv += states_bytes(arch, layer, shard, caches.sequences);
    else
      of(bytes, placement.kv[i]).kv += kv_cache_bytes(arch, layer, shard, kv_type, caches.tokens, limits.block_tokens);
  }
  const std::int64_t kv_buffers =
      offload_buffers *
      largest_kv_bytes(arch, shard, kv_type, kv_buffer_tokens(caches.tokens, placement.batches), limits.block_tokens);
  const bool on_host = uses(placement.kv, Tier::host), on_disk = uses(placement.kv, Tier::disk);
  if (!placement.cpu_attention && (on_host || on_disk)) bytes.device.kv += kv_buffers;
  if (on_disk && (placement.cpu_attention || staged)) bytes.host.kv += kv_buffers;

  bytes.device.activations = activation_bytes(arch, part, shard, weight_type, limits);
  if (placement.batches > 1) {
    const Buffer hidden{"hidden", dtype_row(weight_type).computed_in, {limits.max_tokens, arch.hidden}};
    for (const Tier home : placement.activations) of(bytes, home).activations += hidden.bytes();
  }
  return bytes;
}

}  // namespace motley
