#include "motley/cost/published/flashflex.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "motley/cost/form/form.hpp"

namespace motley {
namespace {

constexpr double element_bytes = 2;
constexpr double state_bytes_per_parameter = 8;         // half-precision weight, gradient and two moments
constexpr double binary_tera = 1099511627776.0 / 1e12;  // a "TFLOPS" of the published code is 2^40

}  // namespace

FlashflexForm::FlashflexForm(const CostOptions& options, const Cluster& cluster, const Architecture& arch,
                             const Training& training, double micro_batch)
    : layers_(static_cast<double>(arch.layers)),
      hidden_(static_cast<double>(arch.hidden)),
      vocabulary_(static_cast<double>(arch.vocabulary)),
      sequence_(static_cast<double>(training.sequence_length)),
      batch_(micro_batch),
      recompute_(setting(options, "flashflex.recompute", 1) != 0),
      sync_factor_(sync_factor * (setting(options, "flashflex.zero3", 0) != 0 ? 1.5 : 1)) {
  const double unit = setting(options, "flashflex.decimal", 0) != 0 ? 1 : binary_tera;
  const auto n = static_cast<int>(cluster.devices.size());
  bytes_per_s_.resize(cluster.devices.size() * cluster.devices.size());
  for (int a = 0; a < n; ++a) {
    const DeviceType& type = cluster.type_of(a);
    flop_per_s_.push_back(product_flop_per_s(type, DType::fp16) * unit);
    memory_bytes_.push_back(static_cast<double>(type.memory_bytes));
    for (int b = 0; b < n; ++b)
      if (a != b) bytes_per_s_[static_cast<std::size_t>(a * n + b)] = cluster.link(a, b).bandwidth_bytes_per_s;
  }
}

double FlashflexForm::compute_s(const FlashflexGroup& group) const {
  const double k = recompute_ ? 96 : 72;
  const double attention = sequence_ / (6 * hidden_), head = vocabulary_ / (16 * layers_ * hidden_);
  return k * batch_ * sequence_ * hidden_ * hidden_ * (1 + attention + head) /
         (static_cast<double>(group.size()) * peak_flop_per_s(group.front()));
}

double FlashflexForm::collective_s(const FlashflexGroup& group) const {
  const double a = recompute_ ? 12 : 8;
  const double bytes = batch_ * sequence_ * hidden_ * element_bytes / static_cast<double>(group.size());
  double slowest = 0;
  for (const int rank : group) {
    double sum = 0;
    for (const int peer : group)
      if (peer != rank) sum += bytes / bandwidth(rank, peer);
    slowest = std::max(slowest, sum);
  }
  return a * slowest;
}

double FlashflexForm::hop_s(const FlashflexGroup& from, const FlashflexGroup& to) const {
  const double bytes = batch_ * sequence_ * hidden_ * element_bytes;
  double best = std::numeric_limits<double>::infinity();
  for (const int receiver : to) {
    double spread = 0;
    for (const int peer : to)
      if (peer != receiver) spread += bytes / static_cast<double>(to.size()) / bandwidth(receiver, peer);
    for (const int sender : from) best = std::min(best, bytes / bandwidth(sender, receiver) + spread);
  }
  return 2 * best;
}

std::vector<std::vector<int>> flashflex_sync_sets(std::span<const FlashflexGroup* const> owners) {
  std::size_t most = 0;
  for (const FlashflexGroup* owner : owners) most = std::max(most, owner->size());
  std::vector<std::vector<int>> sets(most);
  for (const FlashflexGroup* owner : owners) {
    if (most % owner->size() != 0)
      throw input_error(
          fmt::format("a layer is held by {} devices in one replica and by {} in another", owner->size(), most),
          "use --cost motley: the cost form \"flashflex\" is for degrees that divide each other");
    for (std::size_t i = 0; i < most; ++i) sets[i].push_back((*owner)[i / (most / owner->size())]);
  }
  return sets;
}

double FlashflexForm::sync_s(std::span<const FlashflexGroup* const> owners) const {
  const auto sets = flashflex_sync_sets(owners);
  std::size_t fewest = sets.size();
  for (const FlashflexGroup* owner : owners) fewest = std::min(fewest, owner->size());
  const double bytes =
      12 * hidden_ * hidden_ * element_bytes / (static_cast<double>(fewest) * static_cast<double>(owners.size()));
  double sum = 0;
  for (std::size_t i = 0; i < sets.size() / fewest; ++i) {
    double slowest = 0;
    for (const int rank : sets[i]) {
      double peers = 0;
      for (const int peer : sets[i])
        if (peer != rank) peers += bytes / bandwidth(rank, peer);
      slowest = std::max(slowest, peers);
    }
    sum += 2 * slowest;
  }
  return sum;
}

double FlashflexForm::memory_bytes(const FlashflexGroup& group, std::int64_t layers, StageEnds ends) const {
  const double n = static_cast<double>(layers), t = static_cast<double>(group.size());
  const double parameters = 12 * hidden_ * hidden_ * n / t + (ends.last ? hidden_ + vocabulary_ * hidden_ : 0) +
                            (ends.first ? hidden_ * (vocabulary_ + sequence_) : 0);
  const double tokens = batch_ * sequence_;
  return state_bytes_per_parameter * parameters + element_bytes * (n * tokens * hidden_ / t + 2 * tokens * hidden_);
}

std::int64_t FlashflexForm::most_layers(const FlashflexGroup& group, StageEnds ends) const {
  double limit = std::numeric_limits<double>::infinity();
  for (const int device : group) limit = std::min(limit, memory_bytes_[static_cast<std::size_t>(device)]);
  const double none = memory_bytes(group, 0, ends), each = memory_bytes(group, 1, ends) - none;
  return static_cast<std::int64_t>(std::clamp(std::floor((limit - none) / each), 0.0, layers_));
}

double FlashflexForm::step_flops(double sequences) const {
  const double k = recompute_ ? 96 : 72;
  return k * sequences * sequence_ * layers_ * hidden_ * hidden_ *
         (1 + sequence_ / (6 * hidden_) + vocabulary_ / (16 * layers_ * hidden_));
}

double lockstep_s(std::span<const double> stages, std::int64_t micro_batches) {
  const auto count = static_cast<std::int64_t>(stages.size());
  if (micro_batches >= count) {
    // Filling: the largest of the first stages; then all; draining: the largest of the last.
    double fill = 0, drain = 0, largest = 0, last_largest = 0;
    for (std::int64_t s = 0; s + 1 < count; ++s) {
      largest = std::max(largest, stages[static_cast<std::size_t>(s)]);
      last_largest = std::max(last_largest, stages[static_cast<std::size_t>(count - 1 - s)]);
      fill += largest;
      drain += last_largest;
    }
    largest = std::max(largest, stages.back());
    return fill + drain + static_cast<double>(micro_batches - count + 1) * largest;
  }
  double sum = 0;
  for (std::int64_t slot = 0; slot < micro_batches + count - 1; ++slot) {
    double slowest = 0;
    for (std::int64_t s = std::max<std::int64_t>(0, slot - micro_batches + 1); s <= std::min(slot, count - 1); ++s)
      slowest = std::max(slowest, stages[static_cast<std::size_t>(s)]);
    sum += slowest;
  }
  return sum;
}

double flow_shop_s(std::span<const double> stages, std::int64_t micro_batches) {
  return std::accumulate(stages.begin(), stages.end(), 0.0) +
         static_cast<double>(micro_batches - 1) * *std::max_element(stages.begin(), stages.end());
}

namespace {

class FlashflexPricing {
 public:
  FlashflexPricing(const TrainPlan& plan, const CostOptions& options)
      : plan_(plan), options_(options), training_(training_of(plan.workload)) {}

  TrainCost price() {
    for (std::size_t r = 0; r < plan_.replicas.size(); ++r) add_replica(r);
    std::vector<Term> terms = {max_of("pipelines", std::move(pipelines_), "x 1.8: the slowest replica"), sync_term()};
    TrainCost cost;
    cost.tree = sum_of("step", std::move(terms));
    cost.iteration_s = cost.tree.value;
    const double sequences = static_cast<double>(training_.global_batch);
    cost.tokens_per_s = sequences * static_cast<double>(training_.sequence_length) / cost.iteration_s;
    double peak = 0;
    for (const auto& groups : groups_)
      for (const auto& group : groups)
        for (const int device : group) peak += form_->peak_flop_per_s(device);
    cost.mfu = form_->step_flops(sequences) / (cost.iteration_s * peak);
    cost.remarks = {{"pipelines as flow shops instead of in lockstep", form_->step_s(flow_shop_, 0)}};
    return cost;
  }

 private:
  FlashflexGroup group_of(std::size_t r, std::size_t s) const {
    const TrainStage& stage = plan_.replicas[r].stages[s];
    for (const LayerStrategy& strategy : stage.strategies)
      if (strategy.dp != 1 || !stage.shares.empty())
        throw input_error(
            fmt::format("replicas[{}].stages[{}]: not one group of equal tensor-parallel ranks", r, s),
            "use --cost motley: the cost form \"flashflex\" has no data parallelism inside a stage and no shares");
    FlashflexGroup group;
    for (const auto& device : stage.devices) group.push_back(plan_.cluster.find_device(device));
    return group;
  }

  void add_replica(std::size_t r) {
    const TrainReplica& replica = plan_.replicas[r];
    const double micro_batch =
        static_cast<double>(replica_sequences(training_, replica)) / static_cast<double>(replica.micro_batches);
    form_.emplace(options_, plan_.cluster, plan_.model.arch, training_, micro_batch);
    std::vector<FlashflexGroup> groups;
    for (std::size_t s = 0; s < replica.stages.size(); ++s) groups.push_back(group_of(r, s));
    std::vector<double> stages;
    std::vector<Term> busiest;
    for (std::size_t s = 0; s < groups.size(); ++s) {
      const auto layers = static_cast<double>(replica.stages[s].layers.size());
      const double hop = s + 1 < groups.size() ? form_->hop_s(groups[s], groups[s + 1]) : 0;
      stages.push_back(layers * form_->layer_s(groups[s]) + hop);
    }
    const double pipeline = lockstep_s(stages, replica.micro_batches);
    flow_shop_ = std::max(flow_shop_, flow_shop_s(stages, replica.micro_batches));
    const std::size_t s = static_cast<std::size_t>(std::max_element(stages.begin(), stages.end()) - stages.begin());
    const auto layers = static_cast<double>(replica.stages[s].layers.size());
    const double m = static_cast<double>(replica.micro_batches), factor = form_->step_s(1, 0);
    const std::string where = fmt::format("of stage {}, {} micro-batches", s, replica.micro_batches);
    std::vector<Term> terms = {leaf("compute", factor * m * layers * form_->compute_s(groups[s]), where),
                               leaf("tensor parallel", factor * m * layers * form_->collective_s(groups[s]), where)};
    const double hop = s + 1 < groups.size() ? form_->hop_s(groups[s], groups[s + 1]) : 0;
    terms.push_back(leaf("hop", factor * m * hop, where));
    terms.push_back(leaf("bubble", factor * std::max(0.0, pipeline - m * stages[s]), "filling and draining"));
    pipelines_.push_back(sum_of(fmt::format("replica {}", r), std::move(terms)));
    groups_.push_back(std::move(groups));
  }

  Term sync_term() const {
    double sum = 0;
    for (std::int64_t layer = 0; layer < plan_.model.arch.layers; ++layer) {
      std::vector<const FlashflexGroup*> owners;
      for (std::size_t r = 0; r < groups_.size(); ++r) {
        std::size_t s = 0;
        while (plan_.replicas[r].stages[s].layers.end <= layer) ++s;
        owners.push_back(&groups_[r][s]);
      }
      sum += form_->sync_s(owners);
    }
    return leaf("sync", form_->step_s(0, sum), "x 1.1: gradients of all layers, one after another");
  }

  const TrainPlan& plan_;
  const CostOptions& options_;
  const Training& training_;
  std::optional<FlashflexForm> form_;  // of the replica priced last: the micro-batch alone differs
  std::vector<std::vector<FlashflexGroup>> groups_;
  std::vector<Term> pipelines_;
  double flow_shop_ = 0;
};

}  // namespace

TrainCost price_flashflex(const TrainPlan& plan, const CostOptions& options) {
  return FlashflexPricing(plan, options).price();
}

}  // namespace motley
