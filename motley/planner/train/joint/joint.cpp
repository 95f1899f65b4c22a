#include "motley/planner/train/joint/joint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "motley/base/clock.hpp"
#include "motley/base/parallel.hpp"
#include "motley/base/rounding.hpp"
#include "motley/base/units.hpp"
#include "motley/cluster/names.hpp"
#include "motley/planner/train/joint/candidate.hpp"
#include "motley/planner/train/joint/polish.hpp"
#include "motley/planner/train/joint/strategy_tables.hpp"
#include "motley/planner/train/plan/make_train_plan.hpp"

namespace motley {
namespace {

constexpr std::size_t restarts = 8;
constexpr std::size_t most_confirmed = 64;        // of the best by closed form, run event by event
constexpr std::size_t usual_polished = 6;         // of the best of these; of few devices all
constexpr std::int64_t moves_per_restart = 3000;  // of a restart; more for larger clusters, up to ten times as many
constexpr std::int64_t micro_batch_sizes[] = {1, 2, 4, 8, 16, 32, 64, 128};  // sequences
constexpr std::int64_t usual_sequences = 16;                                 // more only where a stage has more devices
constexpr std::size_t varied = 400;                     // structures, at least, whose micro-batch is varied
constexpr double search_share = 0.85;                   // of the time, before the best are confirmed
constexpr double first_share = 0.3, start_share = 0.5;  // until all structures, and their micro-batches, are judged

struct Scored {
  double iteration_s = 0;
  TrainCandidate candidate;
};

bool allowed(const TrainOptions& options, const TrainCandidate& candidate) {
  if (options.replicas && std::ssize(candidate.replicas) != *options.replicas) return false;
  return !options.stages || std::all_of(candidate.replicas.begin(), candidate.replicas.end(),
                                        [&](const auto& replica) { return std::ssize(replica) == *options.stages; });
}

std::vector<std::int64_t> micro_batches(const TrainProblem& problem, std::int64_t widest) {
  if (problem.training.micro_batch > 0) return {problem.training.micro_batch};
  std::vector<std::int64_t> sizes;
  for (const std::int64_t sequences : micro_batch_sizes)
    if (sequences <= problem.training.global_batch && (sequences <= usual_sequences || sequences < 4 * widest))
      sizes.push_back(sequences);
  return sizes;
}

// Best first; those that do not fit are left out.
std::vector<Scored> scored(Judge& judge, std::vector<TrainCandidate> candidates, int threads, Instant deadline,
                           std::int64_t& evaluated) {
  std::vector<Scored> scored(candidates.size());
  in_parallel(candidates.size(), threads, [&](std::size_t i) {
    if (i > 0 && Clock::now() >= deadline) return;
    scored[i] = {judge.quick(candidates[i]).iteration_s, std::move(candidates[i])};
  });
  std::erase_if(scored, [](const Scored& one) { return one.candidate.replicas.empty(); });
  evaluated += std::ssize(scored);
  std::stable_sort(scored.begin(), scored.end(),
                   [](const Scored& a, const Scored& b) { return a.iteration_s < b.iteration_s; });
  return scored;
}

// All structures with one micro-batch; the best of them, of few all, with every other one.
std::vector<Scored> scored_starts(Judge& judge, const TrainOptions& options, Instant half_time, Instant deadline,
                                  std::int64_t& evaluated) {
  const auto widest = [](const TrainCandidate& candidate) {
    std::int64_t most = 1;
    for (const auto& replica : candidate.replicas)
      for (const auto& group : replica) most = std::max<std::int64_t>(most, std::ssize(group));
    return most;
  };
  std::vector<TrainCandidate> starts;
  for (auto& start : structured_candidates(judge.problem())) {
    if (!allowed(options, start)) continue;
    const auto sizes = micro_batches(judge.problem(), widest(start));
    const auto usual = std::upper_bound(sizes.begin(), sizes.end(), widest(start));
    start.sequences = usual == sizes.begin() ? sizes.front() : *std::prev(usual);
    starts.push_back(std::move(start));
  }
  std::vector<Scored> found = scored(judge, std::move(starts), options.threads, half_time, evaluated);
  std::vector<TrainCandidate> others;
  for (std::size_t i = 0; i < found.size() && i < std::max(varied, found.size() / 4); ++i)
    for (const std::int64_t sequences : micro_batches(judge.problem(), widest(found[i].candidate)))
      if (sequences != found[i].candidate.sequences) others.push_back({found[i].candidate.replicas, sequences});
  for (Scored& other : scored(judge, std::move(others), options.threads, deadline, evaluated))
    found.push_back(std::move(other));
  std::erase_if(found, [](const Scored& one) { return std::isinf(one.iteration_s); });
  std::stable_sort(found.begin(), found.end(),
                   [](const Scored& a, const Scored& b) { return a.iteration_s < b.iteration_s; });
  return found;
}

// Of a device, one block and sequence there and back, in units of what a kind's share of the FLOPs makes of it: the
// least that the profile has for its type in any degree and micro-batch, otherwise what it takes alone.
double least_block_s(const TrainProblem& problem, int device) {
  const std::string type = plain_name(problem.cluster.type_of(device).name);
  double least_s = std::numeric_limits<double>::infinity();
  for (const LayerTime& time : problem.profile.layer_time)
    if (time.part == LayerPart::block && time.sequence_length == problem.training.sequence_length &&
        plain_name(time.device_type) == type)
      least_s = std::min(least_s, (time.forward_s + time.backward_s) * static_cast<double>(time.tp) /
                                      static_cast<double>(time.micro_batch));
  const SequenceTime alone = problem.cost.sequence_time(device);
  for (std::size_t kind = 0; kind < alone.kinds_s.size(); ++kind)
    least_s = std::min(least_s, alone.kinds_s[kind] / problem.cost.flops_of_mean(kind));
  return least_s;
}

// No step is shorter: every device computes all the time and alone. However blocks and heads are divided, in T seconds
// a device does not earn more than T times its best rate, at any prices of the kinds of blocks and a head; the times of
// a type serve as prices, the best type's count. With a profile blocks alone count.
double bound_s(const TrainProblem& problem) {
  const std::size_t devices = problem.cluster.devices.size();
  const auto heads = static_cast<double>(problem.training.global_batch);
  const double blocks = static_cast<double>(problem.model.arch.layers) * heads;
  const auto time_of = [&](std::size_t device) { return problem.cost.sequence_time(static_cast<int>(device)); };
  if (problem.profile.layer_time.empty()) {
    std::map<int, std::pair<SequenceTime, double>> types;  // with the number of their devices
    for (std::size_t d = 0; d < devices; ++d) {
      auto& [time, count] = types[problem.cluster.devices[d].type];
      time = time_of(d);
      ++count;
    }
    double most_s = 0;
    for (const auto& [priced, entry] : types) {
      const SequenceTime& price = entry.first;
      double rate = 0;
      for (const auto& [type, other] : types) {
        double best = price.head_s / other.first.head_s;
        for (std::size_t kind = 0; kind < price.kinds_s.size(); ++kind)
          best = std::max(best, price.kinds_s[kind] / other.first.kinds_s[kind]);
        rate += other.second * best;
      }
      most_s = std::max(most_s, (blocks * price.block_s + heads * price.head_s) / rate);
    }
    return most_s;
  }
  double rate = 0;
  for (std::size_t d = 0; d < devices; ++d) rate += 1 / least_block_s(problem, static_cast<int>(d));
  return blocks / rate;
}

TrainOutcome nothing_fits(const Model& model, const Training& training) {
  const StateBytes bytes = state_bytes(training);
  const double per_parameter = bytes.weight + bytes.gradient + bytes.master + bytes.moments;
  const double need = per_parameter * static_cast<double>(total_parameters(model.arch));
  return {.plan = {},
          .reason = fmt::format("no division of {} fits these devices: weights, gradients and optimizer take {}, and "
                                "activations come on top",
                                model.name, human_bytes(need)),
          .hint = "use more or larger devices, a shorter sequence, or fewer bytes per parameter ([training] states)"};
}

}  // namespace

TrainOutcome plan_joint(const Cluster& cluster, const Model& model, const Workload& workload,
                        const TrainOptions& options) {
  const Instant start = Clock::now();
  const auto after = [&](double seconds) { return start + duration_of(std::clamp(seconds, 0.0, 1e6)); };
  const Instant search_deadline = after(search_share * options.deadline_s), deadline = after(options.deadline_s);
  const Training& training = training_of(workload);
  const TrainStepCost cost(options.cost, cluster, model.arch, training, options.profile);
  const TrainProblem problem{cluster, model, training, options.profile, cost};
  Judge judge(problem);

  std::int64_t evaluated = 0;
  std::vector<Scored> candidates = scored_starts(judge, options, after(first_share * options.deadline_s),
                                                 after(start_share * options.deadline_s), evaluated);
  if (candidates.empty()) return nothing_fits(model, training);

  // A fixed grid is not searched further: every move would leave it.
  if (!options.stages && !options.replicas && training.micro_batch == 0) {
    const auto devices = static_cast<double>(cluster.devices.size());
    const auto moves = static_cast<std::int64_t>(options.effort * static_cast<double>(moves_per_restart) *
                                                 std::clamp(devices / 32, 0.3, 10.0));
    std::vector<Scored> found(restarts);
    std::vector<std::int64_t> counts(restarts, 0);
    in_parallel(restarts, options.threads, [&](std::size_t i) {
      const TrainCandidate& from = candidates[i % std::min<std::size_t>(candidates.size(), restarts / 2)].candidate;
      found[i].candidate = improved(judge, from, options.seed, i, moves, search_deadline, counts[i]);
      found[i].iteration_s = judge.quick(found[i].candidate).iteration_s;
    });
    for (const std::int64_t count : counts) evaluated += count;
    candidates.insert(candidates.begin(), found.begin(), found.end());
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Scored& a, const Scored& b) { return a.iteration_s < b.iteration_s; });
  }

  const bool cut = Clock::now() >= search_deadline;
  std::vector<Judged> confirmed(std::min(most_confirmed, candidates.size()));
  in_parallel(confirmed.size(), options.threads, [&](std::size_t i) {
    if (i == 0 || Clock::now() < deadline) confirmed[i] = judge.exact(candidates[i].candidate);
  });
  std::stable_sort(confirmed.begin(), confirmed.end(),
                   [](const Judged& a, const Judged& b) { return a.iteration_s < b.iteration_s; });
  std::erase_if(confirmed,
                [&](const Judged& judged) { return !judged.fits() || !fits_memory(problem, judged.layout); });
  if (confirmed.empty()) return nothing_fits(model, training);
  const std::size_t most_polished = cluster.devices.size() <= few_devices ? confirmed.size() : usual_polished;
  std::vector<Polished> polished(std::min(most_polished, confirmed.size()));
  in_parallel(polished.size(), options.threads,
              [&](std::size_t i) { polished[i] = polish(problem, std::move(confirmed[i].layout), deadline); });
  Polished best = std::move(polished.front());
  for (auto& other : polished) {
    evaluated += other.evaluated;
    if (other.iteration_s > 0 && other.iteration_s < best.iteration_s) best = std::move(other);
  }
  TrainOutcome outcome{
      .plan = make_train_plan(cluster, model, workload, options, best.layout), .reason = {}, .hint = {}};
  record_search(*outcome.plan, {.planner = "train/joint",
                                .status = cut ? SearchStatus::deadline : SearchStatus::gap,
                                .bound_s = bound_s(problem),
                                .evaluated = evaluated,
                                .elapsed_s = seconds_since(start)});
  if (const auto violations = verify(*outcome.plan); !violations.empty())
    throw Error(ErrorCode::internal, fmt::format("the planner made a plan that does not verify: {}: {}",
                                                 violations[0].place, violations[0].what));
  return outcome;
}

std::vector<std::vector<double>> memory_prices_s_per_byte(const TrainPlan& plan, const CostOptions& options) {
  const Training& training = training_of(plan.workload);
  const TrainStepCost cost(options, plan.cluster, plan.model.arch, training, plan.profile);
  const TrainProblem problem{plan.cluster, plan.model, training, plan.profile, cost, plan.schedule};
  std::vector<std::vector<double>> prices;
  for (const ReplicaLayout& replica : layout_of(plan).replicas) {
    std::vector<double>& of_stages = prices.emplace_back();
    for (std::size_t s = 0; s < replica.stages.size(); ++s) {
      const PlacedStage& stage = replica.stages[s];
      const StagePlace place{
          .ends = {s == 0, s + 1 == replica.stages.size()},
          .sequences = ceil_div(replica.sequences, replica.micro_batches),
          .in_flight = micro_batches_in_flight(plan.schedule, s, replica.stages.size(), replica.micro_batches),
          .waiting = micro_batches_waiting(plan.schedule, s, replica.stages.size(), replica.micro_batches),
          .micro_batches = replica.micro_batches};
      of_stages.push_back(static_cast<double>(replica.micro_batches) *
                          memory_price_s_per_byte(problem, stage.devices, place, stage.layers, stage.shares));
    }
  }
  return prices;
}

}  // namespace motley
