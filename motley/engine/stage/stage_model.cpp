#include "motley/engine/stage/stage_model.hpp"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "motley/base/rounding.hpp"
#include "motley/engine/device/collectives.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/device/stream_order.hpp"
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/stage/block.hpp"
#include "motley/engine/stage/model_ends.hpp"
#include "motley/engine/stage/slot_rows.hpp"
#include "motley/engine/weights/load_weights.hpp"
#include "motley/engine/weights/streamed_caches.hpp"

namespace motley {
namespace {

using at::Tensor;

// Keys and values of a layer, for as long as the rank holds the same heads of it.
struct HeldCache {
  Span kv_heads;
  DType type = DType::fp32;
  StageModel::RetainedLayer kept;
};
using RetainedCaches = std::map<std::int64_t, HeldCache>;  // by layer of the model

// The part of a step that passes a block at once: its rows are numbered from its own first one.
struct MicroBatch {
  std::int64_t first_row = 0;
  std::int64_t count = 0;
  // As steps name the blocks; then by window, as slots have them.
  std::vector<std::vector<SequenceRows>> tables = std::vector<std::vector<SequenceRows>>(1);
  std::vector<SequenceRows>& sequences() { return tables.front(); }
  const std::vector<SequenceRows>& sequences() const { return tables.front(); }
  Tensor rows_of(const Tensor& step) const { return step.narrow(0, first_row, count); }
};

// As few as have room for this many tokens and KV blocks each. A sequence's blocks are at most that many.
std::vector<MicroBatch> micro_batches(const std::vector<SequenceRows>& sequences, std::int64_t max_tokens,
                                      std::int64_t max_blocks) {
  std::vector<MicroBatch> batches(1);
  std::int64_t blocks = 0;  // of the last one
  for (SequenceRows left : sequences)
    while (left.count > 0) {
      if (batches.back().count == max_tokens || blocks + std::ssize(left.blocks) > max_blocks) {
        batches.push_back({.first_row = batches.back().first_row + batches.back().count});
        blocks = 0;
      }
      MicroBatch& batch = batches.back();
      blocks += std::ssize(left.blocks);
      const std::int64_t taken = std::min(left.count, max_tokens - batch.count);
      batch.sequences().push_back({batch.count, taken, left.position, left.blocks, left.slot});
      batch.count += taken;
      left.position += taken;
      left.count -= taken;
    }
  return batches;
}

// To a device with memory of its own nothing but weights is brought.
void check_offload_apart(const LayerHomes& homes) {
  const auto away = [](const std::vector<Tier>& of) {
    return std::ranges::any_of(of, [](Tier tier) { return tier != Tier::device; });
  };
  if (away(homes.kv) || away(homes.activations))
    throw input_error("on a GPU keys, values and hidden states stay in its memory: the stage has some elsewhere",
                      "use --backend cpu, or a plan whose `offload` has weights alone on the host or the disk");
}

// A step comes over a connection: nothing in it is believed unchecked.
[[noreturn]] void refuse(const Step& step, const std::string& what) {
  throw Error(ErrorCode::peer, fmt::format("step {}: {}", step.step, what));
}

}  // namespace

struct StageModel::Impl {
  StageSpec spec;
  Shard shard;
  std::vector<std::int64_t> vocabulary_bounds;  // over the ranks
  const ComputeDevice& device;
  std::shared_ptr<const Ops> own_ops;
  const Ops& ops;
  Collectives collectives;
  StageWeights weights;
  RetainedCaches caches, parting;
  std::unique_ptr<StreamedCaches> streamed_caches;  // of layers whose keys and values are on a disk
  std::uint64_t streamed_since = 0;                 // the epoch from which these count
  std::map<std::string, Tensor> buffers;
  std::map<std::string, Tensor> staged;        // of the host: what goes to buffers of a device with memory of its own
  std::vector<RotaryFrequencies> frequencies;  // of the model's rotary rules
  // What layers share whose slots have the blocks of a window.
  struct SlotTable {
    std::int64_t window = 0;
    SlotRows rows = {};  // of the step
    Tensor from = {}, to = {};
  };
  std::vector<SlotTable> slot_tables;  // by window
  std::int64_t kv_bytes = 0;
  std::vector<LayerExperts> experts_taken;

  Impl(const StageSpec& spec, WorkerGroup* group, const ComputeDevice& device, const RankSums* sums = nullptr);

  const Span& kv_heads_of(std::int64_t layer) const { return shard.kv_heads[spec.arch.kind_index(layer)]; }
  CacheShape cache_shape(std::int64_t layer, std::int64_t blocks) const {
    return {blocks, kv_heads_of(layer).size(), spec.arch.kind(layer).head_dim, spec.limits.block_tokens};
  }
  CacheShape cache_shape_of(std::int64_t layer) const {
    return cache_shape(layer, cache_blocks(spec.arch.kind(layer), spec.cache_room(), spec.limits));
  }
  std::int64_t slot_blocks_of(std::int64_t layer) const {
    return slot_blocks(spec.arch.kind(layer), spec.cache_room(), spec.limits);
  }
  std::size_t table_of(std::int64_t layer) const;
  void fill_slots(MicroBatch& batch);
  void keep_caches(RetainedCaches held, const std::set<std::int64_t>& to_part);
  Tier kv_tier(std::int64_t layer) const {
    return spec.offload ? spec.offload->kv.at(static_cast<std::size_t>(layer - spec.layers.first)) : Tier::device;
  }
  // Of the largest micro-batch.
  std::int64_t buffer_blocks() const {
    if (!spec.offload) return block_count();
    const std::int64_t tokens = kv_buffer_tokens(spec.kv_tokens, spec.offload->batches);
    return ceil_div(tokens, spec.limits.block_tokens);
  }
  void allocate_caches(std::uint64_t epoch);
  void allocate_buffers();
  std::int64_t block_count() const { return ceil_div(spec.kv_tokens, spec.limits.block_tokens); }
  // Whether the ranks of the stage add up on their devices, all that there is to add in a step of `count` rows.
  bool sums_on_device(std::int64_t count) const {
    if (spec.degree == 1) return true;
    if (spec.arch.qk_norm == QkNorm::whole) return false;  // plain operations, which allocate
    std::int64_t columns = std::max(spec.arch.hidden, spec.arch.embedding_dim);
    for (const LayerKind& kind : spec.arch.kinds) columns = std::max(columns, kind.experts.count);
    return collectives.on_device(bytes_of(DType::fp32, count * columns));
  }
  // The first `count` rows of a buffer.
  Tensor rows(const char* buffer, std::int64_t count) const { return buffers.at(buffer).narrow(0, 0, count); }

  std::vector<SequenceRows> check(const Step& step) const;
  void check_sequence(const Step& step, const StepSequence& sequence) const;
  void copy_to(const char* buffer, std::span<const std::int64_t> values);

  BlockBuffers block_buffers(std::int64_t layer, std::int64_t tokens) const;
  void embed(Tensor hidden);
  void run_layer(std::int64_t layer, const BlockWeights& block, std::size_t number, const MicroBatch& batch,
                 Tensor hidden);
  void begin(const MicroBatch& batch, std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions);
  void note_experts(std::int64_t layer, std::int64_t tokens);
};

StageModel::Impl::Impl(const StageSpec& stage, WorkerGroup* group, const ComputeDevice& on, const RankSums* sums)
    : spec(stage), device(on), own_ops(on.make_ops()), ops(*own_ops), collectives(group, on, sums) {
  MOTLEY_CHECK(spec.rank >= 0 && spec.rank < spec.degree);
  if (spec.offload && device.has_own_memory()) check_offload_apart(*spec.offload);
  const auto check_type = [](DType type, Use use) {
    if (!supports(type, Support::served, use))
      throw input_error(fmt::format("the engine cannot compute in {}", name_of(type)),
                        "supported: " + names_with(Support::served, use));
  };
  check_type(spec.weight_type, Use::weights);
  check_type(spec.kv_type, Use::kv);
  check_kv_type(spec.arch, spec.kv_type);
  if (spec.offload) check_kv_homes(spec.arch, spec.offload->kv);
  if (has_states(spec.arch) && spec.kv_sequences < 1)
    throw input_error("delta nets keep a state of each sequence, and there is room for none",
                      "let the stage have `kv_sequences`");
  if (spec.limits.block_tokens < 1 || spec.limits.block_tokens > 256)
    throw input_error(fmt::format("KV blocks of {} tokens are not supported", spec.limits.block_tokens),
                      "use blocks of 1 to 256 tokens");
  const std::vector<Shard> shards = spec.shards();
  shard = shards.at(static_cast<std::size_t>(spec.rank));
  for (std::int64_t layer = spec.layers.first; layer < spec.layers.end; ++layer)
    if (const std::int64_t window = spec.arch.kind(layer).window; slot_blocks_of(layer) > 0 && table_of(layer) == 0)
      slot_tables.push_back({.window = window});
  vocabulary_bounds.push_back(0);
  for (const Shard& other : shards) vocabulary_bounds.push_back(other.vocabulary.end);
  frequencies = rotary_frequencies(spec.arch, spec.arch.context);
}

// 0: that in which steps name the blocks.
std::size_t StageModel::Impl::table_of(std::int64_t layer) const {
  if (slot_blocks_of(layer) == 0) return 0;
  const auto found = std::ranges::find(slot_tables, spec.arch.kind(layer).window, &SlotTable::window);
  return found == slot_tables.end() ? 0 : static_cast<std::size_t>(found - slot_tables.begin()) + 1;
}

void StageModel::Impl::fill_slots(MicroBatch& batch) {
  for (SlotTable& table : slot_tables) {
    table.rows = slot_rows(batch.sequences(), table.window, spec.limits.block_tokens, spec.kv_sequences);
    batch.tables.push_back(table.rows.sequences);
    if (table.rows.from.empty()) continue;
    table.from = at::tensor(table.rows.from, at::kLong).to(device.place());
    table.to = at::tensor(table.rows.to, at::kLong).to(device.place());
  }
}

// One by one, so that no more than one layer is there twice.
void StageModel::Impl::keep_caches(RetainedCaches held, const std::set<std::int64_t>& to_part) {
  const auto stays = [&](std::int64_t layer, const HeldCache& cache) {
    return layer >= spec.layers.first && layer < spec.layers.end && cache.kv_heads == kv_heads_of(layer) &&
           !cache.kept.cache.state.defined() && cache.type == spec.kv_type &&
           cache.kept.cache.block_tokens() == spec.limits.block_tokens &&
           cache.kept.slot_blocks == slot_blocks_of(layer);
  };
  for (const auto& entry : held)
    if (to_part.contains(entry.first) && !stays(entry.first, entry.second)) parting.insert(entry);
  std::erase_if(held, [&](const auto& entry) { return !stays(entry.first, entry.second); });
  for (auto& [layer, cache] : held)
    cache.kept.cache = resized(std::exchange(cache.kept.cache, {}), spec.kv_type, cache_shape_of(layer), device);
  caches = std::move(held);
}

// The host's memory is a processor's own: keys and values that are homed there stay, and count for that tier.
void StageModel::Impl::allocate_caches(std::uint64_t epoch) {
  std::vector<std::int64_t> on_disk;
  for (std::int64_t layer = spec.layers.first; layer < spec.layers.end; ++layer) {
    const Tier tier = kv_tier(layer);
    if (tier == Tier::disk && !spec.arch.kind(layer).delta) {
      on_disk.push_back(layer);
      caches.erase(layer);
      continue;
    }
    if (const DeltaNet& delta = spec.arch.kind(layer).delta) {
      const std::int64_t key_heads = shard.delta[spec.arch.kind_index(layer)].size();
      const LayerCache& cache = (caches[layer] = {kv_heads_of(layer),
                                                  spec.kv_type,
                                                  {epoch, empty_states(delta, key_heads, spec.kv_sequences, device)}})
                                    .kept.cache;
      kv_bytes += allocated_bytes(cache.state) + allocated_bytes(cache.convolved);
      continue;
    }
    if (!caches.contains(layer))
      caches[layer] = {kv_heads_of(layer),
                       spec.kv_type,
                       {epoch, empty_cache(spec.kv_type, cache_shape_of(layer), device), slot_blocks_of(layer)}};
    const LayerCache& cache = caches.at(layer).kept.cache;
    if (tier == Tier::device) kv_bytes += allocated_bytes(cache.keys) + allocated_bytes(cache.values);
  }
  if (on_disk.empty()) return;
  streamed_caches = std::make_unique<StreamedCaches>(on_disk, spec.kv_type, cache_shape(on_disk.front(), block_count()),
                                                     buffer_blocks(), device);
  streamed_since = epoch;
  if (!spec.offload->cpu_attention) kv_bytes += streamed_caches->buffers_bytes();
}

void StageModel::Impl::allocate_buffers() {
  MOTLEY_CHECK(collectives.size() == spec.degree);
  const ModelPart part{spec.layers, spec.embedding, spec.head};
  for (Buffer buffer : activation_buffers(spec.arch, part, shard, spec.weight_type, spec.limits)) {
    if (buffer.name == "hidden") buffer.shape[0] = spec.step_limits().max_tokens;
    buffers.emplace(buffer.name,
                    at::zeros(buffer.shape, device.options(buffer.type ? scalar_type(*buffer.type) : at::kLong)));
  }
}

void StageModel::Impl::check_sequence(const Step& step, const StepSequence& sequence) const {
  const std::int64_t context = spec.arch.context;
  if (sequence.position < 0 || sequence.count < 1 || sequence.position > context ||
      sequence.count > context - sequence.position)
    refuse(step, fmt::format("sequence {}: {} tokens from {} on are outside the context of {}", sequence.sequence,
                             sequence.count, sequence.position, context));
  const std::int64_t end = sequence.position + sequence.count;
  if (std::ssize(sequence.tokens) != sequence.count)
    refuse(step, fmt::format("sequence {}: {} tokens where {} are announced", sequence.sequence, sequence.tokens.size(),
                             sequence.count));
  for (const std::int32_t token : sequence.tokens)
    if (token < 0 || token >= spec.arch.vocabulary)
      refuse(step, fmt::format("sequence {}: token {} is not in the vocabulary of {}", sequence.sequence, token,
                               spec.arch.vocabulary));
  if (sequence.scoring) {
    const Scoring& scoring = *sequence.scoring;
    if (std::ssize(scoring.targets) > sequence.count || scoring.top < 0)
      refuse(step, fmt::format("sequence {}: {} targets with {} others for {} tokens", sequence.sequence,
                               scoring.targets.size(), scoring.top, sequence.count));
    for (const std::int32_t token : scoring.targets)
      if (token < 0 || token >= spec.arch.vocabulary)
        refuse(step, fmt::format("sequence {}: target {} is not in the vocabulary of {}", sequence.sequence, token,
                                 spec.arch.vocabulary));
  }
  if (std::ssize(sequence.blocks) * spec.limits.block_tokens < end)
    refuse(step, fmt::format("sequence {}: {} blocks of {} tokens do not cover {} tokens", sequence.sequence,
                             sequence.blocks.size(), spec.limits.block_tokens, end));
  for (const std::int32_t block : sequence.blocks)
    if (block < 0 || block >= block_count())
      refuse(step, fmt::format("sequence {}: block {} is outside of the {} blocks of the cache", sequence.sequence,
                               block, block_count()));
  if (spec.kv_sequences > 0 && (sequence.slot < 0 || sequence.slot >= spec.kv_sequences))
    refuse(step, fmt::format("sequence {}: slot {} is outside of the {} slots of the cache", sequence.sequence,
                             sequence.slot, spec.kv_sequences));
}

std::vector<SequenceRows> StageModel::Impl::check(const Step& step) const {
  const StepLimits most = spec.step_limits();
  if (std::ssize(step.sequences) > most.max_sequences)
    refuse(step, fmt::format("{} sequences, at most {} fit", step.sequences.size(), most.max_sequences));
  std::vector<SequenceRows> rows;
  std::int64_t tokens = 0;
  std::set<std::int32_t> slots;
  for (const StepSequence& sequence : step.sequences) {
    check_sequence(step, sequence);
    if (sequence.slot >= 0 && !slots.insert(sequence.slot).second)
      refuse(step, fmt::format("sequence {}: slot {} is another's, too", sequence.sequence, sequence.slot));
    rows.push_back({tokens, sequence.count, sequence.position, sequence.blocks, sequence.slot});
    tokens += sequence.count;
  }
  if (tokens > most.max_tokens) refuse(step, fmt::format("{} tokens, at most {} fit", tokens, most.max_tokens));
  return rows;
}

// By way of the host's pinned memory, so that this thread does not wait; forward() sees to it that the step before has
// been read.
void StageModel::Impl::copy_to(const char* buffer, std::span<const std::int64_t> values) {
  const Tensor to = rows(buffer, std::ssize(values));
  const Tensor host = device.host_space(to, staged[buffer]);
  std::ranges::copy(values, host.mutable_data_ptr<std::int64_t>());
  if (!host.is_same(to)) to.copy_(host, /*non_blocking=*/true);
}

// The operations that follow are about this part of a step.
void StageModel::Impl::begin(const MicroBatch& batch, std::span<const std::int64_t> tokens,
                             std::span<const std::int64_t> positions) {
  const auto part = [&](std::span<const std::int64_t> values) {
    return values.subspan(static_cast<std::size_t>(batch.first_row), static_cast<std::size_t>(batch.count));
  };
  copy_to("positions", part(positions));
  if (spec.embedding) copy_to("tokens", part(tokens));
  ops.begin_step(batch.tables, rows("positions", batch.count));
}

void StageModel::Impl::embed(Tensor hidden) {
  const std::int64_t tokens = hidden.size(0);
  const EndCall pass{spec.arch, ops, weights.ends};
  Tensor looked_up = weights.ends.projection_in.defined() ? rows("embedded", tokens) : hidden;
  Tensor learned = rows("normed", tokens);
  look_up(pass, collectives, rows("tokens", tokens), shard.vocabulary, looked_up);
  enter_blocks(pass, rows("positions", tokens), looked_up, learned, hidden);
}

BlockBuffers StageModel::Impl::block_buffers(std::int64_t layer, std::int64_t tokens) const {
  const LayerKind& kind = spec.arch.kind(layer);
  const Experts& experts = kind.experts;
  const std::int64_t columns = shard.columns[spec.arch.kind_index(layer)].size();
  // Layers of another kind may need more of the buffer.
  const auto part_of = [&](const char* buffer, std::int64_t count, std::int64_t width) {
    return buffers.at(buffer).flatten().narrow(0, 0, count * width).view({count, width});
  };
  const auto ffn_rows = [&](const char* buffer) {  // of experts one for each that a token takes
    return part_of(buffer, tokens * kind.active_ffns(), columns);
  };
  const auto shared = [&](const char* buffer) {  // once the experts are mixed
    return experts.shared_ffn > 0 ? part_of(buffer, tokens, shard.shared[spec.arch.kind_index(layer)].size())
                                  : Tensor();
  };
  const auto routing = [&](const char* buffer, std::int64_t width) {
    return experts.count > 0 ? part_of(buffer, tokens, width) : Tensor();
  };
  const std::int64_t query_heads = shard.heads[spec.arch.kind_index(layer)].size(),
                     kv_heads = kv_heads_of(layer).size();
  const auto heads = [&](const char* buffer, std::int64_t count) {
    return part_of(buffer, tokens, count * kind.head_dim);
  };
  const DeltaNet& delta = kind.delta;
  const std::int64_t key_heads = shard.delta[spec.arch.kind_index(layer)].size(), keys = key_heads * delta.key_dim,
                     values = delta ? key_heads * delta.values_of_key() : 0;
  const auto mixed = [&](std::int64_t first, std::int64_t channels) {
    return delta ? part_of("mixed", tokens, 2 * keys + values * delta.value_dim).narrow(1, first, channels) : Tensor();
  };
  const auto rates = [&](std::int64_t which) {
    return delta ? part_of("delta_rates", 2 * tokens, values).narrow(0, which * tokens, tokens) : Tensor();
  };
  return {.normed = rows("normed", tokens),
          .query = heads("query", query_heads),
          .key = heads("key", kv_heads),
          .value = heads("value", kv_heads),
          .attention = heads("attention", query_heads).view({tokens, query_heads, kind.head_dim}),
          .projected = rows("projected", tokens),
          .up = ffn_rows("up"),
          .gate = spec.arch.gated ? ffn_rows("gate") : Tensor(),
          .routed = routing("routed", experts.count),
          .chosen = routing("chosen", experts.active),
          .shares = routing("shares", experts.active),
          .shared_gate = shared("gate"),
          .shared_up = shared("up"),
          .squares = spec.arch.qk_norm == QkNorm::whole ? rows("squares", tokens) : Tensor(),
          .gated_query = spec.arch.output_gate ? heads("gated_query", 2 * query_heads) : Tensor(),
          .shared_share = experts.shared_gate ? rows("shared_share", tokens) : Tensor(),
          .routed_output = experts.own_norms ? rows("routed_output", tokens) : Tensor(),
          .delta_q = mixed(0, keys),
          .delta_k = mixed(keys, keys),
          .delta_v = mixed(2 * keys, values * delta.value_dim),
          .delta_gate = delta ? part_of("delta_gate", tokens, values * delta.value_dim) : Tensor(),
          .delta_output =
              delta ? part_of("delta_output", tokens, values * delta.value_dim).view({tokens, values, delta.value_dim})
                    : Tensor(),
          .alpha = rates(0),
          .beta = rates(1)};
}

void StageModel::Impl::run_layer(std::int64_t layer, const BlockWeights& block, std::size_t number,
                                 const MicroBatch& batch, Tensor hidden) {
  const Tensor at_positions = rows("positions", batch.count);
  const std::size_t table = table_of(layer);
  const auto run = [&](const LayerCache& cache, const std::vector<SequenceRows>& sequences) {
    const BlockCall pass{spec.arch, ops, collectives, frequencies, at_positions, sequences, table};
    run_block(pass, block, layer, cache, block_buffers(layer, batch.count), hidden);
  };
  if (kv_tier(layer) == Tier::disk && !spec.arch.kind(layer).delta) {
    const StreamedCaches::Pass pass = streamed_caches->begin(layer, number);
    run(pass.cache, pass.sequences);
    return streamed_caches->end();
  }
  const LayerCache& cache = caches.at(layer).kept.cache;
  run(cache, batch.tables[table]);
  if (table == 0) return;
  if (const SlotTable& slots = slot_tables[table - 1]; !slots.rows.from.empty())
    copy_blocks(cache, slots.from, slots.to);
}

// Of the micro-batch that the layer has just run.
void StageModel::Impl::note_experts(std::int64_t layer, std::int64_t tokens) {
  if (spec.arch.kind(layer).experts.count == 0) return;
  const Tensor chosen = block_buffers(layer, tokens).chosen.to(at::kCPU, at::kInt).contiguous();
  if (experts_taken.empty() || experts_taken.back().layer != layer) experts_taken.push_back({layer, {}});
  const auto* first = chosen.const_data_ptr<std::int32_t>();
  std::vector<std::int32_t>& of_layer = experts_taken.back().experts;
  of_layer.insert(of_layer.end(), first, first + chosen.numel());
}

StageModel::StageModel(const StageSpec& spec, const std::filesystem::path& model, WorkerGroup* group,
                       const ComputeDevice& device, const std::function<void(double)>& progress)
    : StageModel(spec, model, group, device, progress, nullptr, 1) {}

StageModel::StageModel(const StageSpec& spec, const std::filesystem::path& model, WorkerGroup* group,
                       const ComputeDevice& device, const std::function<void(double)>& progress,
                       std::unique_ptr<StageModel> earlier, std::uint64_t epoch, const std::set<std::int64_t>& parting,
                       const RankSums* sums) {
  const c10::InferenceMode guard;
  impl_ = std::make_unique<Impl>(spec, group, device, sums);
  RetainedTensors tensors;
  if (earlier) {
    tensors = std::move(earlier->impl_->weights.held);
    RetainedCaches caches = std::move(earlier->impl_->caches);
    earlier.reset();
    impl_->keep_caches(std::move(caches), parting);
  }
  impl_->weights = load_weights(spec, model, device, progress, std::move(tensors));
  impl_->allocate_caches(epoch);
  impl_->allocate_buffers();
}

StageModel::StageModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::unique_ptr<StageModel> StageModel::preload(const StageSpec& spec, const std::filesystem::path& model,
                                                const ComputeDevice& device,
                                                const std::function<void(double)>& progress) {
  std::unique_ptr<StageModel> part(new StageModel(std::make_unique<Impl>(spec, nullptr, device)));
  part->load(model, progress);
  return part;
}

std::unique_ptr<StageModel> StageModel::sharing(const StageSpec& spec, const ComputeDevice& device,
                                                const StageModel& earlier) {
  std::unique_ptr<StageModel> part(new StageModel(std::make_unique<Impl>(spec, nullptr, device)));
  part->impl_->weights.held = earlier.impl_->weights.held;
  return part;
}

void StageModel::load(const std::filesystem::path& model, const std::function<void(double)>& progress) {
  impl_->weights = load_weights(impl_->spec, model, impl_->device, progress, std::move(impl_->weights.held));
}

void StageModel::load_standby(const std::filesystem::path& model, const std::function<void(double)>& progress) {
  const c10::InferenceMode guard;
  WeightLoader(impl_->spec, model, impl_->device, progress, &impl_->weights.held).standby();
  impl_->device.synchronize();
}

std::int64_t StageModel::standby_bytes() const {
  std::set<std::string> names;
  for (const TensorSpec& tensor : standby_tensors(impl_->spec, impl_->shard)) names.insert(tensor.name);
  for (const TensorSpec& tensor : host_standby_tensors(impl_->spec, impl_->shard)) names.insert(tensor.name);
  for (const TensorSpec& tensor : own_tensors(impl_->spec, impl_->shard)) names.erase(tensor.name);
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : impl_->weights.held)
    if (names.contains(name)) bytes += allocated_bytes(tensor.matrix.values);
  return bytes;
}

void StageModel::take_weights(StageModel& other) {
  for (const auto& [name, tensor] : other.impl_->weights.held)
    for (const Tensor& part : {tensor.matrix.values, tensor.matrix.scales})
      if (part.defined() && !tensor.on_host) take_over(part, impl_->device);
  // A copy that came to the device meanwhile takes the place of the host's.
  for (const auto& [name, tensor] : other.impl_->weights.held) {
    const auto [mine, added] = impl_->weights.held.try_emplace(name, tensor);
    if (!added && mine->second.on_host) mine->second = tensor;
  }
}

StageModel::StageModel(const StageSpec& spec, StageWeights weights, WorkerGroup* group, const ComputeDevice& device) {
  const c10::InferenceMode guard;
  impl_ = std::make_unique<Impl>(spec, group, device);
  impl_->weights = std::move(weights);
  impl_->allocate_caches(1);
  impl_->allocate_buffers();
}

StageModel::~StageModel() = default;

Tensor StageModel::forward(const Step& step, const Tensor& incoming, const std::stop_token& stop) {
  const c10::InferenceMode guard;
  Impl& m = *impl_;
  const std::vector<SequenceRows> sequences = m.check(step);
  std::vector<std::int64_t> tokens, positions;
  for (const StepSequence& sequence : step.sequences) {
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    for (std::int64_t i = 0; i < sequence.count; ++i) positions.push_back(sequence.position + i);
  }
  const auto count = static_cast<std::int64_t>(tokens.size());
  m.device.wait_for_thread();
  Tensor hidden = m.rows("hidden", count);
  if (!m.spec.embedding) {
    MOTLEY_CHECK(incoming.size(0) == count && incoming.size(1) == m.spec.arch.hidden);
    hidden.copy_(incoming);
  }
  std::vector<MicroBatch> batches =
      micro_batches(sequences, m.spec.limits.max_tokens, m.streamed_caches ? m.buffer_blocks() : m.block_count());
  MOTLEY_CHECK(m.slot_tables.empty() || batches.size() == 1);
  m.fill_slots(batches.front());
  m.begin(batches.front(), tokens, positions);
  if (m.streamed_caches) {
    std::vector<std::vector<SequenceRows>> of_batches;
    for (const MicroBatch& batch : batches) of_batches.push_back(batch.sequences());
    m.streamed_caches->begin_step(of_batches);
  }
  const auto turn_to = [&](const MicroBatch& batch) {
    if (batches.size() == 1) return;
    m.device.wait_for_thread();  // the batch before has its numbers
    m.begin(batch, tokens, positions);
  };
  // Steps of one token per sequence differ in numbers on the device alone, unless sums over ranks pass through the
  // host; and blocks that stream are waited for.
  const bool repeats = m.sums_on_device(count) && !m.spec.offload && !has_states(m.spec.arch) &&
                       std::ssize(sequences) == count && step.answer == Answer::tokens;
  m.experts_taken.clear();
  const auto run = [&] {
    for (const MicroBatch& batch : batches) {
      turn_to(batch);
      if (m.spec.embedding) m.embed(batch.rows_of(hidden));
    }
    for (std::int64_t layer = m.spec.layers.first; layer < m.spec.layers.end; ++layer) {
      if (stop.stop_requested() && !repeats && !m.spec.offload)
        throw GroupBroken(fmt::format("asked to stop before layer {}", layer), {}, {});
      const BlockWeights& block = m.weights.blocks->block(layer);
      for (std::size_t i = 0; i < batches.size(); ++i) {
        turn_to(batches[i]);
        m.run_layer(layer, block, i, batches[i], batches[i].rows_of(hidden));
        if (step.answer == Answer::experts) m.note_experts(layer, batches[i].count);
      }
    }
  };
  if (repeats)
    m.ops.replay_or_run(2 * count, run);
  else
    run();
  return hidden;
}

const std::vector<LayerExperts>& StageModel::experts_taken() const { return impl_->experts_taken; }

Tensor StageModel::incoming_buffer() {
  MOTLEY_CHECK(!impl_->spec.embedding);
  return impl_->buffers.at("incoming");
}

Tensor StageModel::logits(const Step& step, const Tensor& hidden) {
  std::vector<std::int64_t> rows;
  std::int64_t end = 0;
  for (const StepSequence& sequence : step.sequences) {
    end += sequence.count;
    if (sequence.sampling) rows.push_back(end - 1);
  }
  return logits(hidden, rows);
}

Tensor StageModel::logits(const Tensor& hidden, std::span<const std::int64_t> rows) {
  const c10::InferenceMode guard;
  Impl& m = *impl_;
  const auto count = std::ssize(rows);
  MOTLEY_CHECK(m.spec.head && count <= m.spec.limits.max_sequences);
  Tensor last = m.rows("last", count);
  if (count > 0 && rows.back() - rows.front() == count - 1 && std::ranges::is_sorted(rows))
    last.copy_(hidden.narrow(0, rows.front(), count));
  else
    at::index_select_out(last, hidden, 0, at::tensor(at::IntArrayRef(rows.data(), rows.size())).to(m.device.place()));
  Tensor mine = m.rows("logits", count);
  const EndWeights& ends = m.weights.ends;
  const Tensor narrow = ends.projection_out.defined() ? m.rows("last_embedded", count) : Tensor();
  const auto multiply = [&] {
    m.ops.linear(mine, leave_blocks({m.spec.arch, m.ops, ends}, last, narrow), ends.head, {});
    if (const double cap = m.spec.arch.logit_cap; cap > 0) mine.div_(cap).tanh_().mul_(cap);
  };
  m.ops.replay_or_run(2 * count + 1, multiply);
  if (m.spec.degree == 1) return mine;
  const Tensor all = m.rows("all_logits", count);
  m.collectives.gather_columns(mine, all, m.vocabulary_bounds);
  return m.spec.rank == 0 ? all : Tensor();
}

std::optional<std::vector<std::int32_t>> StageModel::draw(const Tensor& logits,
                                                          std::span<const PlainDraw> draws) const {
  const c10::InferenceMode guard;
  return impl_->ops.draw(logits, draws);
}

StageModel::Allocated StageModel::allocated() const {
  Allocated bytes{.weights = impl_->weights.blocks->bytes() + impl_->weights.ends.bytes, .kv = impl_->kv_bytes};
  for (const auto& [name, buffer] : impl_->buffers) bytes.activations += allocated_bytes(buffer);
  if (impl_->spec.offload) {
    const Tensor& hidden = impl_->buffers.at("hidden");
    const auto on_host = std::ranges::count(impl_->spec.offload->activations, Tier::host);
    bytes.activations -= on_host * impl_->spec.limits.max_tokens * hidden.stride(0) * hidden.element_size();
  }
  return bytes;
}

std::int64_t StageModel::loaded_bytes() const { return impl_->weights.loaded_bytes; }

std::uint64_t StageModel::cache_epoch() const {
  std::uint64_t newest = impl_->streamed_since;
  for (const auto& [layer, cache] : impl_->caches) newest = std::max(newest, cache.kept.epoch);
  return newest;
}

StageModel::RetainedLayer* StageModel::retained_layer(std::int64_t layer) {
  for (RetainedCaches* held : {&impl_->caches, &impl_->parting})
    if (const auto found = held->find(layer); found != held->end()) return &found->second.kept;
  return nullptr;
}

void StageModel::let_parting_go() { impl_->parting.clear(); }

}  // namespace motley
