#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

// Cuts of FFN and vocabulary stay on multiples of this many rows or columns where the sizes permit: whole vectors for
// kernels.
constexpr std::int64_t grain = 8;

constexpr std::int64_t small_block = 32;  // values of a block of GGUF's types but for the K types and iq4_xs

// Fewer whole experts divide more coarsely than columns do, and what a rank holds beyond this part of its share of them
// makes the others wait.
constexpr std::int64_t least_experts_per_rank = 4;
constexpr double most_of_share = 1.05;

constexpr double rounding = 1e-9;  // quotas this close to a whole number are that number

std::vector<double> normalised(const std::vector<double>& shares, std::size_t degree) {
  if (shares.empty()) return std::vector<double>(degree, 1.0 / static_cast<double>(degree));
  if (shares.size() != degree)
    throw input_error(fmt::format("{} shares for {} devices", shares.size(), degree),
                      "give one share per device, or remove them for equal shares");
  for (const double share : shares)
    if (!std::isfinite(share) || share <= 0)
      throw input_error(fmt::format("a share must be positive, found {}", share), "leave out devices with no share");
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<double> result;
  for (const double share : shares) result.push_back(share / sum);
  return result;
}

// What each is due of `units`. One that is due less than one gets exactly one, and the others divide what is then left.
std::vector<double> quotas_of_at_least_one(std::int64_t units, const std::vector<double>& shares) {
  std::vector<double> quotas(shares.size());
  std::vector<bool> raised(shares.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    double open_units = static_cast<double>(units);
    double open_shares = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) raised[i] ? open_units -= 1 : open_shares += shares[i];
    for (std::size_t i = 0; i < shares.size(); ++i) {
      if (!raised[i]) quotas[i] = open_units * (shares[i] / open_shares);
      if (raised[i] || quotas[i] >= 1 - rounding) continue;
      raised[i] = changed = true;
    }
    for (std::size_t i = 0; i < shares.size(); ++i)
      if (raised[i]) quotas[i] = 1;
  }
  return quotas;
}

// Divides `units` by largest remainder, at least one each. A larger share never gets less; ties go to the lower rank.
std::vector<std::int64_t> apportion(std::int64_t units, const std::vector<double>& shares) {
  MOTLEY_CHECK(units >= static_cast<std::int64_t>(shares.size()));
  const std::vector<double> quotas = quotas_of_at_least_one(units, shares);
  std::vector<std::int64_t> counts;
  for (const double quota : quotas) counts.push_back(static_cast<std::int64_t>(std::floor(quota + rounding)));
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto remainder = [&](std::size_t i) { return quotas[i] - static_cast<double>(counts[i]); };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainder(a) > remainder(b); });
  const std::int64_t left = units - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  MOTLEY_CHECK(left >= 0 && left <= static_cast<std::int64_t>(order.size()));
  for (std::int64_t i = 0; i < left; ++i) ++counts[order[static_cast<std::size_t>(i)]];
  return counts;
}

// Consecutive spans over [0, size), none empty, cut at multiples of `block`, or of a smaller unit, where each gets one.
std::vector<Span> cut(std::int64_t size, const std::vector<double>& shares, std::string_view what,
                      std::int64_t block = grain) {
  const auto ranks = static_cast<std::int64_t>(shares.size());
  if (size < ranks)
    throw input_error(fmt::format("{} {} cannot be split over {} devices", size, what, ranks),
                      fmt::format("use a tensor-parallel degree of at most {} for this model", size));
  std::int64_t unit = 1;
  for (const std::int64_t larger : {grain, std::min(block, small_block), block})
    if (size / larger >= ranks) unit = larger;
  std::vector<Span> spans;
  std::int64_t first = 0;
  for (const std::int64_t count : apportion(size / unit, shares)) {
    spans.push_back({first, first + count * unit});
    first = spans.back().end;
  }
  spans.back().end = size;  // what is less than a grain
  return spans;
}

// Query and key/value heads of one kind of layer, by rank.
struct HeadCut {
  std::vector<Span> heads, kv_heads;
  void add(Span query, Span kv) {
    heads.push_back(query);
    kv_heads.push_back(kv);
  }
};

// No more ranks than KV heads: whole groups (a KV head with its query heads) per rank.
HeadCut cut_groups(std::int64_t heads, std::int64_t kv_heads, const std::vector<double>& shares) {
  const std::int64_t group = heads / kv_heads;
  HeadCut cut;
  for (std::int64_t first = 0; const std::int64_t count : apportion(kv_heads, shares)) {
    const std::int64_t last = first + count;
    cut.add({first * group, last * group}, {first, last});
    first = last;
  }
  return cut;
}

// More ranks than KV heads: consecutive ranks hold the same KV head and divide its query heads. A KV head gets as many
// ranks as bring their summed shares closest to its part, at least one and at most one per query head.
HeadCut cut_inside_groups(std::int64_t heads, std::int64_t kv_heads, const std::vector<double>& shares) {
  const std::int64_t group = heads / kv_heads;
  const auto degree = static_cast<std::int64_t>(shares.size());
  std::vector<double> before(1, 0.0);  // summed shares of the ranks before rank i
  for (const double share : shares) before.push_back(before.back() + share);

  HeadCut cut;
  std::int64_t rank = 0;
  for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
    const std::int64_t after = kv_heads - kv - 1;  // KV heads still to come
    const std::int64_t least = std::max<std::int64_t>(1, degree - rank - after * group);
    const std::int64_t most = std::min(group, degree - rank - after);
    const double target = static_cast<double>(kv + 1) / static_cast<double>(kv_heads);
    std::int64_t count = least;
    for (std::int64_t n = least + 1; n <= most; ++n)
      if (std::abs(before[static_cast<std::size_t>(rank + n)] - target) <
          std::abs(before[static_cast<std::size_t>(rank + count)] - target) - rounding)
        count = n;
    std::int64_t first = kv * group;
    for (const std::int64_t held : apportion(group, normalised({shares.begin() + rank, shares.begin() + rank + count},
                                                               static_cast<std::size_t>(count)))) {
      cut.add({first, first + held}, {kv, kv + 1});
      first += held;
    }
    rank += count;
  }
  return cut;
}

HeadCut cut_heads(const Architecture& arch, std::size_t kind, const std::vector<double>& shares) {
  const std::int64_t kv_heads = arch.kinds[kind].kv_heads;
  return std::ssize(shares) <= kv_heads ? cut_groups(arch.heads, kv_heads, shares)
                                        : cut_inside_groups(arch.heads, kv_heads, shares);
}

// Values of the largest blocks in which rows along the `columns` of a kind of layer that this is the cut of lie in the
// file, or are held.
std::int64_t block_along(const Architecture& arch, std::size_t kind, TensorCut cut, std::int64_t columns,
                         DType weight_type) {
  std::int64_t most = grain;
  if (is_quantised(weight_type)) most = std::max(most, dtype_row(fitting(weight_type, columns)).block_values);
  if (arch.kinds[kind].tensor_types.empty()) return most;
  for (const TensorSpec& tensor : block_tensors(arch, layer_of_kinds(arch)[kind]))
    if (tensor.cut == cut) most = std::max(most, dtype_row(arch.kinds[kind].tensor_types.at(tensor.role)).block_values);
  return most;
}

// Key heads of a kind of layer's delta net, with their value heads.
std::vector<Span> cut_delta_net(const Architecture& arch, std::size_t kind, const std::vector<double>& parts) {
  const DeltaNet& delta = arch.kinds[kind].delta;
  std::vector<Span> spans(parts.size());
  if (!delta) return spans;
  std::int64_t together =
      1;  // heads whose values are whole blocks of columns, which may not be cut where they are tiled
  if (delta.tiled && parts.size() > 1 && delta.values_of_key() > 1)
    for (const auto& [role, type] : arch.kinds[kind].tensor_types)
      if (role == "delta.out.weight")
        while (together * delta.value_dim % dtype_row(type).block_values != 0) together *= 2;
  const std::int64_t units = delta.key_heads / together;
  if (units < std::ssize(parts) || delta.key_heads % together != 0)
    throw input_error(
        fmt::format("{} key heads of delta nets{} cannot be split over {} devices", delta.key_heads,
                    together > 1 ? fmt::format(", {} of which share blocks,", together) : "", parts.size()),
        units > 0 ? fmt::format("use a tensor-parallel degree of at most {} for this model", units)
                  : "use a file of another type");
  std::int64_t first = 0;
  for (std::size_t rank = 0; const std::int64_t count : apportion(units, parts)) {
    spans[rank++] = {first, first + count * together};
    first += count * together;
  }
  return spans;
}

Span scaled(const Span& span, std::int64_t factor) { return {span.first * factor, span.end * factor}; }

// Of each kind of layer that has experts.
void check_expert_shares(const Architecture& arch, std::size_t degree, const std::vector<std::int64_t>& shares) {
  const std::string columns = "or remove `expert_shares`: each device then has columns of every expert";
  if (shares.size() != degree)
    throw input_error(fmt::format("{} expert shares for {} devices", shares.size(), degree),
                      "give one for each device, " + columns);
  if (!arch.has_experts()) throw input_error("the model has no experts to divide", "remove `expert_shares`");
  const std::int64_t sum = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  const std::vector<std::int64_t> layers = layer_of_kinds(arch);
  for (std::size_t kind = 0; kind < arch.kinds.size(); ++kind) {
    const std::int64_t experts = arch.kinds[kind].experts.count;
    if (experts == 0) continue;
    for (std::size_t rank = 0; rank < degree; ++rank)
      if (shares[rank] < 1)
        throw input_error(fmt::format("rank {} holds none of the {} experts of layer {}", rank, experts, layers[kind]),
                          "give it at least one, " + columns);
    if (sum != experts)
      throw input_error(
          fmt::format("the expert shares sum to {}, and layer {} has {} experts", sum, layers[kind], experts),
          "give each expert to one device, " + columns);
  }
}

// Whole ones, rank after rank.
std::vector<Span> spans_of(const std::vector<std::int64_t>& counts) {
  std::vector<Span> spans;
  for (std::int64_t first = 0; const std::int64_t count : counts) {
    spans.push_back({first, first + count});
    first += count;
  }
  return spans;
}

// Rows or columns of value heads, `size` in all: of those of some key heads.
Span of_values(const DeltaNet& delta, const Span& key_heads, std::int64_t size, Slice& slice,
               std::int64_t Slice::*step) {
  const std::int64_t each = size / delta.value_heads;
  if (!delta.tiled || key_heads.size() == delta.key_heads) return scaled(key_heads, delta.values_of_key() * each);
  slice.times = delta.values_of_key();
  slice.*step = delta.key_heads * each;
  return scaled(key_heads, each);
}

}  // namespace

bool of_one_size(const Shard& a, const Shard& b) {
  return std::ranges::equal(a.heads, b.heads, {}, &Span::size, &Span::size) &&
         std::ranges::equal(a.kv_heads, b.kv_heads, {}, &Span::size, &Span::size) &&
         std::ranges::equal(a.columns, b.columns, {}, &Span::size, &Span::size) &&
         std::ranges::equal(a.shared, b.shared, {}, &Span::size, &Span::size) &&
         std::ranges::equal(a.experts, b.experts, {}, &Span::size, &Span::size) &&
         std::ranges::equal(a.delta, b.delta, {}, &Span::size, &Span::size) &&
         a.vocabulary.size() == b.vocabulary.size();
}

std::vector<Shard> make_shards(const Architecture& arch, int degree, const std::vector<double>& shares,
                               DType weight_type, const std::vector<std::int64_t>& expert_shares) {
  if (degree < 1)
    throw input_error(fmt::format("a tensor-parallel degree must be at least 1, found {}", degree),
                      "use a degree of 1 for the whole model on one device");
  if (degree > arch.heads)
    throw input_error(fmt::format("{1} query heads cannot be split over {0} devices", degree, arch.heads),
                      fmt::format("use a tensor-parallel degree of at most {} for this model", arch.heads));
  const auto ranks = static_cast<std::size_t>(degree);
  const std::vector<double> parts = normalised(shares, ranks);
  const bool whole_experts = !expert_shares.empty();
  if (whole_experts) check_expert_shares(arch, ranks, expert_shares);
  std::vector<Shard> shards(ranks);
  for (std::size_t kind = 0; kind < arch.kinds.size(); ++kind) {
    const auto cut_columns = [&](std::int64_t columns, std::string_view what, TensorCut along) {
      return cut(columns, parts, what, block_along(arch, kind, along, columns, weight_type));
    };
    const LayerKind& of = arch.kinds[kind];
    const std::int64_t shared_ffn = of.experts.shared_ffn;
    const bool whole = whole_experts && of.experts.count > 0;
    const std::vector<Span> ffn =
        whole ? std::vector<Span>(ranks, Span{0, of.ffn}) : cut_columns(of.ffn, "FFN columns", TensorCut::ffn_in);
    const std::vector<Span> experts =
        whole ? spans_of(expert_shares) : std::vector<Span>(ranks, Span{0, of.experts.count});
    const std::vector<Span> shared =
        shared_ffn > 0 ? cut_columns(shared_ffn, "columns of the shared expert", TensorCut::shared_ffn_in)
                       : std::vector<Span>(ranks);
    const std::vector<Span> delta = cut_delta_net(arch, kind, parts);
    const HeadCut heads = cut_heads(arch, kind, parts);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      shards[rank].heads.push_back(heads.heads[rank]);
      shards[rank].kv_heads.push_back(heads.kv_heads[rank]);
      shards[rank].columns.push_back(ffn[rank]);
      shards[rank].shared.push_back(shared[rank]);
      shards[rank].experts.push_back(experts[rank]);
      shards[rank].delta.push_back(delta[rank]);
    }
  }
  const std::vector<Span> vocabulary = cut(arch.vocabulary, parts, "rows of vocabulary");
  for (std::size_t rank = 0; rank < ranks; ++rank) shards[rank].vocabulary = vocabulary[rank];
  return shards;
}

std::vector<std::int64_t> choose_expert_shares(const Architecture& arch, int degree, const std::vector<double>& shares,
                                               DType weight_type) {
  std::int64_t count = 0;
  for (const LayerKind& kind : arch.kinds) {
    if (kind.experts.count == 0) continue;
    if (count > 0 && kind.experts.count != count) return {};
    count = kind.experts.count;
  }
  const auto ranks = static_cast<std::size_t>(degree);
  if (degree < 2 || count < least_experts_per_rank * degree) return {};
  const std::vector<double> parts = normalised(shares, ranks);
  const std::vector<Shard> shards = make_shards(arch, degree, shares, weight_type), whole = make_shards(arch, 1);
  for (const std::int64_t layer : layer_of_kinds(arch)) {
    std::vector<TensorSpec> of_experts = block_tensors(arch, layer);
    std::erase_if(of_experts, [](const TensorSpec& tensor) { return tensor.experts == 0; });
    const auto bytes = [&](const Shard& shard) {
      std::int64_t sum = 0;
      for (const TensorSpec& tensor : of_experts)
        sum += held_bytes(slice_of(arch, tensor, shard), held_type(arch, tensor, weight_type));
      return static_cast<double>(sum);
    };
    const double of_all = bytes(whole.front());
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (bytes(shards[rank]) > most_of_share * parts[rank] * of_all) return apportion(count, parts);
  }
  return {};
}

std::int64_t held_copies(const TensorSpec& tensor, const Shard& shard) {
  return tensor.experts > 0 ? shard.experts.at(tensor.kind).size() : 1;
}

std::vector<TensorSpec> held_tensors(const Architecture& arch, const ModelPart& part, const Shard& shard) {
  std::vector<TensorSpec> tensors = part_tensors(arch, part);
  std::erase_if(tensors, [&](const TensorSpec& tensor) { return slice_of(arch, tensor, shard).elements() == 0; });
  return tensors;
}

Slice slice_of(const Architecture& arch, const TensorSpec& tensor, const Shard& shard) {
  if (tensor.expert >= 0) {
    const Span& held = shard.experts.at(tensor.kind);
    if (tensor.expert < held.first || tensor.expert >= held.end) return {};
  }
  const std::int64_t rows = tensor.shape.at(0), columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  Slice slice{{0, rows}, {0, columns}};
  const DeltaNet& delta = arch.kinds.at(tensor.kind).delta;
  switch (tensor.cut) {
    case TensorCut::replicated: break;
    case TensorCut::heads: slice.rows = scaled(shard.heads.at(tensor.kind), rows / arch.heads); break;
    case TensorCut::kv_heads:
      slice.rows = scaled(shard.kv_heads.at(tensor.kind), rows / arch.kinds[tensor.kind].kv_heads);
      break;
    case TensorCut::heads_in: slice.columns = scaled(shard.heads.at(tensor.kind), columns / arch.heads); break;
    case TensorCut::ffn: slice.rows = shard.columns.at(tensor.kind); break;
    case TensorCut::ffn_in: slice.columns = shard.columns.at(tensor.kind); break;
    case TensorCut::shared_ffn: slice.rows = shard.shared.at(tensor.kind); break;
    case TensorCut::shared_ffn_in: slice.columns = shard.shared.at(tensor.kind); break;
    case TensorCut::delta_keys: slice.rows = scaled(shard.delta.at(tensor.kind), rows / delta.key_heads); break;
    case TensorCut::delta_values:
      slice.rows = of_values(delta, shard.delta.at(tensor.kind), rows, slice, &Slice::row_step);
      break;
    case TensorCut::delta_values_in:
      slice.columns = of_values(delta, shard.delta.at(tensor.kind), columns, slice, &Slice::column_step);
      break;
    case TensorCut::vocabulary: slice.rows = shard.vocabulary; break;
  }
  return slice;
}

}  // namespace motley
