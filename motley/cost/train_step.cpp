#include "motley/cost/train_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/cluster/names.hpp"

namespace motley {
namespace {

constexpr double kBackward = 2;  // of the forward pass: gradients of inputs and of weights

DType type_of(const Training& training) {
  return training.precision == "fp32" ? DType::fp32 : training.precision == "fp16" ? DType::fp16 : DType::bf16;
}

std::vector<int> slice(const std::vector<int>& devices, std::int64_t first, std::int64_t count) {
  return {devices.begin() + first, devices.begin() + first + count};
}

}  // namespace

double message_bytes_per_s(const Cluster& cluster, const Profile& profile, int from, int to, double bytes) {
  const MeasuredLink measured = measured_link(profile, cluster, from, to);
  return measured.rate != nullptr ? bytes_per_s(*measured.rate, bytes) : cluster.link(from, to).bandwidth_bytes_per_s;
}

void LinkLoads::add(int from, int to, double bytes, double message_bytes) {
  const int here = cluster_.devices[static_cast<std::size_t>(from)].machine;
  const int there = cluster_.devices[static_cast<std::size_t>(to)].machine;
  const Link link = here == there ? Link{true, from, to} : Link{false, here, there};
  seconds_[link] += bytes / message_bytes_per_s(cluster_, profile_, from, to, message_bytes);
}

void LinkLoads::add_ring(const std::vector<int>& members, double bytes, double message_bytes) {
  if (members.size() < 2) return;
  for (std::size_t i = 0; i < members.size(); ++i)
    add(members[i], members[(i + 1) % members.size()], bytes, message_bytes);
}

double LinkLoads::seconds() const {
  double most = 0;
  for (const auto& [link, seconds] : seconds_) most = std::max(most, seconds);
  return most;
}

std::string LinkLoads::busiest() const {
  const auto found = std::max_element(seconds_.begin(), seconds_.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  if (found == seconds_.end()) return {};
  const auto [inside, from, to] = found->first;
  const auto name = [&, is_device = inside](int index) {
    return is_device ? cluster_.devices[static_cast<std::size_t>(index)].name
                     : cluster_.machines[static_cast<std::size_t>(index)].name;
  };
  return fmt::format("{} to {}", name(from), name(to));
}

TrainStepCost::TrainStepCost(const CostOptions& options, const Cluster& cluster, const Architecture& arch,
                             const Training& training, const Profile& profile)
    : cluster_(cluster),
      arch_(arch),
      training_(training),
      profile_(profile),
      step_(options, cluster, arch),
      type_(type_of(training)),
      states_(state_bytes(training)),
      hops_(setting(options, "motley.blocking_hops", 0) > 0 ? HopMode::blocking : HopMode::overlapped),
      boundary_overhead_s_(setting(options, "motley.boundary_overhead_s", 0)) {}

TensorGroup TrainStepCost::group(const StageWork& work, const LayerStrategy& strategy, std::int64_t data_rank) const {
  const bool cut = strategy.dp == 1 && strategy.tp > 1;
  return make_group(cluster_, arch_, slice(work.devices, data_rank * strategy.tp, strategy.tp),
                    cut ? work.shares : std::vector<double>{}, type_, type_, {});
}

// The same rounding as train_memory().
std::int64_t TrainStepCost::sequences(const StageWork& work, const LayerStrategy& strategy,
                                      std::int64_t data_rank) const {
  if (work.shares.empty() || strategy.dp == 1) return (work.sequences + strategy.dp - 1) / strategy.dp;
  const double share =
      work.shares[static_cast<std::size_t>(data_rank * strategy.tp)] * static_cast<double>(strategy.tp);
  return std::llround(std::ceil(static_cast<double>(work.sequences) * share - 1e-9));
}

// Of the type's measured micro-batches the nearest one; times are taken as proportional to it.
const LayerTime* TrainStepCost::measured(const TensorGroup& group, std::int64_t sequences, LayerPart part) const {
  const std::string& type = cluster_.type_of(group.devices.front()).name;
  for (const int device : group.devices)
    if (cluster_.type_of(device).name != type) return nullptr;
  const LayerTime* best = nullptr;
  const auto distance = [&](const LayerTime& time) { return std::abs(time.micro_batch - sequences); };
  for (const LayerTime& time : profile_.layer_time) {
    if (plain_name(time.device_type) != plain_name(type) || time.tp != group.degree() || time.part != part ||
        time.sequence_length != training_.sequence_length)
      continue;
    if (!best || distance(time) < distance(*best)) best = &time;
  }
  return best;
}

std::optional<BlockPass> TrainStepCost::measured_pass(const TensorGroup& group, std::int64_t sequences,
                                                      LayerPart part) const {
  const LayerTime* time = measured(group, sequences, part);
  if (!time) return std::nullopt;
  const double scale = static_cast<double>(sequences) / static_cast<double>(time->micro_batch);
  return BlockPass{time->forward_s * scale, time->backward_s * scale};
}

// Reduce-scatter or all-gather over the data-parallel ranks, of `bytes` that each ends or begins with all of.
double TrainStepCost::over_data_ranks_s(const StageWork& work, const LayerStrategy& strategy, double bytes) const {
  if (strategy.dp < 2) return 0;
  LinkLoads loads(cluster_, profile_);
  double latency_s = 0;
  const auto ranks = static_cast<double>(strategy.dp);
  for (std::int64_t k = 0; k < strategy.tp; ++k) {
    std::vector<int> ring;
    for (std::int64_t d = 0; d < strategy.dp; ++d)
      ring.push_back(work.devices[static_cast<std::size_t>(d * strategy.tp + k)]);
    loads.add_ring(ring, bytes * (ranks - 1) / ranks, bytes / ranks);
    for (std::size_t i = 0; i < ring.size(); ++i)
      latency_s = std::max(latency_s, cluster_.link(ring[i], ring[(i + 1) % ring.size()]).latency_s);
  }
  return (ranks - 1) * latency_s + loads.seconds();
}

BlockPass TrainStepCost::block(const StageWork& work, const LayerStrategy& strategy, BlockParts* parts) const {
  BlockPass slowest;
  BlockParts of_slowest;
  for (std::int64_t rank = 0; rank < strategy.dp; ++rank) {
    const TensorGroup ranks = group(work, strategy, rank);
    const std::int64_t count = sequences(work, strategy, rank);
    BlockParts own;
    BlockPass pass;
    if (const auto time = measured_pass(ranks, count, LayerPart::block)) {
      pass = *time;
      own.compute_s = pass.forward_s + pass.backward_s;
      own.recompute_s = strategy.recompute ? pass.forward_s : 0;
    } else {
      const auto length = static_cast<double>(training_.sequence_length);
      const StepLoad load{.tokens = static_cast<double>(count) * length, .context = length / 2};
      const double forward_s = step_.block_time(ranks, load).seconds() + step_.layer_overhead_s(ranks);
      const double tensor_s = step_.all_reduces_s(ranks, load);
      pass = {forward_s + tensor_s, kBackward * forward_s + tensor_s};
      own.compute_s = (1 + kBackward) * forward_s;
      own.tensor_s = (strategy.recompute ? 3 : 2) * tensor_s;
      own.recompute_s = strategy.recompute ? forward_s : 0;
    }
    if (strategy.recompute) pass.backward_s += pass.forward_s;
    if (pass.forward_s + pass.backward_s <= slowest.forward_s + slowest.backward_s) continue;
    slowest = pass;
    of_slowest = own;
  }

  // A rank's part of the block, gathered in `split` pieces of which the next is under way while one is computed with.
  const auto part = [&](double bytes_per_parameter) {
    return block_bytes(bytes_per_parameter) / static_cast<double>(strategy.tp);
  };
  const double gather_s =
      strategy.shard == Sharding::zero3 ? over_data_ranks_s(work, strategy, part(states_.weight)) : 0;
  const double reduce_s =
      strategy.shard >= Sharding::zero2 ? over_data_ranks_s(work, strategy, part(states_.gradient)) : 0;
  const BlockPass beside{std::max(slowest.forward_s, gather_s), std::max(slowest.backward_s, gather_s + reduce_s)};
  const double exposed_s = beside.forward_s - slowest.forward_s + beside.backward_s - slowest.backward_s;
  of_slowest.reduce_s = std::min(exposed_s, std::max(0.0, beside.backward_s - slowest.backward_s - gather_s));
  of_slowest.gather_s = exposed_s - of_slowest.reduce_s;
  if (parts) *parts = of_slowest;
  return beside;
}

BlockPass TrainStepCost::embedding(const StageWork& work, const LayerStrategy& strategy) const {
  BlockPass slowest;
  for (std::int64_t rank = 0; rank < strategy.dp; ++rank) {
    const BlockPass pass =
        measured_pass(group(work, strategy, rank), sequences(work, strategy, rank), LayerPart::embedding)
            .value_or(BlockPass{});
    slowest = {std::max(slowest.forward_s, pass.forward_s), std::max(slowest.backward_s, pass.backward_s)};
  }
  return slowest;
}

BlockPass TrainStepCost::head(const StageWork& work, const LayerStrategy& strategy) const {
  BlockPass slowest;
  for (std::int64_t rank = 0; rank < strategy.dp; ++rank) {
    const TensorGroup ranks = group(work, strategy, rank);
    const std::int64_t count = sequences(work, strategy, rank);
    BlockPass pass;
    if (const auto time = measured_pass(ranks, count, LayerPart::head)) {
      pass = *time;
    } else {
      const StepLoad load{.logits = static_cast<double>(count * training_.sequence_length)};
      const double forward_s = step_.head_roofline(ranks, load).seconds();
      pass = {forward_s, kBackward * forward_s};
    }
    slowest = {std::max(slowest.forward_s, pass.forward_s), std::max(slowest.backward_s, pass.backward_s)};
  }
  return slowest;
}

double TrainStepCost::update_s(const StageWork& work, const LayerStrategy& strategy, double blocks) const {
  const double per_parameter = 2 * (states_.weight + states_.gradient + states_.master + states_.moments);
  const double parts =
      static_cast<double>(strategy.tp) * (strategy.shard >= Sharding::zero1 ? static_cast<double>(strategy.dp) : 1.0);
  double slowest = 0;
  for (const int device : work.devices) {
    const DeviceType& type = cluster_.type_of(device);
    slowest = std::max(slowest, blocks * block_bytes(per_parameter) / parts /
                                    (type.memory_bandwidth_bytes_per_s * type.efficiency.bandwidth));
  }
  return slowest;
}

PipelineHop TrainStepCost::hop(const std::vector<int>& from, const std::vector<int>& to, std::int64_t count) const {
  const double bytes =
      static_cast<double>(count * training_.sequence_length * arch_.hidden) * (type_ == DType::fp32 ? 4.0 : 2.0);
  const auto machine = [&](int device) { return cluster_.devices[static_cast<std::size_t>(device)].machine; };
  PipelineHop best;
  bool any = false;
  for (const int a : from)
    for (const int b : to) {
      const PipelineHop hop{.busy_s = bytes / message_bytes_per_s(cluster_, profile_, a, b, bytes),
                            .latency_s = cluster_.link(a, b).latency_s,
                            .link = machine(a) == machine(b)
                                        ? PipelineHop::own_link
                                        : machine(a) * static_cast<int>(cluster_.machines.size()) + machine(b)};
      if (any && hop.busy_s + hop.latency_s >= best.busy_s + best.latency_s) continue;
      best = hop;
      any = true;
    }
  return best;
}

double TrainStepCost::step_flops() const {
  const auto length = static_cast<double>(training_.sequence_length);
  const double token =
      static_cast<double>(arch_.layers) * block_flops(arch_, step_.seen(length / 2)) + head_flops(arch_);
  return (1 + kBackward) * token * length * static_cast<double>(training_.global_batch);
}

double TrainStepCost::peak_flop_per_s(int device) const { return product_flop_per_s(cluster_.type_of(device), type_); }

double TrainStepCost::block_bytes(double bytes_per_parameter) const {
  return bytes_per_parameter * static_cast<double>(block_parameters(arch_));
}

}  // namespace motley
