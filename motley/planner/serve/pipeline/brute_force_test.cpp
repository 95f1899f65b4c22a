// The planner against every division of a few devices into pipelines, every layout of each, every batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "motley/base/random.hpp"
#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/model/unlike_layers_test.hpp"
#include "motley/planner/serve/pipeline/search.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

constexpr std::int64_t test_layers = 3;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  int between(int low, int high) {
    return low + static_cast<int>(uniform_at(seed_, index_++) * static_cast<double>(high - low + 1));
  }

 private:
  std::uint64_t seed_, index_ = 0;
};

// Three or four devices of two types on one to three machines, short of memory, on links that matter.
Cluster small_cluster(Dice& dice) {
  std::string text = "format = \"motley.cluster/1\"\n";
  const int machines = dice.between(1, 3);
  for (int i = 0, left = dice.between(3, 4); i < machines; ++i) {
    const int here = i + 1 == machines ? left : std::min(left - (machines - 1 - i), dice.between(1, 2));
    left -= here;
    text += "[[machine]]\nname = \"m" + std::to_string(i) + "\"\ndevices = [";
    for (int k = 0; k < here; ++k) text += (k > 0 ? ", \"t" : "\"t") + std::to_string(dice.between(0, 1)) + "\"";
    text += "]\n";
  }
  for (int t = 0; t < 2; ++t)
    text += "[[device_type]]\nname = \"t" + std::to_string(t) + "\"\nvendor = \"nvidia\"\nmemory = \"" +
            std::to_string(dice.between(40, 160)) + " MiB\"\nmemory_bandwidth = \"" +
            std::to_string(dice.between(10, 400)) + " GB/s\"\nflops = { fp16 = \"" +
            std::to_string(dice.between(1, 50)) + " TFLOP/s\" }\nreserve = \"8 MiB\"\n";
  text += "[network]\nwithin_site = { latency = \"" + std::to_string(dice.between(1, 400)) +
          " us\", bandwidth = \"1 GB/s\" }\n";
  return cluster_of(text);
}

struct Best {
  double worth = 0;  // requests per second inside the deadlines
  double latency_s = std::numeric_limits<double>::infinity();
  double prefill = 0, decode = 0;  // requests per second where that is all it does
};

// Every pipeline over a set of devices, each device in one stage, stages of like devices of one machine.
class Enumeration {
 public:
  Enumeration(const Cluster& cluster, const Model& model, const Workload& workload, const ServeOptions& options)
      : cluster_(cluster), model_(model), workload_(workload), options_(options), best_(1u << cluster.devices.size()) {
    std::vector<unsigned> stages;
    extend(stages, 0);
  }

  double least_latency_s() const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& best : best_) least = std::min(least, best.latency_s);
    return least;
  }
  // Over all divisions of the devices that are left.
  double most_worth(unsigned left) const {
    if (left == 0) return 0;
    const unsigned first = left & -left;
    double most = most_worth(left & ~first);  // idle
    for (unsigned group = left; group != 0; group = (group - 1) & left)
      if (group & first) most = std::max(most, best_[group].worth + most_worth(left & ~group));
    return most;
  }

  // The same where groups may also prefill or decode for one another, over links that cost nothing.
  double most_apart(unsigned left, double both = 0, double prefill = 0, double decode = 0) const {
    if (left == 0) return both + std::min(prefill, decode);
    const unsigned first = left & -left;
    double most = most_apart(left & ~first, both, prefill, decode);
    for (unsigned group = left; group != 0; group = (group - 1) & left) {
      if (!(group & first)) continue;
      const Best& best = best_[group];
      most = std::max({most, most_apart(left & ~group, both + best.worth, prefill, decode),
                       most_apart(left & ~group, both, prefill + best.prefill, decode),
                       most_apart(left & ~group, both, prefill, decode + best.decode)});
    }
    return most;
  }

 private:
  std::vector<int> members(unsigned set) const {
    std::vector<int> devices;
    for (int i = 0; i < static_cast<int>(cluster_.devices.size()); ++i)
      if (set >> i & 1u) devices.push_back(i);
    return devices;
  }
  bool alike(unsigned set) const {
    const auto devices = members(set);
    return std::all_of(devices.begin(), devices.end(), [&](int device) {
      return cluster_.devices[device].type == cluster_.devices[devices[0]].type &&
             cluster_.devices[device].machine == cluster_.devices[devices[0]].machine;
    });
  }

  void extend(std::vector<unsigned>& stages, unsigned used) {
    if (!stages.empty()) cut(stages, used, {}, 0);
    if (static_cast<std::int64_t>(stages.size()) == test_layers) return;
    const unsigned left = static_cast<unsigned>(best_.size() - 1) & ~used;
    for (unsigned set = left; set != 0; set = (set - 1) & left) {
      if (!alike(set)) continue;
      stages.push_back(set);
      extend(stages, used | set);
      stages.pop_back();
    }
  }

  void cut(const std::vector<unsigned>& stages, unsigned used, std::vector<std::int64_t> layers, std::int64_t placed) {
    const auto left = static_cast<std::int64_t>(stages.size() - layers.size());
    if (left == 0) {
      if (placed == test_layers) price(stages, used, layers);
      return;
    }
    for (std::int64_t here = 1; here <= test_layers - placed - (left - 1); ++here) {
      layers.push_back(here);
      cut(stages, used, layers, placed + here);
      layers.pop_back();
    }
  }

  void price(const std::vector<unsigned>& stages, unsigned used, const std::vector<std::int64_t>& layers) {
    ServePlan plan;
    plan.model = model_;
    plan.cluster = cluster_;
    plan.workload = workload_;
    plan.step = options_.step;
    Route route{.id = "r0", .path = {}};
    std::int64_t first = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      Stage stage;
      stage.id = std::to_string(i);
      stage.layers = {first, first + layers[i]};
      for (const int device : members(stages[i])) stage.devices.push_back(cluster_.devices[device].name);
      stage.shares = uneven_shares(model_.arch, static_cast<int>(stage.devices.size()));
      stage.embedding = i == 0;
      stage.head = i + 1 == stages.size();
      stage.weight_type = stage.kv_type = DType::fp16;
      first = stage.layers.end;
      route.path.push_back({stage.id, stage.layers});
      plan.stages.push_back(stage);
    }
    plan.routes = {route};
    if (options_.roles == StageRoles::apart_where_better) {
      price_phase(plan, Phase::prefill, best_[used].prefill);
      price_phase(plan, Phase::decode, best_[used].decode);
    }
    for (const std::int64_t batch : batch_grid(options_.max_batch)) {
      const ServePoint point{workload_.mean_prompt_tokens(), workload_.mean_output_tokens(), batch, options_.step};
      for (auto& stage : plan.stages) {
        stage.kv_tokens = kv_tokens_of(point, batch);
        stage.kv_sequences = has_slots(model_.arch) ? batch : 0;  // windows hold no more of each
      }
      const auto fits = [&](const Stage& stage) {
        const auto memory = stage_memory(plan, stage);
        return std::all_of(memory.begin(), memory.end(),
                           [](const DeviceMemory& m) { return m.device.total() <= m.device.limit; });
      };
      if (!std::all_of(plan.stages.begin(), plan.stages.end(), fits)) return;
      plan.routes[0].batch = batch;
      const ServeCost cost = price_serve(plan, {});
      Best& best = best_[used];
      if (deadline_excess(workload_, cost.routes[0]) <= 1e-12 || options_.objective != Objective::slo)
        best.worth = std::max(best.worth, cost.requests_per_s);
      if (batch == 1) best.latency_s = std::min(best.latency_s, cost.latency_s);
    }
  }

  void price_phase(ServePlan plan, Phase phase, double& most) const {
    std::vector<TensorGroup> groups;
    for (const auto& stage : plan.stages) {
      std::vector<int> devices;
      for (const auto& name : stage.devices) devices.push_back(cluster_.find_device(name));
      groups.push_back(
          make_group(cluster_, model_.arch, devices, stage.shares, DType::fp16, DType::fp16, options_.step));
    }
    std::vector<PathStage> path;
    for (std::size_t i = 0; i < groups.size(); ++i)
      path.push_back({&groups[i],
                      {plan.stages[i].embedding, plan.stages[i].head},
                      layer_counts(model_.arch, plan.stages[i].layers)});
    for (const std::int64_t batch : batch_grid(options_.max_batch))
      for (const std::int64_t count : micro_batch_counts(batch, options_.step)) {
        const ServePoint point{workload_.mean_prompt_tokens(),
                               workload_.mean_output_tokens(),
                               sequences_per_step(batch, count),
                               options_.step,
                               phase,
                               batch > 1};
        for (auto& stage : plan.stages) {
          stage.kv_tokens = kv_tokens_of(point, batch);
          stage.kv_sequences = has_slots(model_.arch) ? batch : 0;
          for (const auto& memory : stage_memory(plan, stage))
            if (memory.device.total() > memory.device.limit) return;
        }
        const auto form = make_form({}, cluster_, model_.arch, point);
        const PathPrice price = price_path(*form, path);
        most = std::max(most, 1 / cycle_s(*form, price.latency.sum(), price.busiest_s(), batch));
      }
  }

  const Cluster& cluster_;
  const Model& model_;
  const Workload& workload_;
  const ServeOptions& options_;
  std::vector<Best> best_;  // by set of devices
};

class BruteForce : public testing::TestWithParam<int> {};

// Whether any plan is there.
bool compare_with_all(Dice& dice, const Model& model) {
  const Cluster cluster = small_cluster(dice);
  Workload workload = workload_of(dice.between(20, 200), dice.between(4, 60));
  ServeOptions options;
  options.step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16};
  options.max_batch = 8;
  options.stage_types = StageTypes::alike;
  options.roles = StageRoles::both;

  options.objective = Objective::throughput;
  const Enumeration all(cluster, model, workload, options);
  const auto whole = static_cast<unsigned>((1u << cluster.devices.size()) - 1);
  const double most = all.most_worth(whole);
  const auto plan = plan_serve(cluster, model, workload, options).plan;
  EXPECT_EQ(plan.has_value(), most > 0);
  if (!plan) return false;
  EXPECT_NEAR(plan->predicted.requests_per_s, most, 1e-9 * most);
  EXPECT_EQ(plan->search.status, SearchStatus::optimal);

  options.objective = Objective::latency;
  const auto fastest = plan_serve(cluster, model, workload, options).plan;
  EXPECT_TRUE(fastest);
  if (!fastest) return true;
  EXPECT_NEAR(fastest->predicted.latency_s, all.least_latency_s(), 1e-9 * all.least_latency_s());

  // A deadline between what a request takes alone and what it takes at the largest batches.
  options.objective = Objective::slo;
  workload.classes[0].deadline.total_s = all.least_latency_s() * (1 + 0.5 * dice.between(0, 4));
  const Enumeration inside(cluster, model, workload, options);
  const auto kept = plan_serve(cluster, model, workload, options).plan;
  EXPECT_NEAR(kept ? kept->predicted.requests_per_s : 0, inside.most_worth(whole), 1e-9 * most);
  return true;
}

TEST_P(BruteForce, NoDivisionOrLayoutIsBetterForAnyObjective) {
  Dice dice(static_cast<std::uint64_t>(GetParam()));
  compare_with_all(dice, llama_of(1024, test_layers, 8, 8, 2816, 4000));
}

// Mixtral's shape with dense layers between.
TEST(BruteForce, NorWhereLayersAreUnlike) {
  int planned = 0;
  for (std::uint64_t seed = 101; seed <= 130; ++seed) {
    Dice dice(seed);
    Model model = llama_of(1024, test_layers, 8, 8, 2816, 4000);
    std::vector<std::uint16_t> kinds = {0, 1};
    while (std::ssize(kinds) < test_layers) kinds.push_back(static_cast<std::uint16_t>(dice.between(0, 2)));
    std::swap(kinds[0], kinds[static_cast<std::size_t>(dice.between(0, test_layers - 1))]);
    model.arch = with_unlike_layers(model.arch, kinds);
    planned += compare_with_all(dice, model) ? 1 : 0;
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GE(planned, 15);
}

// Prefill and decode apart: never less than together, never more than the best division into roles, and the bound
// holds.
TEST(BruteForce, RolesComeNearTheBestDivision) {
  double reached = 0;
  int parted = 0, compared = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Dice dice(seed);
    Cluster cluster = small_cluster(dice);
    cluster.description.network.within_site->bandwidth_bytes_per_s = 1e13;
    cluster.description.network.within_machine = {{.latency_s = 1e-5, .bandwidth_bytes_per_s = 1e13}};
    for (std::size_t t = 0; t < cluster.types.size(); ++t) {  // one computes, the other remembers
      cluster.types[t].memory_bytes = 300 << 20;
      for (auto& [name, rate] : cluster.types[t].flop_per_s) rate *= t == 0 ? 30 : 1;
      cluster.types[t].memory_bandwidth_bytes_per_s *= t == 0 ? 1 : 30;
    }
    const Model model = llama_of(1024, test_layers, 8, 8, 2816, 4000);
    const Workload workload = workload_of(dice.between(20, 200), dice.between(4, 60));
    ServeOptions options{.objective = Objective::throughput,
                         .step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16},
                         .stage_types = StageTypes::alike,
                         .max_batch = 8};
    const Enumeration all(cluster, model, workload, options);
    const auto whole = static_cast<unsigned>((1u << cluster.devices.size()) - 1);
    const double together = all.most_worth(whole), apart = all.most_apart(whole);
    const auto plan = plan_serve(cluster, model, workload, options).plan;
    if (!plan) continue;
    const double rate = plan->predicted.requests_per_s;
    EXPECT_GE(rate, together * (1 - 1e-9)) << seed;
    EXPECT_LE(rate, apart * (1 + 1e-9)) << seed;
    EXPECT_GE(*plan->search.bound, apart * workload.mean_output_tokens() * (1 - 1e-9)) << seed;
    const bool has_roles = plan->stages[0].role != StageRole::any || plan->stages.back().role != StageRole::any;
    if (plan->search.status == SearchStatus::optimal) {
      EXPECT_NEAR(rate, apart, 1e-6 * apart) << seed;
    }
    // Less where several prefill for one that decodes: their requests are in steps of their own.
    EXPECT_GE(rate, 0.75 * apart) << seed;
    parted += has_roles ? 1 : 0;
    compared += 1;
    reached += rate / apart;
  }
  EXPECT_GE(compared, 75);
  EXPECT_GE(parted, 5);
  EXPECT_GE(reached, 0.98 * compared);
}

INSTANTIATE_TEST_SUITE_P(Instances, BruteForce, testing::Range(1, 41));

}  // namespace
}  // namespace motley
