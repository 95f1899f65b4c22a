#include "motley/cost/published/osdp.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

double osdp_gather_seconds(const OsdpNetwork& network, double bytes, int slices) {
  return slices * (network.ranks - 1) * (network.latency_s + bytes / slices * network.s_per_byte / network.ranks);
}

int osdp_gathers(int micro_batches, OsdpRecompute recompute) {
  return (recompute == OsdpRecompute::gathers_again ? 3 : 2) * micro_batches + 1;
}

double osdp_traffic_ratio(int micro_batches) { return osdp_gathers(micro_batches) / 2.0; }

namespace {

OsdpOption whole_or_sliced(const OsdpOperator& op, const OsdpSetting& setting, int slices, int sharded) {
  const double part = static_cast<double>(sharded) / slices;
  const double whole_bytes = op.weight_bytes * (1 - part), sharded_bytes = op.weight_bytes * part;
  const int gathers = osdp_gathers(1, setting.recompute) - 1;
  OsdpOption option{.slices = slices, .sharded = sharded};
  option.micro_batch_s = op.compute_s * setting.samples;
  if (sharded < slices) option.sync_s = 2 * osdp_gather_seconds(setting.network, whole_bytes);
  if (sharded > 0) {
    const double gather = osdp_gather_seconds(setting.network, sharded_bytes, sharded);
    option.micro_batch_s += gathers * gather;
    option.sync_s += gather;
    option.transient_bytes = op.weight_bytes / slices;
  }
  option.bytes = setting.state_factor * (whole_bytes + sharded_bytes / setting.network.ranks) +
                 op.activation_bytes * setting.samples;
  return option;
}

OsdpOption in_groups(const OsdpOperator& op, const OsdpSetting& setting) {
  const OsdpGroups& groups = *setting.groups;
  const double shard = op.weight_bytes / groups.inside.ranks;
  const double gather = osdp_gather_seconds(groups.inside, op.weight_bytes);
  OsdpOption option{.slices = 1, .sharded = 1, .in_groups = true};
  option.micro_batch_s = op.compute_s * setting.samples + (osdp_gathers(1, setting.recompute) - 1) * gather;
  option.sync_s = gather + 2 * osdp_gather_seconds(groups.between, shard);
  option.bytes = setting.state_factor * shard + op.activation_bytes * setting.samples;
  option.transient_bytes = op.weight_bytes;
  return option;
}

}  // namespace

std::vector<OsdpOption> osdp_options(const OsdpOperator& op, const OsdpSetting& setting) {
  std::vector<OsdpOption> options = {whole_or_sliced(op, setting, 1, 0)};
  for (const int slices : setting.slices)
    for (int sharded = 1; sharded <= slices; ++sharded)
      options.push_back(whole_or_sliced(op, setting, slices, sharded));
  if (setting.groups) options.push_back(in_groups(op, setting));
  return options;
}

Schema<OsdpBlock> schema_of(Bound<OsdpBlock>) {
  using B = OsdpBlock;
  return Schema<B>("block", "A transformer block of one hidden size.")
      .field("hidden", &B::hidden, "Hidden size.", {.required = true, .min = 1})
      .field("time_s", &B::time_s, "A row per batch: seconds by level of sharding.", {.required = true, .above = 0})
      .field("memory_mb", &B::memory_mb, "The same of memory, MB.", {.required = true, .above = 0})
      .check([](const B& block, const Reader& reader) {
        if (block.time_s.size() != block.memory_mb.size())
          reader.fail("time_s and memory_mb have different numbers of rows", "give one row per batch in both");
        for (std::size_t row = 0; row < block.time_s.size(); ++row)
          if (block.time_s[row].empty() || block.time_s[row].size() != block.memory_mb[row].size())
            reader.fail(fmt::format("row {} has different numbers of levels in time_s and memory_mb", row),
                        "give one figure per level in both");
      });
}

Schema<OsdpBlocks> schema_of(Bound<OsdpBlocks>) {
  using B = OsdpBlocks;
  return Schema<B>("osdp blocks", "Measured blocks under levels of sharding.")
      .format("motley.osdp-blocks/1")
      .field("name", &B::name, "Shown in reports.", {.required = true})
      .field("source", &B::source, "Where the figures come from.", {.required = true})
      .field("caution", &B::caution, "What the figures leave open.")
      .field("overhead_mb", &B::overhead_mb, "MB besides the blocks.", {.required = true, .min = 0})
      .field("blocks", &B::blocks, "By hidden size.", {.required = true});
}

OsdpBlocks read_osdp_blocks(const std::filesystem::path& path) {
  return read<OsdpBlocks>(read_document(path), path.string());
}

const OsdpBlock& OsdpBlocks::of_hidden(std::int64_t hidden) const {
  std::vector<std::int64_t> known;
  for (const auto& block : blocks) {
    if (block.hidden == hidden) return block;
    known.push_back(block.hidden);
  }
  throw input_error(fmt::format("there is no block of hidden size {}", hidden),
                    fmt::format("measured are {}", fmt::join(known, ", ")));
}

}  // namespace motley
