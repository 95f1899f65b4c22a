#include "motley/planner/offload/shape_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "motley/cluster/host_reserve.hpp"
#include "motley/model/type_quality.hpp"

namespace motley {
namespace {

constexpr ModelPart ends{.layers = {}, .embedding = true, .head = true};
constexpr double worst = -std::numeric_limits<double>::infinity();

double busiest_s(const ResourceSeconds& seconds) { return *std::max_element(seconds.begin(), seconds.end()); }

StepLimits limits_of(const PassShape& shape, std::int64_t block_tokens) {
  return {.max_tokens = shape.batch + shape.prompt_chunk, .max_sequences = shape.batch, .block_tokens = block_tokens};
}

}  // namespace

ShapeSearch::ShapeSearch(const Cluster& cluster, const Model& model, const Workload& workload, int device,
                         const OffloadOptions& options, Instant deadline)
    : cluster_(cluster),
      model_(model),
      workload_(workload),
      device_(device),
      options_(options),
      deadline_(deadline),
      tiers_(tiers_of(cluster, device)),
      shard_(make_shards(model.arch, 1).front()) {
  tiers_.host_bytes -= host_reserve_bytes(tiers_.host_bytes);
}

// Larger is better; -infinity: outside a limit.
double ShapeSearch::rank(double tokens_per_s, double latency_s) const {
  if (options_.most_latency_s && latency_s > *options_.most_latency_s) return worst;
  if (!options_.least_tokens_per_s) return tokens_per_s;
  return tokens_per_s < *options_.least_tokens_per_s ? worst : 1 / latency_s;
}

bool ShapeSearch::better(const OffloadPrediction& a, const OffloadPrediction& than) const {
  return rank(a.tokens_per_s, a.latency_s) > rank(than.tokens_per_s, than.latency_s);
}

// None: what never leaves the device does not fit it.
std::optional<ShapeSearch::Room> ShapeSearch::room_of(const OffloadCost& cost, const PassShape& shape) const {
  const Architecture& arch = model_.arch;
  const DeviceType& type = cluster_.type_of(device_);
  const StepLimits limits = limits_of(shape, options_.block_tokens);
  const std::int64_t tokens = cost.kv_tokens(shape.batch * shape.batches, options_.block_tokens);
  const auto kv_bytes = [&](std::int64_t of) {
    return largest_kv_bytes(arch, shard_, kv_type_, of, options_.block_tokens);
  };
  Room room{.device = type.memory_bytes - type.reserve_bytes.value_or(0) - ends_bytes_ - activation_bytes_,
            .host = tiers_.host_bytes,
            .disk = tiers_.disk ? tiers_.disk->capacity_bytes : 0,
            .layer = layer_bytes_,
            .kv_layer = kv_bytes(tokens),
            .kv_buffers = offload_buffers * kv_bytes(kv_buffer_tokens(tokens, shape.batches))};
  if (shape.batches > 1)
    room.hidden = Buffer{"", dtype_row(weight_type_).computed_in, {limits.max_tokens, arch.hidden}}.bytes();
  for (std::int64_t layer = 0; layer < arch.layers; ++layer)
    room.device -= states_bytes(arch, layer, shard_, shape.batch * shape.batches);
  if (room.device < 0) return {};
  return room;
}

// The most layers whose weights fit on the device with the keys and values of `kv_layers`.
std::optional<std::int64_t> ShapeSearch::device_layers(const Room& room, std::int64_t kv_layers, std::int64_t hidden,
                                                       bool cpu_attention) const {
  const std::int64_t layers = model_.arch.layers;
  const std::int64_t kv_buffers = kv_layers < layers && !cpu_attention ? room.kv_buffers : 0;
  const std::int64_t left = room.device - kv_layers * room.kv_layer - kv_buffers - hidden * room.hidden;
  if (left >= layers * room.layer) return layers;
  const std::int64_t beside_buffers = left - offload_buffers * room.layer;
  if (beside_buffers < 0) return {};
  return std::min(layers - 1, beside_buffers / room.layer);
}

// As if all that is not on the device were in host memory, or on disk where that asks less of a resource, but for the
// bytes that do not fit the host: the disk reads at least these.
std::optional<ShapeSearch::Candidate> ShapeSearch::bound(const OffloadCost& cost, const PassShape& shape) const {
  const std::int64_t layers = model_.arch.layers;
  const std::optional<Room> room = room_of(cost, shape);
  if (!room) return {};
  const PassSeconds seconds = cost.seconds(shape);
  const auto disk_s_per_byte = [&](const ResourceSeconds& of, std::int64_t bytes) {
    return of[static_cast<std::size_t>(Resource::disk_read)] / static_cast<double>(bytes);
  };
  const double least_disk_s =
      std::min(disk_s_per_byte(seconds.weights[2], room->layer), disk_s_per_byte(seconds.kv[2], room->kv_layer));
  // Whichever of host memory and disk asks less of a resource.
  PassSeconds optimistic = seconds;
  for (std::size_t r = 0; r < resource_count; ++r) {
    optimistic.weights[1][r] = std::min(seconds.weights[1][r], seconds.weights[2][r]);
    optimistic.kv[1][r] = std::min(seconds.kv[1][r], seconds.kv[2][r]);
  }
  double least_s = std::numeric_limits<double>::infinity();
  for (std::int64_t kv = fewest_kv_layers(); kv <= layers; ++kv) {
    const auto weights = device_layers(*room, kv, 0, shape.cpu_attention);
    if (!weights) break;
    const std::int64_t away = (layers - *weights) * room->layer + (layers - kv) * room->kv_layer;
    const std::int64_t on_disk = std::max<std::int64_t>(0, away - room->host);
    if (on_disk > room->disk) continue;
    const PlacedCounts counts{{*weights, layers - *weights, 0}, {kv, layers - kv, 0}, {shape.batches, 0, 0}};
    const double pass_s = std::max(busiest_s(optimistic.of(counts)), least_disk_s * static_cast<double>(on_disk));
    least_s = std::min(least_s, pass_s);
  }
  if (!std::isfinite(least_s)) return {};
  const PassLoad load = cost.load(shape);
  return Candidate{shape, static_cast<double>(shape.batches) * load.finished * workload_.mean_output_tokens() / least_s,
                   load.passes * least_s};
}

// What is the same for all shapes of a batch.
void ShapeSearch::prepare(std::int64_t batch, std::int64_t chunk) {
  const StepLimits limits = limits_of({batch, 1, chunk, false}, options_.block_tokens);
  activation_bytes_ = activation_bytes(model_.arch, ends, shard_, weight_type_, limits);
}

void ShapeSearch::consider(const OffloadCost& cost, const PassShape& shape, const PassSeconds& seconds,
                           const PlacedCounts& counts) {
  ++evaluated_;
  const OffloadPrice price = cost.price(shape, seconds, counts);
  const double value = rank(price.tokens_per_s, price.latency_s);
  constexpr double rounding = 1e-12;  // of sums over layers: of equal placements the first is kept
  if (value == worst) return;
  if (best_ && value <= (1 + rounding) * rank(best_->price.tokens_per_s, best_->price.latency_s)) return;
  best_ = Found{shape,        counts,   price,
                weight_type_, kv_type_, cost.kv_tokens(shape.batch * shape.batches, options_.block_tokens)};
}

// More weights on the device are never slower, nor with an accelerator more in host memory than on disk: given the
// homes of keys and values and of hidden states, those of the weights follow. What keeps more on the device comes
// first.
void ShapeSearch::evaluate(const OffloadCost& cost, const PassShape& shape) {
  const std::int64_t layers = model_.arch.layers;
  const std::optional<Room> room = room_of(cost, shape);
  if (!room) return;
  const PassSeconds seconds = cost.seconds(shape);
  const bool staged = !tiers_.is_processor;
  const std::vector<std::int64_t> hidden_on_device = shape.batches > 1 && !options_.weights_only
                                                         ? std::vector{shape.batches, std::int64_t{0}}
                                                         : std::vector{shape.batches};
  for (const std::int64_t hidden : hidden_on_device)
    for (std::int64_t kv = layers; kv >= fewest_kv_layers(); --kv) {
      const auto weights = device_layers(*room, kv, hidden, shape.cpu_attention);
      if (!weights) continue;
      const std::int64_t away = layers - *weights;
      for (std::int64_t kv_disk = 0; kv_disk <= layers - kv; ++kv_disk) {
        const std::int64_t kv_host = layers - kv - kv_disk;
        const std::int64_t kv_buffers = kv_disk > 0 && (shape.cpu_attention || staged) ? room->kv_buffers : 0;
        const std::int64_t host =
            room->host - kv_host * room->kv_layer - kv_buffers - (shape.batches - hidden) * room->hidden;
        if (host < 0) continue;
        std::int64_t host_layers = away;
        if (host < away * room->layer) {
          const std::int64_t left = host - (staged ? offload_buffers * room->layer : 0);
          if (left < 0) continue;
          host_layers = std::min(away - 1, left / room->layer);
        }
        // A copy inside host memory reads and writes it, a disk only writes it: on a processor less may be better.
        const std::int64_t fewest = staged || !tiers_.disk ? host_layers : 0;
        for (; host_layers >= fewest; --host_layers) {
          const std::int64_t disk_layers = away - host_layers;
          if (disk_layers * room->layer + kv_disk * room->kv_layer > room->disk) break;
          consider(cost, shape, seconds,
                   {{*weights, host_layers, disk_layers}, {kv, kv_host, kv_disk}, {hidden, shape.batches - hidden, 0}});
        }
      }
    }
}

void ShapeSearch::run(DType weight_type, DType kv_type) {
  weight_type_ = weight_type;
  kv_type_ = kv_type;
  ends_bytes_ = weight_bytes(model_.arch, ends, shard_, weight_type_);
  layer_bytes_ = largest_block_bytes(model_.arch, shard_, weight_type_);
  const OffloadCost cost(options_.cost, cluster_, model_, device_, weight_type, kv_type, workload_.mean_prompt_tokens(),
                         workload_.mean_output_tokens());
  std::vector<Candidate> open;
  // On a processor the host's memory is its own: attention there needs no copy.
  for (const bool cpu_attention : {false, true}) {
    if (tiers_.is_processor && !cpu_attention) continue;
    for (std::int64_t batch = 1; batch <= options_.max_batch; ++batch) {
      for (const std::int64_t chunk : cost.chunks(batch)) {
        prepare(batch, chunk);
        for (std::int64_t batches = 1; batches <= options_.max_batches; ++batches) {
          // More sequences need more memory: the first shape that does not fit ends the row.
          const auto candidate = bound(cost, {batch, batches, chunk, cpu_attention});
          if (!candidate) break;
          if (rank(candidate->tokens_per_s, candidate->latency_s) > worst) open.push_back(*candidate);
        }
      }
      if (Clock::now() > deadline_) {  // no bound for the shapes that are left
        stopped_ = batch < options_.max_batch || !cpu_attention;
        break;
      }
    }
  }
  const auto value = [&](const Candidate& of) { return rank(of.tokens_per_s, of.latency_s); };
  std::stable_sort(open.begin(), open.end(), [&](const auto& a, const auto& b) { return value(a) > value(b); });
  for (const Candidate& candidate : open) {
    if (best_ && value(candidate) <= rank(best_->price.tokens_per_s, best_->price.latency_s)) break;
    if (Clock::now() > deadline_) {
      stopped_ = true;
      bound_ = std::max(bound_, candidate.tokens_per_s);
      break;
    }
    prepare(candidate.shape.batch, candidate.shape.prompt_chunk);
    evaluate(cost, candidate.shape);
  }
}

bool ShapeSearch::fill(OffloadPlan& plan) const {
  if (!best_) return false;
  plan.batch = best_->shape.batch;
  plan.batches = best_->shape.batches;
  plan.prompt_chunk = best_->shape.prompt_chunk;
  plan.cpu_attention = best_->shape.cpu_attention && best_->counts.kv.away() > 0;
  plan.kv_tokens = best_->kv_tokens;
  plan.weights = shares_of(best_->counts.weights);
  plan.kv = shares_of(best_->counts.kv);
  plan.activations = shares_of(best_->counts.activations);
  plan.weight_type = best_->weight_type;
  plan.kv_type = best_->kv_type;
  const OffloadPrice& price = best_->price;
  plan.predicted.tokens_per_s = price.tokens_per_s;
  plan.predicted.latency_s = price.latency_s;
  if (options_.most_kl) plan.predicted.kl = weight_kl(plan.weight_type).value_or(0) + kv_kl(plan.kv_type).value_or(0);
  for (std::size_t r = 0; r < resource_count; ++r)
    if (price.seconds[r] > 0)
      plan.predicted.busy[std::string(name_of(static_cast<Resource>(r)))] = price.seconds[r] / price.pass_s;
  const ServePlan serve = serving_plan(plan);
  plan.predicted.memory_bytes[plan.device] = stage_memory(serve, serve.stages.front()).front();
  plan.search.evaluated = evaluated_;
  plan.search.status = stopped_ ? SearchStatus::deadline : SearchStatus::optimal;
  const double bound = std::max(bound_, price.tokens_per_s);
  plan.search.bound = options_.least_tokens_per_s ? price.tokens_per_s : bound;
  plan.search.gap = 1 - price.tokens_per_s / *plan.search.bound;
  return true;
}

}  // namespace motley
