#include "motley/cost/train/train_price.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "motley/base/rounding.hpp"
#include "motley/base/units.hpp"
#include "motley/plan/gradient_sync.hpp"

namespace motley {
namespace {

StageWork work_of(const ReplicaLayout& replica, const PlacedStage& stage) {
  return {stage.devices, stage.shares, micro_batch_of(replica)};
}

// A stage's part in adding up one layer: into how many equal pieces its ranks cut it, and who has each piece.
struct Owner {
  std::int64_t pieces = 1;
  std::vector<std::vector<int>> members;  // by piece
};
Owner owner_of(const PlacedStage& stage, const LayerStrategy& strategy) {
  const bool sharded = strategy.shard >= Sharding::zero2;
  Owner owner{.pieces = sharded ? strategy.tp * strategy.dp : strategy.tp, .members = {}};
  owner.members.resize(static_cast<std::size_t>(owner.pieces));
  for (std::int64_t d = 0; d < strategy.dp; ++d)
    for (std::int64_t k = 0; k < strategy.tp; ++k) {
      const std::int64_t piece = sharded ? k * strategy.dp + d : k;
      owner.members[static_cast<std::size_t>(piece)].push_back(
          stage.devices[static_cast<std::size_t>(d * strategy.tp + k)]);
    }
  return owner;
}

// Calls piece(from, to, members) for every part between neighbouring cuts of any owner.
template <class Piece>
void for_each_piece(const std::vector<Owner>& owners, const Piece& piece) {
  std::vector<double> cuts = {0.0, 1.0};
  for (std::size_t o = 0; o < owners.size(); ++o)
    if (o == 0 || owners[o].pieces != owners[o - 1].pieces)
      for (std::int64_t i = 1; i < owners[o].pieces; ++i)
        cuts.push_back(static_cast<double>(i) / static_cast<double>(owners[o].pieces));
  std::sort(cuts.begin(), cuts.end());
  std::vector<int> members;
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    const double from = cuts[c], to = cuts[c + 1];
    if (to - from < 1e-9) continue;  // the same cut, perhaps rounded differently
    members.clear();
    for (const Owner& owner : owners) {
      const auto own = static_cast<std::size_t>((from + to) / 2 * static_cast<double>(owner.pieces));
      members.insert(members.end(), owner.members[own].begin(), owner.members[own].end());
    }
    std::sort(members.begin(), members.end());  // devices of a machine, machines of a site are neighbours
    piece(from, to, members);
  }
}

// Per step, after the update; with zero3 every pass does.
bool gathers_once(const LayerStrategy& strategy) {
  return strategy.shard == Sharding::zero1 || strategy.shard == Sharding::zero2;
}

// How often a rank reads or writes the bytes of weights that are gathered after the update, in addition to the
// exchange: its own part goes into one piece, and the others' are taken from it.
constexpr double new_weight_copies = 2;

class Exchange {
 public:
  Exchange(const TrainStepCost& cost, SyncAlgorithm algorithm)
      : cost_(cost), links_(cost.links()), algorithm_(algorithm), sums_(links_), gathers_(links_) {}

  // `bytes` of gradients, `copies` times.
  void add(const std::vector<Owner>& owners, double bytes, double copies) {
    for_each_piece(owners, [&](double from, double to, const std::vector<int>& members) {
      add_piece(members, bytes * (to - from), copies);
    });
  }
  // Sharded states leave every rank with its part of the new weights: it gathers the rest, one unit after the other.
  void add_gather(const PlacedStage& stage, const LayerStrategy& strategy, double bytes, double copies) {
    const double part = bytes / static_cast<double>(strategy.tp);
    for (std::int64_t k = 0; k < strategy.tp; ++k) {
      std::vector<int> ring;
      for (std::int64_t d = 0; d < strategy.dp; ++d)
        ring.push_back(stage.devices[static_cast<std::size_t>(d * strategy.tp + k)]);
      gathers_.loads.add_ring(ring, copies * shared_out_bytes(ring, part), part / static_cast<double>(strategy.dp));
      gathers_.add_latency(ring, copies * (longest_s(ring) + cost_.copies_s(ring, new_weight_copies * part)));
    }
  }

  GradientExchange result() const {
    return {.seconds = sums_.seconds(),
            .gather_s = gathers_.seconds(),
            .busiest_link = sums_.loads.busiest(),
            .by_processors = sums_.loads.busiest_is_of_processors()};
  }

 private:
  struct Traffic {
    explicit Traffic(const TrainLinks& links) : loads(links), latencies_s(links.cluster().devices.size()) {}
    void add_latency(const std::vector<int>& members, double latency_s) {
      for (const int member : members) latencies_s[static_cast<std::size_t>(member)] += latency_s;
    }
    double seconds() const { return *std::max_element(latencies_s.begin(), latencies_s.end()) + loads.seconds(); }

    LinkLoads loads;
    std::vector<double> latencies_s;  // by device
  };

  double longest_s(const std::vector<int>& ring) const {
    double latency_s = 0;
    for (std::size_t i = 0; i < ring.size(); ++i)
      latency_s = std::max(latency_s, links_.path(ring[i], ring[(i + 1) % ring.size()]).latency_s);
    return latency_s;
  }

  // Rings and direct exchange in closed form: the search prices them most.
  void add_piece(const std::vector<int>& members, double bytes, double copies) {
    if (members.size() < 2) return;
    if (algorithm_ == SyncAlgorithm::hierarchical) return add_rounds(members, bytes, copies);
    const auto count = static_cast<double>(members.size());
    double latency_s = 0, rounds = 0;
    if (algorithm_ == SyncAlgorithm::ring) {
      rounds = 2 * (count - 1);
      sums_.loads.add_ring(members, copies * 2 * bytes * (count - 1) / count, bytes / count);
      latency_s = longest_s(members);
    } else {
      rounds = 2;
      for (const int from : members)
        for (const int to : members)
          if (from != to) {
            sums_.loads.add(from, to, copies * 2 * bytes / count, bytes / count);
            latency_s = std::max(latency_s, links_.path(from, to).latency_s);
          }
    }
    sums_.add_latency(members, copies * rounds * latency_s);
  }

  // The rounds of a reduce-scatter, one after the other, and the same way back.
  void add_rounds(const std::vector<int>& members, double bytes, double copies) {
    const auto device = [&](int rank) { return members[static_cast<std::size_t>(rank)]; };
    double latency_s = 0;
    for (const CollectiveRound& round : rounds_of(members)) {
      double longest_s = 0;
      for (const CollectiveTransfer& transfer : round) {
        const int from = device(transfer.from), to = device(transfer.to);
        const double moved = bytes * static_cast<double>(transfer.last - transfer.first) / static_cast<double>(whole);
        sums_.loads.add(from, to, copies * moved, moved);
        sums_.loads.add(to, from, copies * moved, moved);
        longest_s = std::max({longest_s, links_.path(from, to).latency_s, links_.path(to, from).latency_s});
      }
      latency_s += 2 * longest_s;
    }
    sums_.add_latency(members, copies * latency_s);
  }

  const std::vector<CollectiveRound>& rounds_of(const std::vector<int>& members) {
    const auto [found, is_new] = rounds_.try_emplace(members);
    if (is_new) {
      const CollectiveGroup group = sync_group(links_.cluster(), algorithm_, members);
      found->second = reduce_scatter_rounds(group, share_blocks(whole, group, {}, 1));
    }
    return found->second;
  }

  static constexpr std::int64_t whole = std::int64_t{1} << 40;  // of which transfers are parts

  const TrainStepCost& cost_;
  const TrainLinks& links_;
  SyncAlgorithm algorithm_;
  Traffic sums_, gathers_;
  std::map<std::vector<int>, std::vector<CollectiveRound>> rounds_;  // of a reduce-scatter, by members
};

double elements(const std::vector<TensorSpec>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) sum += static_cast<double>(tensor.elements());
  return sum;
}

// Where any replica's stage or strategy ends.
std::vector<std::int64_t> common_cuts(const TrainLayout& layout) {
  std::vector<std::int64_t> cuts;
  for (const auto& replica : layout.replicas)
    for (const auto& stage : replica.stages)
      for (const auto& strategy : stage.strategies) cuts.push_back(strategy.layers.end);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// A replica's ranges of layers, first to last.
class Walk {
 public:
  explicit Walk(const ReplicaLayout& replica) : replica_(replica) {}
  const PlacedStage& stage() const { return replica_.stages[stage_]; }
  const LayerStrategy& strategy() const { return stage().strategies[range_]; }
  // To the range that begins where this one ends; false where it goes on beyond `layer`.
  bool next(std::int64_t layer) {
    if (strategy().layers.end > layer) return false;
    if (++range_ == stage().strategies.size() && stage_ + 1 < replica_.stages.size()) {
      ++stage_;
      range_ = 0;
    }
    return range_ < stage().strategies.size();
  }

 private:
  const ReplicaLayout& replica_;
  std::size_t stage_ = 0, range_ = 0;
};

std::vector<PipelineLoad> pipelines_of(const TrainStepCost& cost, const TrainLayout& layout) {
  std::vector<PipelineLoad> pipelines;
  for (const auto& replica : layout.replicas) {
    PipelineLoad& pipeline =
        pipelines.emplace_back(PipelineLoad{.stages = {}, .micro_batches = replica.micro_batches, .hops = cost.hops()});
    for (std::size_t s = 0; s < replica.stages.size(); ++s) pipeline.stages.push_back(pipeline_stage(cost, replica, s));
  }
  return pipelines;
}

double boundaries_s(const TrainStepCost& cost, const ReplicaLayout& replica) {
  return static_cast<double>(replica.stages.size() - 1) * cost.boundary_overhead_s();
}

template <class MakespanOf>
double step_s(const TrainStepCost& cost, const TrainLayout& layout, const TrainStepPrice& price,
              MakespanOf makespan_of) {
  double slowest_s = 0;
  for (std::size_t r = 0; r < layout.replicas.size(); ++r)
    slowest_s = std::max(slowest_s, makespan_of(r) + boundaries_s(cost, layout.replicas[r]));
  return slowest_s + price.exchange_s + price.update_s;
}

// Where a replica's time goes: its busiest stage's work, the hops that it waits for, and the rest, which is the bubble.
Term replica_term(const TrainStepCost& cost, const TrainLayout& layout, const TrainStepPrice& price,
                  std::size_t number) {
  const ReplicaLayout& replica = layout.replicas[number];
  const PipelineTimes& times = price.pipelines[number];
  const auto busiest =
      static_cast<std::size_t>(std::max_element(times.busy_s.begin(), times.busy_s.end()) - times.busy_s.begin());
  PipelineLoad without_hops = price.loads[number];
  for (auto& stage : without_hops.stages) stage.send = stage.back = {};
  const double alone_s = run_pipelines(layout.schedule, {without_hops}).front().makespan_s;

  StageParts parts;
  pipeline_stage(cost, replica, busiest, &parts);
  const BlockParts all = parts.blocks * static_cast<double>(replica.micro_batches);
  std::vector<Term> terms;
  const auto add = [&](const char* name, double seconds, std::string note) {
    if (seconds > 0) terms.push_back(leaf(name, seconds, std::move(note)));
  };
  const auto add_parts = [&](const char* name, const ComputeParts& of, double rest_s, std::string note) {
    std::vector<Term> inside;
    const auto part = [&](const char* part_name, double seconds, const char* what) {
      if (seconds > 0) inside.push_back(leaf(part_name, seconds, what));
    };
    part("products", of.products_s, "matrix products");
    part("attention", of.attention_s, "scores and weighted values");
    part("element-wise", of.elementwise_s, "bytes read and written by norms, sums, activations and the loss");
    part("launches", of.launches_s, "per layer, pass and micro-batch");
    part("measured", of.measured_s, "times of the profile");
    part("embedding", rest_s, "its lookup and gradient, as measured, and what is gathered and reduced of both ends");
    if (!inside.empty()) terms.push_back(sum_of(name, std::move(inside), std::move(note)));
  };
  const ComputeParts head = parts.head * static_cast<double>(replica.micro_batches);
  const double rest_s = times.busy_s[busiest] - (all.compute.sum() + all.recompute.sum() + all.tensor_s + all.gather_s +
                                                 all.reduce_s + head.sum());
  add_parts("compute", all.compute, rest_s > 1e-9 * times.busy_s[busiest] ? rest_s : 0,
            fmt::format("of stage {}, the busiest, {} micro-batches", busiest, replica.micro_batches));
  add_parts("head", head, 0, "logits and their loss");
  add_parts("recompute", all.recompute, 0, "the forward pass again");
  add("tensor", all.tensor_s, "all-reduces inside the stage's groups");
  add("gather", all.gather_s, "sharded weights, what computing does not hide");
  add("reduce", all.reduce_s, "sharded gradients, what computing does not hide");
  add("bubble", alone_s - times.busy_s[busiest], "the busiest stage waits for the others");
  add("hops", times.makespan_s - alone_s, "boundaries on their way between stages");
  add("boundaries", boundaries_s(cost, replica), "once per step between two stages");
  return sum_of(fmt::format("replica {}", number), std::move(terms),
                fmt::format("{} sequences in {} micro-batches", replica.sequences, replica.micro_batches));
}

}  // namespace

std::int64_t micro_batch_of(const ReplicaLayout& replica) { return ceil_div(replica.sequences, replica.micro_batches); }

TrainLayout layout_of(const TrainPlan& plan) {
  const Training& training = training_of(plan.workload);
  TrainLayout layout{.replicas = {}, .schedule = plan.schedule, .sync = plan.sync};
  for (const auto& replica : plan.replicas) {
    ReplicaLayout& made = layout.replicas.emplace_back(ReplicaLayout{
        .sequences = replica_sequences(training, replica), .micro_batches = replica.micro_batches, .stages = {}});
    for (const auto& stage : replica.stages) {
      PlacedStage& held = made.stages.emplace_back(
          PlacedStage{.layers = stage.layers, .devices = {}, .shares = stage.shares, .strategies = stage.strategies});
      for (const auto& name : stage.devices) held.devices.push_back(plan.cluster.find_device(name));
    }
  }
  return layout;
}

PipelineStage pipeline_stage(const TrainStepCost& cost, const ReplicaLayout& replica, std::size_t number,
                             StageParts* parts) {
  const PlacedStage& stage = replica.stages[number];
  const StageWork work = work_of(replica, stage);
  PipelineStage result;
  StageParts sum;
  for (const auto& strategy : stage.strategies) {
    const LayerCounts counts = layer_counts(cost.arch(), strategy.layers);
    for (std::size_t kind = 0; kind < counts.size(); ++kind) {
      const double layers = counts[kind];
      if (layers == 0) continue;
      BlockParts block;
      const BlockPass pass = cost.block(work, strategy, &block, kind);
      result.forward_s += layers * pass.forward_s;
      result.backward_s += layers * pass.backward_s;
      if (number > 0) result.weights_s += layers * pass.weights_s;
      sum.blocks = sum.blocks + block * layers;
    }
  }
  if (number + 1 == replica.stages.size()) {
    const BlockPass head = cost.head(work, stage.strategies.back(), &sum.head);
    result.forward_s += head.forward_s;
    result.backward_s += head.backward_s;
  } else {
    result.send = cost.hop(stage.devices, replica.stages[number + 1].devices, work.sequences);
  }
  if (number == 0) {
    const BlockPass embedding = cost.embedding(work, stage.strategies.front());
    result.forward_s += embedding.forward_s;
    result.backward_s += embedding.backward_s;
  } else {
    result.back = cost.hop(stage.devices, replica.stages[number - 1].devices, work.sequences);
  }
  if (parts) *parts = sum;
  return result;
}

std::vector<GradientPiece> gradient_pieces(const TrainLayout& layout, std::int64_t layer) {
  std::vector<Owner> owners;
  for (const auto& replica : layout.replicas) {
    Walk walk(replica);
    while (walk.strategy().layers.end <= layer) walk.next(walk.strategy().layers.end);
    owners.push_back(owner_of(walk.stage(), walk.strategy()));
  }
  std::vector<GradientPiece> pieces;
  for_each_piece(owners, [&](double from, double to, const std::vector<int>& members) {
    pieces.push_back({from, to, members});
  });
  return pieces;
}

GradientExchange gradient_exchange(const TrainStepCost& cost, const TrainProblemView& view, const TrainLayout& layout) {
  const StateBytes states = state_bytes(view.training);
  Exchange exchange(cost, layout.sync.algorithm);
  std::vector<Walk> walks;
  std::vector<Owner> owners;
  for (const auto& replica : layout.replicas) {
    walks.emplace_back(replica);
    owners.push_back(owner_of(walks.back().stage(), walks.back().strategy()));
  }
  std::int64_t first = 0;
  for (const std::int64_t last : common_cuts(layout)) {
    const LayerCounts layers = layer_counts(view.arch, {first, last});
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      const double copies = layers[kind];
      if (copies == 0) continue;
      for (const Walk& walk : walks)
        if (gathers_once(walk.strategy()))
          exchange.add_gather(walk.stage(), walk.strategy(), cost.block_bytes(kind, states.weight), copies);
      exchange.add(owners, cost.block_bytes(kind, states.gradient), copies);
    }
    for (std::size_t r = 0; r < walks.size(); ++r)
      if (walks[r].next(last)) owners[r] = owner_of(walks[r].stage(), walks[r].strategy());
    first = last;
  }
  const auto add_ends = [&](bool embedding, double parameters) {
    owners.clear();
    for (const auto& replica : layout.replicas) {
      const PlacedStage& stage = embedding ? replica.stages.front() : replica.stages.back();
      const LayerStrategy& strategy = embedding ? stage.strategies.front() : stage.strategies.back();
      owners.push_back(owner_of(stage, strategy));
      if (gathers_once(strategy) || (strategy.shard == Sharding::zero3 && !cost.ends_in_passes()))
        exchange.add_gather(stage, strategy, parameters * states.weight, 1);
    }
    exchange.add(owners, parameters * states.gradient, 1);
  };
  add_ends(true, elements(embedding_tensors(view.arch)));
  add_ends(false, elements(head_tensors(view.arch)));
  return exchange.result();
}

TrainStepPrice bound_step(const TrainStepCost& cost, const TrainProblemView& view, const TrainLayout& layout) {
  TrainStepPrice price;
  price.loads = pipelines_of(cost, layout);
  double hidden_s = std::numeric_limits<double>::infinity();
  for (std::size_t r = 0; r < layout.replicas.size(); ++r) {
    const ReplicaLayout& replica = layout.replicas[r];
    for (std::size_t s = 0; s < replica.stages.size(); ++s) {
      const PipelineStage& pass = price.loads[r].stages[s];
      hidden_s = std::min(hidden_s, pass.weights_s > 0 ? pass.weights_s : pass.backward_s);
      const PlacedStage& stage = replica.stages[s];
      double update_s = 0;
      for (const auto& strategy : stage.strategies)
        for (std::size_t kind = 0; const double layers : layer_counts(view.arch, strategy.layers))
          update_s += cost.update_s(work_of(replica, stage), strategy, layers, kind++);
      const bool tied = view.arch.tied_embeddings && replica.stages.size() == 1;  // one table, updated once
      if (s == 0) update_s += cost.update_s(work_of(replica, stage), stage.strategies.front(), LayerPart::embedding);
      if (s + 1 == replica.stages.size() && !tied)
        update_s += cost.update_s(work_of(replica, stage), stage.strategies.back(), LayerPart::head);
      price.update_s = std::max(price.update_s, update_s);
    }
  }
  price.exchange = gradient_exchange(cost, view, layout);
  const double last_layer_s = price.exchange.seconds / static_cast<double>(view.arch.layers + 1);
  // What processors copy and add for others they do not compute meanwhile.
  const bool overlaps = layout.sync.overlap && !price.exchange.by_processors;
  price.exchange_s = overlaps ? std::max(last_layer_s, price.exchange.seconds - hidden_s) : price.exchange.seconds;
  price.update_s += price.exchange.gather_s;
  price.iteration_s =
      step_s(cost, layout, price, [&](std::size_t r) { return least_makespan_s(layout.schedule, price.loads[r]); });
  return price;
}

void run_step(const TrainStepCost& cost, const TrainLayout& layout, TrainStepPrice& price,
              std::vector<PipelinePass>* passes) {
  price.pipelines = run_pipelines(layout.schedule, price.loads, passes);
  price.iteration_s = step_s(cost, layout, price, [&](std::size_t r) { return price.pipelines[r].makespan_s; });
}

TrainStepPrice price_step(const TrainStepCost& cost, const TrainProblemView& view, const TrainLayout& layout,
                          std::vector<PipelinePass>* passes) {
  TrainStepPrice price = bound_step(cost, view, layout);
  run_step(cost, layout, price, passes);
  return price;
}

TrainStepPrice price_step(const TrainPlan& plan, const CostOptions& options, std::vector<PipelinePass>* passes) {
  const Training& training = training_of(plan.workload);
  const TrainStepCost cost(options, plan.cluster, plan.model.arch, training, plan.profile);
  return price_step(cost, {plan.cluster, plan.model.arch, training, plan.profile}, layout_of(plan), passes);
}

TrainCost price_motley_train(const TrainPlan& plan, const CostOptions& options) {
  const Training& training = training_of(plan.workload);
  const TrainStepCost cost(options, plan.cluster, plan.model.arch, training, plan.profile);
  const TrainLayout layout = layout_of(plan);
  const TrainStepPrice price = price_step(cost, {plan.cluster, plan.model.arch, training, plan.profile}, layout);

  TrainCost result;
  result.iteration_s = price.iteration_s;
  result.tokens_per_s = static_cast<double>(training.global_batch * training.sequence_length) / price.iteration_s;
  double peak = 0;
  for (const auto& replica : layout.replicas)
    for (const auto& stage : replica.stages)
      for (const int device : stage.devices) peak += cost.peak_flop_per_s(device);
  result.mfu = cost.step_flops() / (price.iteration_s * peak);

  std::vector<Term> replicas;
  for (std::size_t r = 0; r < layout.replicas.size(); ++r) replicas.push_back(replica_term(cost, layout, price, r));
  std::vector<Term> terms = {max_of("pipeline", std::move(replicas), "all replicas wait for the slowest")};
  if (price.exchange_s > 0)
    terms.push_back(
        leaf("gradients", price.exchange_s,
             fmt::format("{} in all{}{}", human_seconds(price.exchange.seconds),
                         price.exchange.busiest_link.empty() ? "" : ", busiest from ", price.exchange.busiest_link)));
  terms.push_back(leaf(
      "update", price.update_s,
      fmt::format("states read and written once{}", price.exchange.gather_s > 0
                                                        ? fmt::format(", {} of it for new weights that are gathered",
                                                                      human_seconds(price.exchange.gather_s))
                                                        : "")));
  result.tree = sum_of("iteration", std::move(terms));
  return result;
}

}  // namespace motley
