#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/rounding.hpp"
#include "motley/model/training.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {
namespace {

constexpr std::int64_t fp32_bytes = 4;

std::int64_t element_bytes(const Training& training) { return bytes_of(training.precision, 1); }

std::int64_t state(double bytes_per_parameter, std::int64_t parameters, std::int64_t parts) {
  return static_cast<std::int64_t>(
      std::ceil(bytes_per_parameter * static_cast<double>(parameters) / static_cast<double>(parts)));
}

// Adds the states of `parameters` parameters.
void add_states(TrainMemory& memory, const StateBytes& bytes, std::int64_t parameters, const LayerStrategy& strategy) {
  const auto parts = [&](Sharding from) { return strategy.shard >= from ? strategy.dp : 1; };
  memory.weights += state(bytes.weight, parameters, parts(Sharding::zero3));
  memory.gradients += state(bytes.gradient, parameters, parts(Sharding::zero2));
  memory.optimizer += state(bytes.master + bytes.moments, parameters, parts(Sharding::zero1));
}

// Of a micro-batch, on one rank.
std::int64_t rank_sequences(const StageFootprint& footprint, const LayerStrategy& strategy,
                            const std::vector<double>& shares, std::size_t rank) {
  if (shares.empty() || strategy.dp == 1) return ceil_div(footprint.sequences, strategy.dp);
  const double share = shares[rank] * static_cast<double>(strategy.tp);
  return std::llround(std::ceil(static_cast<double>(footprint.sequences) * share - 1e-9));
}

}  // namespace

const Training& training_of(const Workload& workload) {
  if (!workload.training)
    throw input_error("the workload has no [training]",
                      "describe the job: [training] sequence_length = 2048, global_batch = 1024");
  return *workload.training;
}

std::int64_t replica_sequences(const Training& training, const TrainReplica& replica) {
  return std::llround(replica.share * static_cast<double>(training.global_batch));
}

std::int64_t micro_batch_sequences(const Training& training, const TrainReplica& replica) {
  return ceil_div(replica_sequences(training, replica), std::max<std::int64_t>(1, replica.micro_batches));
}

StateBytes state_bytes(const Training& training) {
  if (training.states) return *training.states;
  StateBytes bytes;
  if (training.precision == DType::bf16 && training.executor == Executor::motley) bytes.gradient = 4;
  if (training.precision == DType::fp32) bytes = {.weight = 4, .gradient = 4, .master = 0, .moments = 8};
  if (training.optimizer == "sgd") bytes.moments = training.momentum > 0 ? 4 : 0;
  return bytes;
}

bool weights_wait(const Training& training, const LayerStrategy& strategy) {
  return training.executor == Executor::motley && !strategy.recompute &&
         (strategy.dp == 1 || strategy.shard < Sharding::zero2);
}

std::int64_t micro_batches_in_flight(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                                     std::int64_t micro_batches) {
  if (schedule == PipelineSchedule::gpipe) return micro_batches;
  return std::min(micro_batches, static_cast<std::int64_t>(stages - stage));
}

std::int64_t weight_lag(PipelineSchedule schedule, std::size_t stage) {
  return schedule == PipelineSchedule::zb_h1 ? static_cast<std::int64_t>(stage) : 0;
}

std::int64_t micro_batches_waiting(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                                   std::int64_t micro_batches) {
  return std::min(weight_lag(schedule, stage),
                  micro_batches - micro_batches_in_flight(schedule, stage, stages, micro_batches));
}

namespace {

// What a tensor-parallel rank holds of a block, and of the ends.
struct BlockParts {
  std::int64_t parameters = 0;
  std::int64_t stored_elements = 0, backward_elements = 0;  // per token
};
struct RankParts {
  std::vector<BlockParts> blocks;                  // by kind of layer
  std::int64_t embedding = 0, head = 0, tied = 0;  // parameters; tied: of both ends in one stage
  std::int64_t logit_bytes = 0;                    // per token
};

std::vector<RankParts> parts_of(const Architecture& arch, const Training& training, const std::vector<Shard>& shards,
                                const StageFootprint& footprint) {
  std::vector<RankParts> parts;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = shards[i];
    if (i > 0 && of_one_size(shard, shards[i - 1])) {
      parts.push_back(parts.back());
      continue;
    }
    RankParts& own = parts.emplace_back();
    for (const std::int64_t layer : layer_of_kinds(arch))
      own.blocks.push_back({rank_parameters(arch, {.layers = {layer, layer + 1}}, shard),
                            stored_elements_per_token(arch, layer, shard),
                            backward_elements_per_token(arch, layer, shard)});
    if (footprint.embedding) own.embedding = rank_parameters(arch, {.layers = {}, .embedding = true}, shard);
    if (footprint.head) own.head = rank_parameters(arch, {.layers = {}, .embedding = false, .head = true}, shard);
    if (footprint.embedding && footprint.head)
      own.tied = rank_parameters(arch, {.layers = {}, .embedding = true, .head = true}, shard);
    own.logit_bytes = logit_bytes_per_token(shard, training.precision);
  }
  return parts;
}

}  // namespace

std::vector<TrainMemory> train_memory(const Architecture& arch, const Training& training,
                                      const StageFootprint& footprint, const std::vector<LayerStrategy>& strategies,
                                      const std::vector<double>& shares) {
  MOTLEY_CHECK(!strategies.empty());
  const StateBytes bytes = state_bytes(training);
  const std::int64_t element = element_bytes(training);
  const auto ranks = static_cast<std::size_t>(strategies.front().tp * strategies.front().dp);
  std::vector<TrainMemory> memory(ranks);
  std::vector<std::int64_t> working(ranks);
  for (const LayerStrategy& strategy : strategies) {
    const bool cut = strategy.tp > 1 && !shares.empty();
    const auto parts =
        parts_of(arch, training, make_shards(arch, static_cast<int>(strategy.tp), cut ? shares : std::vector<double>{}),
                 footprint);
    const bool first = &strategy == &strategies.front() && footprint.embedding;
    const bool last = &strategy == &strategies.back() && footprint.head;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      TrainMemory& own = memory[rank];
      const RankParts& part = parts[rank % static_cast<std::size_t>(strategy.tp)];
      const std::int64_t tokens = rank_sequences(footprint, strategy, shares, rank) * training.sequence_length;
      const std::int64_t waiting = weights_wait(training, strategy) ? footprint.waiting : 0;
      // What of a layer is kept for the backward pass, and the layer under way: what its backward pass works with, what
      // recomputation brings back, weights that are gathered, gradients that are not added up where they stay. Of
      // `split` parts one is there with its gradient in fp32; gradients of a whole layer are there twice, without
      // weights, for the ranks to divide.
      const bool divided = strategy.dp > 1 && strategy.shard >= Sharding::zero2;
      const bool gathered = divided && strategy.shard == Sharding::zero3;
      const bool sliced = gathered && strategy.split > 1;
      const std::int64_t summed = strategy.tp > 1 ? 2 * tokens * arch.hidden * element : 0;  // over the ranks
      for (std::size_t kind = 0; const std::int64_t count : kind_counts(arch, strategy.layers)) {
        const BlockParts& block = part.blocks[kind++];
        if (count == 0) continue;
        const std::int64_t whole = tokens * block.stored_elements * element;
        const std::int64_t kept = strategy.recompute ? tokens * arch.hidden * element : whole;
        add_states(own, bytes, count * block.parameters, strategy);
        // Products that wait keep their inputs and the gradients of their outputs: as many elements as were stored, and
        // by measurement one hidden size more.
        own.activations += count * (kept * footprint.in_flight + (whole + tokens * arch.hidden * element) * waiting);
        std::int64_t layer = tokens * block.backward_elements * element + summed + (strategy.recompute ? whole : 0);
        if (gathered) layer += state(bytes.weight, block.parameters, strategy.split);
        if (sliced)
          layer += state(fp32_bytes, block.parameters, strategy.split);
        else if (divided || element < fp32_bytes)
          layer += element * block.parameters;
        if (divided && !sliced) layer = std::max(layer, 2 * fp32_bytes * block.parameters);
        working[rank] = std::max(working[rank], layer);
      }
      if (first || last)
        add_states(own, bytes, first && last ? part.tied : first ? part.embedding : part.head, strategy);
      if (last) {
        // Norms are in fp32, and 16-bit products of the head's gradient are there before they are added up.
        const std::int64_t hidden = (element < fp32_bytes ? 5 * fp32_bytes : 3 * fp32_bytes) * arch.hidden;
        const std::int64_t table = (element < fp32_bytes ? element : 0) + (divided ? fp32_bytes : 0);
        working[rank] = std::max(working[rank], tokens * (part.logit_bytes + hidden) + summed + table * part.head +
                                                    (gathered ? state(bytes.weight, part.head, 1) : 0));
      }
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) memory[rank].activations += working[rank];
  return memory;
}

std::vector<TrainMemory> stage_memory(const TrainPlan& plan, const TrainReplica& replica, std::size_t stage) {
  const Training& training = training_of(plan.workload);
  const TrainStage& held = replica.stages[stage];
  const StageFootprint footprint{
      .embedding = stage == 0,
      .head = stage + 1 == replica.stages.size(),
      .sequences = micro_batch_sequences(training, replica),
      .in_flight = micro_batches_in_flight(plan.schedule, stage, replica.stages.size(), replica.micro_batches),
      .waiting = micro_batches_waiting(plan.schedule, stage, replica.stages.size(), replica.micro_batches)};
  auto memory = train_memory(plan.model.arch, training, footprint, held.strategies, held.shares);
  MOTLEY_CHECK(memory.size() == held.devices.size());
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const DeviceType& type = plan.cluster.type_of(plan.cluster.find_device(held.devices[rank]));
    memory[rank].reserve = type.reserve_bytes.value_or(0);
    memory[rank].limit = type.memory_bytes;
  }
  return memory;
}

}  // namespace motley
