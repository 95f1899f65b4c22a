#include "motley/report/rank_bytes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>

#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley {

std::vector<RankBytes> rank_bytes(const Architecture& arch, const ModelPart& part, int degree,
                                  const std::vector<double>& shares, DType weight_type, DType kv_type,
                                  const CacheRoom& caches, const StepLimits& step) {
  std::vector<RankBytes> ranks;
  for (const Shard& shard : make_shards(arch, degree, shares, weight_type))
    ranks.push_back({.shard = shard,
                     .weights = weight_bytes(arch, part, shard, weight_type),
                     .kv = cache_bytes(arch, part.layers, shard, kv_type, caches, step),
                     .activations = activation_bytes(arch, part, shard, weight_type, step)});
  return ranks;
}

namespace {

// Of each kind of layer, where they differ.
std::string sizes(const std::vector<Span>& spans) {
  const auto size = [&](const Span& span) { return span.size() == spans.front().size(); };
  if (std::ranges::all_of(spans, size)) return fmt::format("{}", spans.front().size());
  return fmt::format("{}", fmt::join(spans | std::views::transform(&Span::size), "/"));
}

}  // namespace

std::string rank_bytes_report(const std::vector<RankBytes>& ranks) {
  Table table({">rank", ">heads", ">kv heads", ">ffn", ">weights", ">kv", ">buffers", ">total"});
  const auto show = [](std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankBytes& bytes = ranks[rank];
    table.add({fmt::format("{}", rank), sizes(bytes.shard.heads), sizes(bytes.shard.kv_heads),
               fmt::format("{}", fmt::join(bytes.shard.columns | std::views::transform(&Span::size), "/")),
               show(bytes.weights), show(bytes.kv), show(bytes.activations),
               show(bytes.weights + bytes.kv + bytes.activations)});
  }
  return table.render();
}

Value rank_bytes_json(const std::vector<RankBytes>& ranks) {
  Value::Array all;
  for (const RankBytes& bytes : ranks)
    all.push_back(Value::object(
        {{"weights_bytes", bytes.weights}, {"kv_bytes", bytes.kv}, {"activations_bytes", bytes.activations}}));
  return Value::object({{"ranks", Value(std::move(all))}});
}

}  // namespace motley
