#include "motley/planner/train/joint/polish.hpp"

#include "motley/planner/train/plan/make_train_plan.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/base/rounding.hpp"

namespace motley {
namespace {

constexpr double shorter = 1 - 1e-9;

// `from` gives its neighbour `to` the layer at their boundary.
bool shift_layer(ReplicaLayout& replica, std::size_t from, std::size_t to) {
  PlacedStage &giver = replica.stages[from], &taker = replica.stages[to];
  if (giver.layers.size() < 2) return false;
  if (to < from) {
    ++giver.layers.first;
    ++taker.layers.end;
    ++taker.strategies.back().layers.end;
    if (++giver.strategies.front().layers.first == giver.strategies.front().layers.end)
      giver.strategies.erase(giver.strategies.begin());
  } else {
    --giver.layers.end;
    --taker.layers.first;
    --taker.strategies.front().layers.first;
    if (--giver.strategies.back().layers.end == giver.strategies.back().layers.first) giver.strategies.pop_back();
  }
  return true;
}

bool replica_fits(const TrainProblem& problem, const TrainLayout& layout, std::size_t r) {
  for (std::size_t s = 0; s < layout.replicas[r].stages.size(); ++s)
    if (!stage_fits(problem.view(), layout, r, s)) return false;
  return true;
}

class Polisher {
 public:
  Polisher(const TrainProblem& problem, TrainLayout layout, Instant deadline) : problem_(problem), deadline_(deadline) {
    best_ = {.layout = std::move(layout), .iteration_s = 0, .evaluated = 1};
    best_.iteration_s = price_step(problem.cost, problem.view(), best_.layout).iteration_s;
  }

  Polished run() {
    change_parts();
    if (change_schedule()) change_parts();
    return std::move(best_);
  }

 private:
  bool expired() const { return Clock::now() >= deadline_; }

  void change_parts() {
    bool better = true;
    while (better && !expired()) {
      better = false;
      for (std::size_t r = 0; r < best_.layout.replicas.size() && !expired(); ++r) {
        better = shift_layers(r) || better;
        better = change_strategies(r) || better;
        better = change_micro_batches(r) || better;
        for (std::size_t other = 0; other < best_.layout.replicas.size() && !expired(); ++other)
          if (other != r) better = move_sequences(r, other) || better;
      }
      better = change_algorithm() || better;
    }
  }

  bool try_change(const std::function<bool(TrainLayout&)>& change) {
    if (expired()) return false;
    TrainLayout layout = best_.layout;
    if (!change(layout)) return false;
    ++best_.evaluated;
    const double limit_s = best_.iteration_s * shorter;
    TrainStepPrice price = bound_step(problem_.cost, problem_.view(), layout);
    if (price.iteration_s >= limit_s || !changes_fit(layout)) return false;
    run_step(problem_.cost, layout, price);
    if (price.iteration_s >= limit_s) return false;
    best_.layout = std::move(layout);
    best_.iteration_s = price.iteration_s;
    return true;
  }

  bool changes_fit(const TrainLayout& layout) const {
    const bool all = layout.schedule != best_.layout.schedule;
    for (std::size_t r = 0; r < layout.replicas.size(); ++r)
      if ((all || layout.replicas[r] != best_.layout.replicas[r]) && !replica_fits(problem_, layout, r)) return false;
    return true;
  }

  // A layer goes from any stage to any other; those between them move up.
  bool shift_layers(std::size_t r) {
    bool better = false;
    const std::size_t stages = best_.layout.replicas[r].stages.size();
    for (std::size_t from = 0; from < stages; ++from)
      for (std::size_t to = 0; to < stages; ++to)
        while (from != to && try_change([&](TrainLayout& layout) {
                 for (std::size_t s = from; s != to; s = from < to ? s + 1 : s - 1)
                   if (!shift_layer(layout.replicas[r], s, from < to ? s + 1 : s - 1)) return false;
                 return true;
               }))
          better = true;
    return better;
  }

  bool change_strategies(std::size_t r) {
    bool better = false;
    for (std::size_t s = 0; s < best_.layout.replicas[r].stages.size(); ++s) {
      const PlacedStage stage = best_.layout.replicas[r].stages[s];
      const ReplicaLayout& replica = best_.layout.replicas[r];
      const StagePlace place{
          .ends = {s == 0, s + 1 == replica.stages.size()},
          .sequences = micro_batch_of(replica),
          .in_flight = micro_batches_in_flight(best_.layout.schedule, s, replica.stages.size(), replica.micro_batches),
          .waiting = micro_batches_waiting(best_.layout.schedule, s, replica.stages.size(), replica.micro_batches),
          .micro_batches = replica.micro_batches};
      better = try_change([&](TrainLayout& layout) {
                 StageChoice choice = best_strategies(problem_, stage.devices, place, stage.layers, stage.shares);
                 if (choice.strategies.empty() || choice.strategies == stage.strategies) return false;
                 layout.replicas[r].stages[s].strategies = std::move(choice.strategies);
                 return true;
               }) ||
               better;
      for (LayerStrategy strategy : stage_strategies(problem_, stage.devices, micro_batch_of(best_.layout.replicas[r])))
        better = try_change([&](TrainLayout& layout) {
                   PlacedStage& changed = layout.replicas[r].stages[s];
                   strategy.layers = changed.layers;
                   auto shares = work_shares(problem_, stage.devices, strategy, place.sequences);
                   if (changed.strategies == std::vector{strategy} && changed.shares == shares) return false;
                   changed.strategies = {strategy};
                   changed.shares = std::move(shares);
                   return true;
                 }) ||
                 better;
    }
    return better;
  }

  bool change_micro_batches(std::size_t r) {
    bool better = false;
    const std::int64_t now = best_.layout.replicas[r].micro_batches;
    for (const std::int64_t count : {now - 1, now + 1, now / 2, now * 2})
      better = try_change([&](TrainLayout& layout) {
                 ReplicaLayout& replica = layout.replicas[r];
                 if (count < 1 || count > replica.sequences) return false;
                 replica.micro_batches = count;
                 return true;
               }) ||
               better;
    return better;
  }

  // A micro-batch's sequences, or one, go to another replica; both keep the size of their micro-batches.
  bool move_sequences(std::size_t from, std::size_t to) {
    bool better = false;
    for (const bool one : {false, true})
      while (try_change([&](TrainLayout& layout) {
        ReplicaLayout &giver = layout.replicas[from], &taker = layout.replicas[to];
        const std::int64_t size = micro_batch_of(giver), taken = one ? 1 : size, others = micro_batch_of(taker);
        if (giver.sequences <= taken) return false;
        giver.sequences -= taken;
        taker.sequences += taken;
        giver.micro_batches = ceil_div(giver.sequences, size);
        taker.micro_batches = ceil_div(taker.sequences, others);
        return true;
      }))
        better = true;
    return better;
  }

  bool change_algorithm() {
    bool better = false;
    for (const auto& algorithm : enum_names<SyncAlgorithm>())
      better = try_change([&](TrainLayout& layout) {
                 return std::exchange(layout.sync.algorithm, algorithm.value) != algorithm.value;
               }) ||
               better;
    return better;
  }

  bool change_schedule() {
    return try_change([](TrainLayout& layout) {
      if (layout.schedule != PipelineSchedule::one_forward_one_backward) return false;
      layout.schedule = PipelineSchedule::zb_h1;
      return true;
    });
  }

  const TrainProblem& problem_;
  Instant deadline_;
  Polished best_;
};

}  // namespace

bool fits_memory(const TrainProblem& problem, const TrainLayout& layout) {
  for (std::size_t r = 0; r < layout.replicas.size(); ++r)
    if (!replica_fits(problem, layout, r)) return false;
  return true;
}

Polished polish(const TrainProblem& problem, TrainLayout layout, Instant deadline) {
  return Polisher(problem, std::move(layout), deadline).run();
}

}  // namespace motley
