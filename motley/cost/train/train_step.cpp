#include "motley/cost/train/train_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/rounding.hpp"
#include "motley/cluster/names.hpp"
#include "motley/model/training.hpp"

namespace motley {
namespace {

constexpr double backward_products = 2;     // of the forward pass: gradients of inputs and of weights
constexpr double backward_attention = 2.5;  // five products for the forward pass's two: the scores once more

// What the program that runs a plan adds to the work, whatever the devices.
struct ExecutorCost {
  std::optional<double> launch_s;  // per block and forward pass; twice that per backward pass; none: the device's
  double exposed = 0;              // share of gathers and reductions of sharded states that computing does not hide
  bool copies = false;             // whether sharded tensors are put into one piece on the way, and taken from it
};

// fsdp: fitted to published runs (bench/train_fit). motley: a pass gathers weights before a block and adds up gradients
// after it, with nothing at the same time, and both in a piece of memory that every rank has for it.
ExecutorCost executor_cost(Executor executor) {
  switch (executor) {
    case Executor::motley: return {.launch_s = {}, .exposed = 1, .copies = true};
    case Executor::fsdp: return {.launch_s = 0.74e-3, .exposed = 0.88};
  }
  return {};
}

double or_else(double share, double otherwise) { return share > 0 ? share : otherwise; }

// Shares of the peaks, those that a type does not give taken from its others.
TrainingShares shares_of(const DeviceType& type) {
  const Efficiency& reached = type.efficiency;
  const TrainingShares& given = type.training;
  return {.products = or_else(given.products, reached.compute),
          .attention = or_else(given.attention, or_else(reached.attention_compute, reached.compute)),
          .elementwise = or_else(given.elementwise, reached.bandwidth)};
}

// The parts of the rank that takes longest.
template <class PartsOf>
PassParts slowest_rank(const TensorGroup& group, PartsOf parts_of) {
  PassParts slowest = parts_of(0);
  for (std::size_t r = 1; r < group.ranks.size(); ++r)
    if (const PassParts parts = parts_of(r); parts.sum() > slowest.sum()) slowest = parts;
  return slowest;
}

// Its passes; what happens once per step does not depend on the sequences.
LayerTime scaled(LayerTime time, double factor) {
  time.forward_s *= factor;
  time.backward_s *= factor;
  return time;
}
LayerTime between(LayerTime a, const LayerTime& b, double part) {
  a.forward_s += part * (b.forward_s - a.forward_s);
  a.backward_s += part * (b.backward_s - a.backward_s);
  a.update_s += part * (b.update_s - a.update_s);
  return a;
}

// How often a rank reads or writes the bytes of sharded tensors in addition to their exchange. Its own part goes into
// the piece that is gathered, and all of that to where passes use it; slices are used where they are.
double gather_copies(std::int64_t ranks, bool sliced) { return (sliced ? 0 : 2) + 2 / static_cast<double>(ranks); }
// Gradients go into one piece, or slices of zeros; the rank's part of the sum is written once more and added.
double reduce_copies(std::int64_t ranks, bool sliced) { return (sliced ? 1 : 2) + 5 / static_cast<double>(ranks); }

double memory_s(const DeviceType& type, double bytes) {
  return bytes / (type.memory_bandwidth_bytes_per_s * type.efficiency.bandwidth);
}

std::vector<int> slice(const std::vector<int>& devices, std::int64_t first, std::int64_t count) {
  return {devices.begin() + first, devices.begin() + first + count};
}

}  // namespace

ComputeParts ComputeParts::operator+(const ComputeParts& o) const {
  return {products_s + o.products_s, attention_s + o.attention_s, elementwise_s + o.elementwise_s,
          launches_s + o.launches_s, measured_s + o.measured_s};
}
ComputeParts ComputeParts::operator*(double n) const {
  return {products_s * n, attention_s * n, elementwise_s * n, launches_s * n, measured_s * n};
}
BlockParts BlockParts::operator+(const BlockParts& o) const {
  return {compute + o.compute, recompute + o.recompute, tensor_s + o.tensor_s, gather_s + o.gather_s,
          reduce_s + o.reduce_s};
}
BlockParts BlockParts::operator*(double n) const {
  return {compute * n, recompute * n, tensor_s * n, gather_s * n, reduce_s * n};
}

TrainLinks::TrainLinks(const Cluster& cluster, const Profile& profile)
    : cluster_(cluster), profile_(profile), measured_(!profile.link_rate.empty()) {
  if (cluster.description.network.matrix) return;
  for (const Machine& from : cluster.machines)
    for (const Machine& to : cluster.machines) {
      PathSpeed& path = paths_.emplace_back();
      if (&from == &to && from.devices.size() < 2) continue;
      try {
        path = cluster.link(from.devices.front(), to.devices.back());
      } catch (const Error&) {
        // It is not described: those that ask for it are told.
      }
    }
}

PathSpeed TrainLinks::path(int from, int to) const {
  if (paths_.empty()) return cluster_.link(from, to);
  const std::size_t at =
      static_cast<std::size_t>(machine_of(from)) * cluster_.machines.size() + static_cast<std::size_t>(machine_of(to));
  return paths_[at].bandwidth_bytes_per_s > 0 ? paths_[at] : cluster_.link(from, to);
}

bool TrainLinks::between_processors(int from, int to) const {
  return machine_of(from) == machine_of(to) && cluster_.type_of(from).vendor == "cpu" &&
         cluster_.type_of(to).vendor == "cpu";
}

std::optional<double> TrainLinks::measured_bytes_per_s(int from, int to, double message_bytes) const {
  if (!measured_) return std::nullopt;
  const auto rate = [&](int a, int b) {
    const LinkRate* measured = measured_link(profile_, cluster_, a, b).rate;
    return measured != nullptr ? motley::bytes_per_s(*measured, message_bytes) : 0;
  };
  if (const double own = rate(from, to); own > 0) return own;
  // Inside a machine, of two types that were each measured among themselves, the slower one.
  if (const double slower = std::min(rate(from, from), rate(to, to)); slower > 0 && machine_of(from) == machine_of(to))
    return slower;
  return std::nullopt;
}

double TrainLinks::bytes_per_s(int from, int to, double message_bytes) const {
  const auto measured = measured_bytes_per_s(from, to, message_bytes);
  return measured ? *measured : path(from, to).bandwidth_bytes_per_s;
}

// What was measured is from device to device, with whatever copies there are.
HopSpeed TrainLinks::hop(int from, int to, double message_bytes) const {
  if (const auto measured = measured_bytes_per_s(from, to, message_bytes))
    return {.latency_s = path(from, to).latency_s, .bandwidth_bytes_per_s = *measured};
  return hop_over(path(from, to), cluster_, from, to);
}

void LinkLoads::add(int from, int to, double bytes, double message_bytes) {
  const auto& machines = links_.cluster().machines;
  const auto here = static_cast<std::size_t>(links_.machine_of(from));
  const auto there = static_cast<std::size_t>(links_.machine_of(to));
  double* seconds = nullptr;
  if (here != there) {
    if (between_s_.empty()) between_s_.resize(machines.size() * machines.size());
    seconds = &between_s_[here * machines.size() + there];
  } else {
    const auto& devices = machines[here].devices;
    inside_s_.resize(machines.size());
    if (inside_s_[here].empty()) inside_s_[here].resize(devices.size() * devices.size());
    const auto place = [&](int device) { return static_cast<std::size_t>(device - devices.front()); };
    seconds = &inside_s_[here][place(from) * devices.size() + place(to)];
  }
  *seconds += bytes / links_.bytes_per_s(from, to, message_bytes);
  if (*seconds <= most_s_) return;
  most_s_ = *seconds;
  most_from_ = from;
  most_to_ = to;
}

void LinkLoads::add_ring(const std::vector<int>& members, double bytes, double message_bytes) {
  if (members.size() < 2) return;
  for (std::size_t i = 0; i < members.size(); ++i)
    add(members[i], members[(i + 1) % members.size()], bytes, message_bytes);
}

std::string LinkLoads::busiest() const {
  if (most_from_ < 0) return {};
  const Cluster& cluster = links_.cluster();
  const bool inside = links_.machine_of(most_from_) == links_.machine_of(most_to_);
  const auto name = [&](int device) {
    return inside ? cluster.devices[static_cast<std::size_t>(device)].name
                  : cluster.machines[static_cast<std::size_t>(links_.machine_of(device))].name;
  };
  return fmt::format("{} to {}", name(most_from_), name(most_to_));
}

bool LinkLoads::busiest_is_of_processors() const {
  return most_from_ >= 0 && links_.between_processors(most_from_, most_to_);
}

TrainStepCost::TrainStepCost(const CostOptions& options, const Cluster& cluster, const Architecture& arch,
                             const Training& training, const Profile& profile)
    : cluster_(cluster),
      arch_(arch),
      training_(training),
      profile_(profile),
      links_(cluster, profile),
      step_(options, cluster, arch),
      layer_of_kinds_(layer_of_kinds(arch)),
      type_(training.precision),
      states_(state_bytes(training)),
      blocks_flops_(blocks_flops(arch, 0)),
      element_bytes_(static_cast<double>(bytes_of(dtype_row(type_).computed_in, 1))),
      hops_(setting(options, "motley.blocking_hops", 0) > 0 ? HopMode::blocking : HopMode::overlapped),
      boundary_overhead_s_(setting(options, "motley.boundary_overhead_s", 0)),
      launch_s_(executor_cost(training.executor).launch_s),
      exposed_(setting(options, "motley.exposed_share", executor_cost(training.executor).exposed)),
      copies_(executor_cost(training.executor).copies) {
  if (const auto given = options.settings.find("motley.layer_overhead_s"); given != options.settings.end())
    launch_s_ = given->second;
  for (const std::int64_t layer : layer_of_kinds(arch)) {
    block_parameters_.push_back(static_cast<double>(block_parameters(arch, layer)));
    block_flops_.push_back(block_flops(arch, layer, 0));
  }
  const auto length = static_cast<double>(training.sequence_length);
  const LayerCounts mean = mean_layer_counts(arch, 1);
  for (std::size_t type = 0; type < cluster.types.size(); ++type) {
    const auto device = std::find_if(cluster.devices.begin(), cluster.devices.end(),
                                     [&](const Device& one) { return one.type == static_cast<int>(type); });
    SequenceTime& time = sequence_times_.emplace_back();
    if (device == cluster.devices.end()) continue;
    TensorGroup alone =
        make_group(cluster, arch, {static_cast<int>(device - cluster.devices.begin())}, {}, type_, type_, {});
    // A group divides the reading of weights, and larger micro-batches hide it.
    for (BlockWork& block : alone.ranks.front().blocks) block.bytes = 0;
    alone.ranks.front().head_bytes = 0;
    for (std::size_t kind = 0; kind < mean.size(); ++kind) {
      time.kinds_s.push_back(block_parts(alone, 0, kind, length).sum());
      time.block_s += mean[kind] * time.kinds_s.back();
    }
    time.head_s = head_parts(alone, 0, length).sum();
  }
}

// Element-wise operations go by the bytes that they read and write: docs/concepts/train-cost.md counts them.
PassParts TrainStepCost::block_parts(const TensorGroup& group, std::size_t r, std::size_t kind, double tokens) const {
  const Rank& rank = group.ranks[r];
  const BlockWork& block = rank.blocks[kind];
  const DeviceType& type = cluster_.type_of(group.devices[r]);
  const TrainingShares share = shares_of(type);
  const ElementTraffic traffic = element_traffic_per_token(arch_, layer_of_kinds_[kind], group.shards[r]);
  const double half = static_cast<double>(training_.sequence_length) / 2;
  const double context = block.windowed ? step_.in_window(half) : half;
  const double element_s = tokens * element_bytes_ / (type.memory_bandwidth_bytes_per_s * share.elementwise);
  PassParts parts;
  parts.forward.products_s = std::max(static_cast<double>(block.bytes) / effective_bandwidth(rank),
                                      tokens * block.flops / (rank.flop_per_s * share.products));
  parts.backward.products_s = backward_products * parts.forward.products_s;
  parts.forward.attention_s = tokens * block.attention_flops * context / (rank.flop_per_s * share.attention);
  parts.backward.attention_s = backward_attention * parts.forward.attention_s;
  parts.forward.elementwise_s = static_cast<double>(traffic.forward) * element_s;
  parts.backward.elementwise_s = static_cast<double>(traffic.backward) * element_s;
  return parts;
}

PassParts TrainStepCost::head_parts(const TensorGroup& group, std::size_t r, double tokens) const {
  const Rank& rank = group.ranks[r];
  const DeviceType& type = cluster_.type_of(group.devices[r]);
  const TrainingShares share = shares_of(type);
  const ElementTraffic bytes = loss_bytes_per_token(group.shards[r]);
  const double byte_s = tokens / (type.memory_bandwidth_bytes_per_s * share.elementwise);
  PassParts parts;
  parts.forward.products_s = std::max(rank.head_bytes / effective_bandwidth(rank),
                                      tokens * rank.head_flops / (rank.flop_per_s * share.products));
  parts.backward.products_s = backward_products * parts.forward.products_s;
  parts.forward.elementwise_s = static_cast<double>(bytes.forward) * byte_s;
  parts.backward.elementwise_s = static_cast<double>(bytes.backward) * byte_s;
  return parts;
}

double TrainStepCost::launch_s(const TensorGroup& group) const {
  return launch_s_ ? *launch_s_ : step_.layer_overhead_s(group);
}

const TensorGroup& TrainStepCost::group(const StageWork& work, const LayerStrategy& strategy,
                                        std::int64_t data_rank) const {
  std::vector<int> devices = slice(work.devices, data_rank * strategy.tp, strategy.tp);
  const std::vector<double> shares = strategy.dp == 1 && strategy.tp > 1 ? work.shares : std::vector<double>{};
  std::vector<double> look = {static_cast<double>(devices.size())};
  double latency_s = 0, seconds_per_byte = 0;
  for (const int device : devices) {
    look.push_back(cluster_.devices[static_cast<std::size_t>(device)].type);
    for (const int other : devices) {
      if (other == device) continue;
      const PathSpeed path = links_.path(device, other);
      latency_s = std::max(latency_s, path.latency_s);
      seconds_per_byte = std::max(seconds_per_byte, 1 / path.bandwidth_bytes_per_s);
    }
  }
  look.insert(look.end(), {latency_s, seconds_per_byte});
  look.insert(look.end(), shares.begin(), shares.end());
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(look);
  if (found != groups_.end()) return found->second;
  return groups_.emplace(std::move(look), make_group(cluster_, arch_, std::move(devices), shares, type_, type_, {}))
      .first->second;
}

// The same rounding as train_memory().
std::int64_t TrainStepCost::sequences(const StageWork& work, const LayerStrategy& strategy,
                                      std::int64_t data_rank) const {
  if (work.shares.empty() || strategy.dp == 1) return ceil_div(work.sequences, strategy.dp);
  const double share =
      work.shares[static_cast<std::size_t>(data_rank * strategy.tp)] * static_cast<double>(strategy.tp);
  return std::llround(std::ceil(static_cast<double>(work.sequences) * share - 1e-9));
}

// Of a token in all layers.
double TrainStepCost::rank_flops(const Rank& rank) const {
  const LayerCounts layers = layer_counts(arch_, {0, arch_.layers});
  double flops = 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) flops += rank.blocks[kind].flops * layers[kind];
  return flops;
}

// Between the nearest measured micro-batches of the type and degree; beyond them in proportion.
std::optional<LayerTime> TrainStepCost::measured(int device, std::int64_t degree, std::int64_t sequences,
                                                 LayerPart part) const {
  if (profile_.layer_time.empty()) return std::nullopt;
  const std::string plain = plain_name(cluster_.type_of(device).name);
  const LayerTime *below = nullptr, *above = nullptr;  // at most, and at least, this many sequences
  for (const LayerTime& time : profile_.layer_time) {
    if (time.tp != degree || time.part != part || time.sequence_length != training_.sequence_length ||
        plain_name(time.device_type) != plain)
      continue;
    if (time.micro_batch <= sequences && (!below || time.micro_batch > below->micro_batch)) below = &time;
    if (time.micro_batch >= sequences && (!above || time.micro_batch < above->micro_batch)) above = &time;
  }
  if (!below && !above) return std::nullopt;
  if (!below || !above || above->micro_batch == below->micro_batch) {
    const LayerTime& nearest = below ? *below : *above;
    return scaled(nearest, static_cast<double>(sequences) / static_cast<double>(nearest.micro_batch));
  }
  return between(*below, *above,
                 static_cast<double>(sequences - below->micro_batch) /
                     static_cast<double>(above->micro_batch - below->micro_batch));
}

// The slowest rank's. One that has more than an equal part lies between an equal part and the whole. Where the degree
// was not measured, a rank computes its share of the whole.
std::optional<LayerTime> TrainStepCost::measured(const TensorGroup& group, std::int64_t sequences,
                                                 LayerPart part) const {
  if (profile_.layer_time.empty()) return std::nullopt;
  const auto degree = static_cast<double>(group.degree());
  const auto share = [&](const Rank& rank) {
    switch (part) {
      case LayerPart::embedding: return 1 / degree;
      case LayerPart::block: return rank_flops(rank) / blocks_flops_;
      case LayerPart::head: return rank.head_flops / head_flops(arch_);
    }
    return 1 / degree;
  };
  std::optional<LayerTime> slowest;
  for (std::size_t r = 0; r < group.ranks.size(); ++r) {
    const double rank_share = share(group.ranks[r]), more = std::max(0.0, rank_share - 1 / degree);
    const auto equal = measured(group.devices[r], group.degree(), sequences, part);
    const auto whole = !equal || more > 1e-9 ? measured(group.devices[r], 1, sequences, part) : std::nullopt;
    if (!equal && !whole) return std::nullopt;
    LayerTime own;
    if (!equal) {
      own = scaled(*whole, rank_share);
      own.update_s *= rank_share;
    } else {
      own = whole ? between(*equal, *whole, more / (1 - 1 / degree)) : scaled(*equal, 1 + more * degree);
    }
    if (!slowest || own.forward_s + own.backward_s > slowest->forward_s + slowest->backward_s) slowest = own;
  }
  return slowest;
}

double TrainStepCost::part_of_measured(const TensorGroup& group, std::size_t kind) const {
  const Rank& rank = group.ranks.front();
  return rank.blocks[kind].flops * static_cast<double>(arch_.layers) / rank_flops(rank);
}

bool TrainStepCost::measured_together(const TensorGroup& group, LayerPart part) const {
  return std::ranges::all_of(group.devices,
                             [&](int device) { return measured(device, group.degree(), 1, part).has_value(); });
}

// Reduce-scatter or all-gather over the data-parallel ranks, of `bytes` that each ends or begins with all of, in
// `pieces` one after the other: every piece waits for its own messages.
double TrainStepCost::over_data_ranks_s(const StageWork& work, const LayerStrategy& strategy, double bytes,
                                        std::int64_t pieces) const {
  if (strategy.dp < 2) return 0;
  LinkLoads loads(links_);
  double latency_s = 0;
  const auto ranks = static_cast<double>(strategy.dp);
  for (std::int64_t k = 0; k < strategy.tp; ++k) {
    std::vector<int> ring;
    for (std::int64_t d = 0; d < strategy.dp; ++d)
      ring.push_back(work.devices[static_cast<std::size_t>(d * strategy.tp + k)]);
    loads.add_ring(ring, shared_out_bytes(ring, bytes), bytes / (ranks * static_cast<double>(pieces)));
    for (std::size_t i = 0; i < ring.size(); ++i)
      latency_s = std::max(latency_s, links_.path(ring[i], ring[(i + 1) % ring.size()]).latency_s);
  }
  return static_cast<double>(pieces) * (ranks - 1) * latency_s + loads.seconds();
}

// Blocks are larger than caches, in which what the rate of sums was measured with may stay.
double TrainStepCost::copies_s(const std::vector<int>& devices, double bytes) const {
  double slowest_s = 0;
  if (!copies_) return slowest_s;
  for (const int device : devices) slowest_s = std::max(slowest_s, memory_s(cluster_.type_of(device), bytes));
  return slowest_s;
}

BlockPass TrainStepCost::block(const StageWork& work, const LayerStrategy& strategy, BlockParts* parts,
                               std::size_t kind) const {
  BlockPass slowest;
  BlockParts of_slowest;
  for (std::int64_t rank = 0; rank < strategy.dp; ++rank) {
    const TensorGroup& ranks = group(work, strategy, rank);
    const std::int64_t count = sequences(work, strategy, rank);
    BlockParts own;
    const double tokens = static_cast<double>(count * training_.sequence_length);
    auto [forward, backward] = slowest_rank(ranks, [&](std::size_t r) { return block_parts(ranks, r, kind, tokens); });
    BlockPass pass;
    double tensor_s = 0;                              // of one pass; measured ones have it
    if (!measured_together(ranks, LayerPart::block))  // shares of experts go back as logits came
      tensor_s =
          step_.all_reduces_s(ranks, kind, {.tokens = tokens}) + step_.routing_s(ranks, kind, {.tokens = tokens});
    own.tensor_s = (strategy.recompute ? 3 : 2) * tensor_s;
    if (auto time = measured(ranks, count, LayerPart::block)) {
      time = scaled(*time, part_of_measured(ranks, kind));
      pass = {time->forward_s, time->backward_s, time->backward_s * forward.products_s / backward.sum()};
      own.compute.measured_s = pass.forward_s + pass.backward_s;
      own.recompute.measured_s = strategy.recompute ? pass.forward_s : 0;
    } else {
      forward.launches_s = launch_s(ranks);
      backward.launches_s = backward_products * forward.launches_s;
      pass = {forward.sum(), backward.sum(), forward.products_s};
      own.compute = forward + backward;
      if (strategy.recompute) own.recompute = forward;
    }
    pass.forward_s += tensor_s;
    pass.backward_s += tensor_s;
    if (strategy.recompute) pass.backward_s += pass.forward_s;
    if (!weights_wait(training_, strategy)) pass.weights_s = 0;
    if (pass.forward_s + pass.backward_s <= slowest.forward_s + slowest.backward_s) continue;
    slowest = pass;
    of_slowest = own;
  }

  // A rank's part of the block. Where weights are gathered in `split` pieces, gradients are added up in as many, and
  // the vectors of norms and biases travel by themselves.
  const std::int64_t pieces = strategy.split > 1 ? strategy.split + 1 : 1;
  const auto exchanged_s = [&](double bytes_per_parameter, double copies) {
    if (strategy.dp < 2) return 0.0;
    const double bytes = block_bytes(kind, bytes_per_parameter) / static_cast<double>(strategy.tp);
    return over_data_ranks_s(work, strategy, bytes, pieces) + copies_s(work.devices, copies * bytes);
  };
  const double gather_s = strategy.shard == Sharding::zero3
                              ? exchanged_s(states_.weight, gather_copies(strategy.dp, strategy.split > 1))
                              : 0;
  const double reduce_s = strategy.shard >= Sharding::zero2
                              ? exchanged_s(states_.gradient, reduce_copies(strategy.dp, strategy.split > 1))
                              : 0;
  // Of slices none has stayed when the backward pass comes after a forward pass that is run again.
  const double gather_back_s = strategy.recompute && strategy.split > 1 ? 2 * gather_s : gather_s;
  const auto with_exposed = [&](double pass_s, double transfer_s) {
    return std::max(pass_s + exposed_ * transfer_s, transfer_s);
  };
  const BlockPass exposed{with_exposed(slowest.forward_s, gather_s),
                          with_exposed(slowest.backward_s, gather_back_s + reduce_s), slowest.weights_s};
  const double exposed_s = exposed.forward_s - slowest.forward_s + exposed.backward_s - slowest.backward_s;
  const double reduced = reduce_s > 0 ? reduce_s / (reduce_s + gather_back_s) : 0;  // of what the backward pass exposes
  of_slowest.reduce_s = reduced * (exposed.backward_s - slowest.backward_s);
  of_slowest.gather_s = exposed_s - of_slowest.reduce_s;
  if (parts) *parts = of_slowest;
  return exposed;
}

double TrainStepCost::parameters(LayerPart end) const {
  return static_cast<double>(
      parameters_of(end == LayerPart::embedding ? embedding_tensors(arch_) : head_tensors(arch_)));
}

// What the data-parallel ranks exchange of an end of the model, where they divide as much as `from`.
double TrainStepCost::sharded_end_s(const StageWork& work, const LayerStrategy& strategy, LayerPart end, Sharding from,
                                    double bytes_per_parameter) const {
  if (strategy.dp < 2 || strategy.shard < from || !ends_in_passes()) return 0;
  const double bytes = bytes_per_parameter * parameters(end) / static_cast<double>(strategy.tp);
  const double copies = from == Sharding::zero3 ? gather_copies(strategy.dp, false) : reduce_copies(strategy.dp, false);
  return exposed_ * (over_data_ranks_s(work, strategy, bytes, 1) + copies_s(work.devices, copies * bytes));
}

BlockPass TrainStepCost::embedding(const StageWork& work, const LayerStrategy& strategy) const {
  BlockPass slowest;
  for (std::int64_t rank = 0; rank < strategy.dp; ++rank)
    if (const auto time = measured(group(work, strategy, rank), sequences(work, strategy, rank), LayerPart::embedding))
      slowest = {std::max(slowest.forward_s, time->forward_s), std::max(slowest.backward_s, time->backward_s)};
  const double gather_s = sharded_end_s(work, strategy, LayerPart::embedding, Sharding::zero3, states_.weight);
  slowest.forward_s += gather_s;
  slowest.backward_s +=
      gather_s + sharded_end_s(work, strategy, LayerPart::embedding, Sharding::zero2, states_.gradient);
  return slowest;
}

BlockPass TrainStepCost::head(const StageWork& work, const LayerStrategy& strategy, ComputeParts* parts) const {
  BlockPass slowest;
  ComputeParts of_slowest;
  for (std::int64_t rank = 0; rank < strategy.dp; ++rank) {
    const TensorGroup& ranks = group(work, strategy, rank);
    const std::int64_t count = sequences(work, strategy, rank);
    BlockPass pass;
    ComputeParts own;
    if (const auto time = measured(ranks, count, LayerPart::head)) {
      pass = {time->forward_s, time->backward_s};
      own.measured_s = pass.forward_s + pass.backward_s;
    } else {
      const double tokens = static_cast<double>(count * training_.sequence_length);
      const auto [forward, backward] = slowest_rank(ranks, [&](std::size_t r) { return head_parts(ranks, r, tokens); });
      pass = {forward.sum(), backward.sum()};
      own = forward + backward;
    }
    if (own.sum() > of_slowest.sum()) of_slowest = own;
    slowest = {std::max(slowest.forward_s, pass.forward_s), std::max(slowest.backward_s, pass.backward_s)};
  }
  if (parts) *parts = of_slowest;
  slowest.forward_s += sharded_end_s(work, strategy, LayerPart::head, Sharding::zero3, states_.weight);
  slowest.backward_s += sharded_end_s(work, strategy, LayerPart::head, Sharding::zero2, states_.gradient);
  return slowest;
}

double TrainStepCost::update_s(const StageWork& work, const LayerStrategy& strategy, double blocks,
                               std::size_t kind) const {
  return update_s(work, strategy, LayerPart::block, kind, blocks);
}

double TrainStepCost::update_s(const StageWork& work, const LayerStrategy& strategy, LayerPart end) const {
  return update_s(work, strategy, end, 0, 1);
}

double TrainStepCost::update_s(const StageWork& work, const LayerStrategy& strategy, LayerPart part, std::size_t kind,
                               double count) const {
  const double divided = strategy.shard >= Sharding::zero1 ? static_cast<double>(strategy.dp) : 1.0;
  const double per_parameter = 2 * (states_.weight + states_.gradient + states_.master + states_.moments);
  const bool is_block = part == LayerPart::block;
  const double bytes =
      per_parameter * (is_block ? block_parameters_[kind] : parameters(part)) / static_cast<double>(strategy.tp);
  double slowest_s = 0;
  for (std::int64_t rank = 0; rank < strategy.dp; ++rank) {
    const TensorGroup& ranks = group(work, strategy, rank);
    if (const auto time = measured(ranks, 1, part); time && time->update_s > 0) {
      slowest_s = std::max(slowest_s, time->update_s * (is_block ? part_of_measured(ranks, kind) : 1));
      continue;
    }
    for (const int device : ranks.devices) slowest_s = std::max(slowest_s, memory_s(cluster_.type_of(device), bytes));
  }
  return count * slowest_s / divided;
}

PipelineHop TrainStepCost::hop(const std::vector<int>& from, const std::vector<int>& to, std::int64_t count) const {
  const double bytes = static_cast<double>(bytes_of(type_, count * training_.sequence_length * arch_.hidden));
  PipelineHop best;
  bool any = false;
  for (const int a : from)
    for (const int b : to) {
      const HopSpeed way = links_.hop(a, b, bytes);
      const PipelineHop hop{
          .busy_s = bytes / way.bandwidth_bytes_per_s,
          .latency_s = way.wait_s(bytes),
          .link = links_.machine_of(a) == links_.machine_of(b)
                      ? PipelineHop::own_link
                      : links_.machine_of(a) * static_cast<int>(cluster_.machines.size()) + links_.machine_of(b)};
      if (any && hop.busy_s + hop.latency_s >= best.busy_s + best.latency_s) continue;
      best = hop;
      any = true;
    }
  return best;
}

double TrainStepCost::step_flops() const {
  const auto length = static_cast<double>(training_.sequence_length);
  const double token = blocks_flops(arch_, length / 2) + head_flops(arch_);
  return (1 + backward_products) * token * length * static_cast<double>(training_.global_batch);
}

double TrainStepCost::flops_of_mean(std::size_t kind) const {
  return block_flops_[kind] * static_cast<double>(arch_.layers) / blocks_flops_;
}

double TrainStepCost::peak_flop_per_s(int device) const { return product_flop_per_s(cluster_.type_of(device), type_); }

double TrainStepCost::block_bytes(std::size_t kind, double bytes_per_parameter) const {
  return bytes_per_parameter * block_parameters_[kind];
}

}  // namespace motley
