// What the parts of a plan's gradients add up to, against one device that trains on the whole batch: the engine's own
// blocks of a small decoder with grouped queries, norms inside attention, a gated FFN and biases, differentiated by
// LibTorch. Ranks are threads, each with its own graph. Every rank stores query, key and value in one tensor, gate and
// up in another, as training runtimes do.
#include "motley/plan/gradients.hpp"
#include "motley/model/part_tensors.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <deque>
#include <map>
#include <set>
#include <thread>

#include "motley/engine/weights/weights.hpp"

namespace motley {
namespace {

constexpr std::int64_t length = 6;  // tokens of a sequence

Architecture qwen3_architecture(bool tied) {
  return read_architecture(parse_json(fmt::format(R"({{"model_type": "qwen3", "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4, "attention_bias": true,
        "intermediate_size": 40, "vocab_size": 53, "max_position_embeddings": 64, "tie_word_embeddings": {}}})",
                                                  tied),
                                      "config"),
                           "config");
}

using WholeTensors = std::map<std::string, at::Tensor>;  // by name, of the whole model

WholeTensors random_checkpoint(const Architecture& arch) {
  at::manual_seed(7);
  WholeTensors checkpoint;
  for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) {
    const at::Tensor noise = (at::randn(tensor.shape, at::kFloat) * 0.2F).to(at::kDouble);  // the same in both types
    checkpoint.emplace(tensor.name, tensor.role.find("norm.weight") != std::string::npos
                                        ? (noise + 1).to(at::kFloat).to(at::kDouble)
                                        : noise);
  }
  return checkpoint;
}

// Where a rank keeps its part of a tensor: rows of a leaf that it may share with other tensors.
struct Kept {
  at::Tensor leaf;
  std::int64_t row = 0;
  Slice slice;  // of the whole tensor

  at::Tensor weight() const { return leaf.narrow(0, row, slice.rows.size()); }
  at::Tensor gradient() const { return leaf.grad().narrow(0, row, slice.rows.size()); }
};

// The tensors of one rank by the engine's names; a layer's end with ".LAYER".
struct Rank {
  Shard shard;
  std::map<std::string, Kept> kept;

  at::Tensor weight(const std::string& role) const { return kept.at(role).weight(); }
  BlockWeights block(std::int64_t layer) const {
    const std::string suffix = fmt::format(".{}", layer);
    std::map<std::string, WeightMatrix> tensors;
    for (const auto& [role, own] : kept)
      if (role.ends_with(suffix))
        tensors.emplace(role.substr(0, role.size() - suffix.size()), WeightMatrix{.values = own.weight()});
    return block_of(tensors, 0);
  }
};

at::Tensor cut(const at::Tensor& whole, const Slice& slice) {
  const at::Tensor rows = whole.narrow(0, slice.rows.first, slice.rows.size());
  return whole.dim() == 1 ? rows : rows.narrow(1, slice.columns.first, slice.columns.size());
}

// A tensor-parallel group.
class Group {
 public:
  Group(const Architecture& arch, const WholeTensors& checkpoint, at::ScalarType type, const std::vector<Shard>& shards)
      : arch_(arch), checkpoint_(checkpoint), type_(type) {
    for (const Shard& shard : shards) ranks.push_back({shard, {}});
  }

  void keep_layer(std::int64_t layer) {
    std::map<std::string, TensorSpec> by_role;
    for (TensorSpec& tensor : block_tensors(arch_, layer)) by_role.emplace(tensor.role, std::move(tensor));
    const auto keep_roles = [&](const std::vector<std::string>& roles) {
      std::vector<TensorSpec> tensors;
      for (const std::string& role : roles) {
        tensors.push_back(by_role.at(role));
        by_role.erase(role);
      }
      keep(tensors, fmt::format(".{}", layer));
    };
    keep_roles({"q.weight", "k.weight", "v.weight"});
    keep_roles({"q.bias", "k.bias", "v.bias"});
    keep_roles({"gate.weight", "up.weight"});
    while (!by_role.empty()) keep_roles({by_role.begin()->first});
  }
  void keep_end(const std::vector<TensorSpec>& tensors) {
    for (const TensorSpec& tensor : tensors) keep({tensor}, "");
  }

  std::vector<Rank> ranks;

 private:
  void keep(const std::vector<TensorSpec>& together, const std::string& suffix) {
    for (Rank& rank : ranks) {
      const auto same = std::find_if(rank.kept.begin(), rank.kept.end(), [&](const auto& entry) {
        return together.front().role == "head.weight" && arch_.tied_embeddings && entry.first == "embedding.weight";
      });
      if (same != rank.kept.end()) {
        rank.kept.emplace("head.weight", same->second);
        continue;
      }
      std::vector<at::Tensor> parts;
      for (const TensorSpec& tensor : together)
        parts.push_back(cut(checkpoint_.at(tensor.name), slice_of(arch_, tensor, rank.shard)));
      const at::Tensor leaf = at::cat(parts).to(type_).contiguous().requires_grad_();
      std::int64_t row = 0;
      for (const TensorSpec& tensor : together) {
        const Slice slice = slice_of(arch_, tensor, rank.shard);
        rank.kept.emplace(tensor.role + suffix, Kept{leaf, row, slice});
        row += slice.rows.size();
      }
    }
  }

  const Architecture& arch_;
  const WholeTensors& checkpoint_;
  at::ScalarType type_;
};

// Where ranks that are threads bring tensors; all leave with all of them, by rank.
class Meeting {
 public:
  explicit Meeting(std::size_t ranks)
      : brought_(ranks), all_here_(std::ssize(brought_)), all_read_(std::ssize(brought_)) {}

  int size() const { return static_cast<int>(brought_.size()); }
  std::vector<at::Tensor> exchange(std::size_t rank, const at::Tensor& own) {
    brought_[rank] = own;
    all_here_.arrive_and_wait();
    std::vector<at::Tensor> all = brought_;
    all_read_.arrive_and_wait();
    return all;
  }
  at::Tensor sum(std::size_t rank, const at::Tensor& own) {
    const std::vector<at::Tensor> all = exchange(rank, own);
    at::Tensor sum = all.front();
    for (std::size_t other = 1; other < all.size(); ++other) sum = sum + all[other];
    return sum;
  }

 private:
  std::vector<at::Tensor> brought_;
  std::barrier<> all_here_, all_read_;
};

// Sums forwards where the ranks' parts are added up, and backwards where their common input came from.
class ThreadRank final : public BlockRanks {
 public:
  ThreadRank(Meeting& meeting, std::size_t rank) : meeting_(meeting), rank_(rank) {}

  int size() const override { return meeting_.size(); }
  void sum(at::Tensor& terms) override {
    terms = (terms - terms.detach()) +
            meeting_.sum(rank_, terms.detach());  // the gradient of its own terms is that of the sum
  }
  void copy_to_ranks(at::Tensor& input) override {
    if (!input.requires_grad()) return;
    input = input.view_as(input);
    input.register_hook([this](const at::Tensor& gradient) { return meeting_.sum(rank_, gradient); });
  }
  void take_from_first(at::Tensor& values) override {
    values.detach().copy_(meeting_.exchange(rank_, values.detach().clone()).front());
  }
  // The ranks' columns side by side.
  at::Tensor gather(const at::Tensor& own) {
    std::vector<at::Tensor> all = meeting_.exchange(rank_, own.detach());
    all[rank_] = own;
    return at::cat(all, 1);
  }

 private:
  Meeting& meeting_;
  std::size_t rank_;
};

// Does `work(rank)` for each rank of a group in a thread of its own.
template <class Work>
void on_ranks(const Group& group, const Work& work) {
  std::vector<std::jthread> threads;
  for (std::size_t rank = 1; rank < group.ranks.size(); ++rank)
    threads.emplace_back([&work, rank] {
      at::set_num_threads(1);
      work(rank);
    });
  work(0);
}

at::Tensor embed(const Rank& rank, ThreadRank& ranks, const at::Tensor& tokens) {
  at::Tensor hidden;
  differentiable_ops().embedding(hidden, tokens, {rank.weight("embedding.weight")}, rank.shard.vocabulary);
  ranks.sum(hidden);
  return hidden;
}

// Summed over the tokens.
at::Tensor loss(const Architecture& arch, const Rank& rank, ThreadRank& ranks, const at::Tensor& hidden,
                const at::Tensor& targets) {
  at::Tensor normed, logits;
  differentiable_ops().norm(arch.norm, normed, hidden, {rank.weight("final_norm.weight"), {}}, arch.norm_epsilon);
  ranks.copy_to_ranks(normed);
  differentiable_ops().linear(logits, normed, {rank.weight("head.weight")}, {});
  return -at::log_softmax(ranks.gather(logits), -1).gather(1, targets.unsqueeze(1)).sum();
}

struct Batch {
  std::vector<at::Tensor> tokens, targets;
};
Batch random_batch(std::int64_t sequences) {
  at::manual_seed(11);
  Batch batch;
  for (std::int64_t i = 0; i < sequences; ++i) {
    batch.tokens.push_back(at::randint(53, {length}));
    batch.targets.push_back(at::randint(53, {length}));
  }
  return batch;
}

// What every device holds after its backward passes: its gradient of a tensor's slice.
struct Held {
  Slice slice;
  at::Tensor gradient;
};
using DeviceGradients = std::map<std::pair<std::string, std::string>, std::vector<Held>>;  // by device and tensor

// All groups of a stage: one per data-parallel rank and range of layers.
struct RunningStage {
  const TrainStage* stage = nullptr;
  std::vector<std::vector<Group>> groups;  // by strategy and data-parallel rank
};

std::vector<RunningStage> start(const TrainPlan& plan, const TrainReplica& replica, const WholeTensors& checkpoint,
                                at::ScalarType type) {
  const Architecture& arch = plan.model.arch;
  std::vector<RunningStage> stages;
  for (const TrainStage& stage : replica.stages) {
    RunningStage& running = stages.emplace_back();
    running.stage = &stage;
    for (const LayerStrategy& strategy : stage.strategies) {
      auto& groups = running.groups.emplace_back();
      const auto shards = make_shards(arch, static_cast<int>(strategy.tp),
                                      strategy.dp == 1 && strategy.tp > 1 ? stage.shares : std::vector<double>{});
      for (std::int64_t d = 0; d < strategy.dp; ++d) {
        Group& group = groups.emplace_back(arch, checkpoint, type, shards);
        if (strategy.layers.first == 0) group.keep_end(embedding_tensors(arch));
        for (std::int64_t layer = strategy.layers.first; layer < strategy.layers.end; ++layer) group.keep_layer(layer);
        if (strategy.layers.end == arch.layers) group.keep_end(head_tensors(arch));
      }
    }
  }
  return stages;
}

// One group's layers on one sequence: forwards, and then backwards from what came back of its output's gradient.
class Pass {
 public:
  Pass(const Architecture& arch, const Group& group, const LayerRange& layers)
      : arch_(arch),
        group_(group),
        layers_(layers),
        meeting_(group.ranks.size()),
        frequencies_{rotary_frequencies(arch.rotaries.front(), arch.kinds.front().head_dim)} {
    for (std::size_t rank = 0; rank < group.ranks.size(); ++rank) ranks_.emplace_back(meeting_, rank);
    inputs_.resize(ranks_.size());
    outputs_.resize(ranks_.size());
  }

  // Hidden states, or at the end of the model the loss; both the same on all ranks.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& tokens, const at::Tensor& targets) {
    on_ranks(group_, [&](std::size_t r) {
      const Rank& rank = group_.ranks[r];
      at::Tensor x;
      if (layers_.first == 0)
        x = embed(rank, ranks_[r], tokens);
      else
        x = inputs_[r] = input.detach().clone().requires_grad_();
      const at::Tensor positions = at::arange(length);
      const std::vector<SequenceRows> sequences = {{0, length, 0, {}}};
      const BlockCall pass{arch_, differentiable_ops(), ranks_[r], frequencies_, positions, sequences};
      for (std::int64_t layer = layers_.first; layer < layers_.end; ++layer)
        run_block(pass, rank.block(layer), layer, {}, {}, x);
      outputs_[r] = layers_.end == arch_.layers ? loss(arch_, rank, ranks_[r], x, targets) : x;
    });
    return outputs_.front();
  }

  // Returns the gradient of the input, undefined at the beginning of the model.
  at::Tensor backward(const at::Tensor& gradient) {
    on_ranks(group_, [&](std::size_t r) { outputs_[r].backward(gradient); });
    return layers_.first == 0 ? at::Tensor() : inputs_.front().grad();
  }

 private:
  const Architecture& arch_;
  const Group& group_;
  LayerRange layers_;
  Meeting meeting_;
  std::vector<RotaryFrequencies> frequencies_;
  std::deque<ThreadRank> ranks_;
  std::vector<at::Tensor> inputs_, outputs_;
};

// Forward and backward passes of a replica over its sequences.
void run(const Architecture& arch, std::vector<RunningStage>& stages, const Batch& batch, std::int64_t first,
         std::int64_t last, double tokens_of_step) {
  for (std::int64_t i = first; i < last; ++i) {
    const auto number = static_cast<std::size_t>(i);
    std::deque<Pass> passes;
    at::Tensor x;
    for (RunningStage& stage : stages)
      for (std::size_t s = 0; s < stage.groups.size(); ++s) {
        const LayerStrategy& strategy = stage.stage->strategies[s];
        const Group& group = stage.groups[s][static_cast<std::size_t>((i - first) * strategy.dp / (last - first))];
        x = passes.emplace_back(arch, group, strategy.layers).forward(x, batch.tokens[number], batch.targets[number]);
      }
    at::Tensor gradient = at::full({}, 1 / tokens_of_step, x.options());
    for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) gradient = pass->backward(gradient);
  }
}

void collect(const Architecture& arch, const std::vector<RunningStage>& stages, DeviceGradients& result) {
  for (const RunningStage& stage : stages)
    for (std::size_t s = 0; s < stage.groups.size(); ++s) {
      const LayerStrategy& strategy = stage.stage->strategies[s];
      std::map<std::string, std::string> name_of;
      const auto names = [&](const std::vector<TensorSpec>& tensors, const std::string& suffix) {
        for (const TensorSpec& tensor : tensors) name_of.emplace(tensor.role + suffix, tensor.name);
      };
      names(embedding_tensors(arch), "");
      names(head_tensors(arch), "");
      for (std::int64_t layer = 0; layer < arch.layers; ++layer)
        names(block_tensors(arch, layer), fmt::format(".{}", layer));
      for (std::size_t d = 0; d < stage.groups[s].size(); ++d)
        for (std::size_t k = 0; k < stage.groups[s][d].ranks.size(); ++k) {
          const std::string& device = stage.stage->devices[d * static_cast<std::size_t>(strategy.tp) + k];
          std::set<const void*> seen;  // a tied table has one gradient
          for (const auto& [role, kept] : stage.groups[s][d].ranks[k].kept) {
            if (role == "head.weight" && !seen.insert(kept.leaf.unsafeGetTensorImpl()).second) continue;
            if (role == "embedding.weight") seen.insert(kept.leaf.unsafeGetTensorImpl());
            Held held{kept.slice, kept.gradient()};
            if (strategy.shard >= Sharding::zero2) {  // reduced inside the stage, one part to each
              held.gradient = at::zeros_like(held.gradient);
              for (const Group& group : stage.groups[s]) held.gradient += group.ranks[k].kept.at(role).gradient();
              const auto columns = role.starts_with("o.weight") || role.starts_with("down.weight");
              Span& span = columns ? held.slice.columns : held.slice.rows;
              const std::int64_t first = span.size() * static_cast<std::int64_t>(d) / strategy.dp;
              const std::int64_t last = span.size() * static_cast<std::int64_t>(d + 1) / strategy.dp;
              held.gradient = held.gradient.narrow(columns ? 1 : 0, first, last - first);
              span = {span.first + first, span.first + last};
            }
            result[{device, name_of.at(role)}].push_back(held);
          }
        }
    }
}

TrainPlan plan_of(std::vector<TrainReplica> replicas, bool tied) {
  TrainPlan plan;
  plan.model.arch = qwen3_architecture(tied);
  Training training;
  training.sequence_length = length;
  training.global_batch = 16;
  plan.workload.training = training;
  plan.replicas = std::move(replicas);
  return plan;
}

std::int64_t first_of(const Span& a, const Span& of) { return a.first - of.first; }

// The part of what a device holds.
at::Tensor own_part(const Held& held, const Slice& slice) {
  const at::Tensor rows = held.gradient.narrow(0, first_of(slice.rows, held.slice.rows), slice.rows.size());
  return rows.dim() == 1 ? rows : rows.narrow(1, first_of(slice.columns, held.slice.columns), slice.columns.size());
}

bool inside(const Slice& part, const Slice& of) {
  return of.rows.first <= part.rows.first && part.rows.end <= of.rows.end && of.columns.first <= part.columns.first &&
         part.columns.end <= of.columns.end;
}

// Adds up the parts of the plan as it says, in `type`, and returns all gradients put together again, in fp64. Every
// element must be in just one part.
WholeTensors add_up(const TrainPlan& plan, at::ScalarType type) {
  at::set_num_threads(1);  // products this small only wait for each other
  const Architecture& arch = plan.model.arch;
  const WholeTensors checkpoint = random_checkpoint(arch);
  const Training& training = training_of(plan.workload);
  const Batch batch = random_batch(training.global_batch);
  DeviceGradients gradients;
  std::int64_t first = 0;
  for (const TrainReplica& replica : plan.replicas) {
    auto stages = start(plan, replica, checkpoint, type);
    const std::int64_t last = first + replica_sequences(training, replica);
    run(arch, stages, batch, first, last, static_cast<double>(training.global_batch * length));
    collect(arch, stages, gradients);
    first = last;
  }
  WholeTensors sums, times;
  for (const auto& [name, tensor] : checkpoint) {
    sums.emplace(name, at::zeros_like(tensor));
    times.emplace(name, at::zeros_like(tensor));
  }
  for (const GradientSlice& part : gradient_slices(plan)) {
    at::Tensor sum;
    std::map<std::string, std::size_t> before;  // holders of the same device
    for (const GradientHolder& holder : part.holders) {
      std::vector<Held> able;
      for (const Held& held : gradients.at({holder.device, part.tensor.name}))
        if (inside(part.slice, held.slice)) able.push_back(held);
      const at::Tensor own = own_part(able.at(before[holder.device]++), part.slice) * holder.weight;
      sum = sum.defined() ? sum + own : own;
    }
    cut(sums.at(part.tensor.name), part.slice).copy_(sum);
    cut(times.at(part.tensor.name), part.slice).add_(1);
  }
  for (const auto& [name, count] : times) EXPECT_TRUE(at::equal(count, at::ones_like(count))) << name;
  return sums;
}

double norm_of(const at::Tensor& tensor) { return tensor.norm().item<double>(); }

// Each tensor to 1e-6 of its size, or, where one device in fp32 is no better, about as well as that does (rounding
// differs by processor: up to 2.02 times as far off was seen); all together to 1e-6.
void expect_as_one_device(const std::vector<TrainReplica>& replicas, bool tied = false) {
  const std::vector<TrainReplica> alone = {
      {.share = 1, .stages = {{.layers = {0, 2}, .devices = {"one"}, .strategies = {{.layers = {0, 2}}}}}}};
  const WholeTensors exact = add_up(plan_of(alone, tied), at::kDouble);
  const WholeTensors one_device = add_up(plan_of(alone, tied), at::kFloat);
  const WholeTensors sums = add_up(plan_of(replicas, tied), at::kFloat);
  double error = 0, whole = 0;
  for (const auto& [name, reference] : exact) {
    const double size = norm_of(reference), off = norm_of(sums.at(name) - reference);
    EXPECT_GT(size, 1e-6) << name;
    EXPECT_LT(off, std::max(1e-6 * size, 4 * norm_of(one_device.at(name) - reference))) << name;
    error += off * off;
    whole += size * size;
  }
  EXPECT_LT(error, 1e-12 * whole);
}

TrainReplica replica_of(std::int64_t sequences, std::vector<TrainStage> stages) {
  return {.share = static_cast<double>(sequences) / 16, .micro_batches = 1, .stages = std::move(stages)};
}
TrainStage stage_of(std::vector<std::string> devices, LayerStrategy strategy) {
  const LayerRange layers = strategy.layers;
  return {.layers = layers, .devices = std::move(devices), .strategies = {strategy}};
}

const std::vector<std::string> four = {"c/0", "c/1", "c/2", "c/3"};

// Four ranks share two key/value heads: each has a part of their gradients.
TEST(GradientParts, DegreesOneTwoFourAndBatchesThreeFiveEight) {
  for (const bool tied : {false, true})
    expect_as_one_device({replica_of(3, {stage_of({"a/0"}, {.layers = {0, 2}})}),
                          replica_of(5, {stage_of({"b/0", "b/1"}, {.layers = {0, 2}, .tp = 2})}),
                          replica_of(8, {stage_of(four, {.layers = {0, 2}, .tp = 4})})},
                         tied);
}

TEST(GradientParts, DataParallelRanksInsideAStage) {
  for (const Sharding shard : {Sharding::none, Sharding::zero1, Sharding::zero2, Sharding::zero3})
    expect_as_one_device({replica_of(3, {stage_of({"a/0"}, {.layers = {0, 2}})}),
                          replica_of(5, {stage_of({"b/0", "b/1"}, {.layers = {0, 2}, .tp = 2})}),
                          replica_of(8, {stage_of(four, {.layers = {0, 2}, .tp = 2, .dp = 2, .shard = shard})})});
}

// Stages that end elsewhere, strategies that change inside a stage, a tied table on both ends of one pipeline and once
// in another.
TEST(GradientParts, StagesAndStrategiesOfTheirOwn) {
  TrainStage changing = stage_of(four, {.layers = {0, 1}, .tp = 2, .dp = 2, .shard = Sharding::zero2});
  changing.strategies.push_back({.layers = {1, 2}, .tp = 4});
  changing.layers = {0, 2};
  for (const bool tied : {false, true})
    expect_as_one_device(
        {replica_of(3, {stage_of({"a/0"}, {.layers = {0, 1}}), stage_of({"a/1", "a/2"}, {.layers = {1, 2}, .tp = 2})}),
         replica_of(5, {stage_of({"b/0", "b/1"}, {.layers = {0, 2}, .tp = 2})}), replica_of(8, {changing})},
        tied);
}

// Three ranks of unlike shares and two equal ones: cuts that no degree alone explains.
TEST(GradientParts, UnlikeShares) {
  TrainStage uneven = stage_of({"b/0", "b/1", "b/2"}, {.layers = {0, 2}, .tp = 3});
  uneven.shares = {0.5, 0.3, 0.2};
  expect_as_one_device(
      {replica_of(7, {stage_of({"a/0", "a/1"}, {.layers = {0, 2}, .tp = 2})}), replica_of(9, {uneven})});
}

}  // namespace
}  // namespace motley
