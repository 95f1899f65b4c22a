// Stages that offload: the planner against every layout of a few devices, with every placement of their weights.
#include "motley/planner/serve/pipeline/offloading.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "motley/base/random.hpp"
#include "motley/cluster/host_reserve.hpp"
#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

constexpr std::int64_t few_layers = 3;

class TierDice {
 public:
  explicit TierDice(std::uint64_t seed) : seed_(seed) {}
  int between(int low, int high) {
    return low + static_cast<int>(uniform_at(seed_, index_++) * static_cast<double>(high - low + 1));
  }

 private:
  std::uint64_t seed_, index_ = 0;
};

// Machines of one device each, most of which have host memory, a disk, or both; layers take 25 MiB.
Cluster machines_with_tiers(TierDice& dice, int machines) {
  std::string text = "format = \"motley.cluster/1\"\n";
  for (int i = 0; i < machines; ++i) {
    const std::string name = std::to_string(i);
    text += "[[machine]]\nname = \"m" + name + "\"\ndevices = [\"t" + name + "\"]\n";
    const int tiers = dice.between(0, 3);
    if ((tiers & 1) != 0) text += "host_memory = \"" + std::to_string(dice.between(20, 120)) + " MiB\"\n";
    if ((tiers & 2) != 0)
      text += "disk = { capacity = \"1 GB\", read = \"" + std::to_string(dice.between(1, 8)) +
              " GB/s\", write = \"1 GB/s\" }\n";
  }
  for (int i = 0; i < machines; ++i)
    text += "[[device_type]]\nname = \"t" + std::to_string(i) + "\"\nvendor = \"" +
            (dice.between(0, 1) != 0 ? "nvidia" : "cpu") + "\"\nmemory = \"" + std::to_string(dice.between(60, 120)) +
            " MiB\"\nmemory_bandwidth = \"" + std::to_string(dice.between(10, 100)) + " GB/s\"\nflops = { fp16 = \"" +
            std::to_string(dice.between(1, 20)) + " TFLOP/s\" }\nreserve = \"4 MiB\"\n";
  return cluster_of(text + "[network]\nwithin_site = { latency = \"" + std::to_string(dice.between(1, 400)) +
                    " us\", bandwidth = \"1 GB/s\" }\n");
}

// The best pipeline over each set of devices, of all orders, cuts, homes and batches.
class EveryPlacement {
 public:
  EveryPlacement(const Cluster& cluster, const Model& model, const Workload& workload, const ServeOptions& options)
      : options_(options), rate_(1u << cluster.devices.size(), 0) {
    plan_.model = model;
    plan_.cluster = cluster;
    plan_.workload = workload;
    plan_.step = options.step;
    extend(0, 0);
  }

  double most_requests_per_s(unsigned left) const {
    if (left == 0) return 0;
    const unsigned first = left & -left;
    double most = most_requests_per_s(left & ~first);
    for (unsigned group = left; group != 0; group = (group - 1) & left)
      if ((group & first) != 0) most = std::max(most, rate_[group] + most_requests_per_s(left & ~group));
    return most;
  }
  double least_latency_s() const { return least_latency_s_; }

 private:
  void extend(unsigned used, std::int64_t placed) {
    if (placed == few_layers) return price(used);
    for (int device = 0; device < static_cast<int>(plan_.cluster.devices.size()); ++device) {
      if ((used >> device & 1u) != 0) continue;
      for (std::int64_t layers = 1; layers <= few_layers - placed; ++layers) {
        Stage stage;
        stage.id = std::to_string(plan_.stages.size());
        stage.layers = {placed, placed + layers};
        stage.devices = {plan_.cluster.devices[static_cast<std::size_t>(device)].name};
        stage.embedding = placed == 0;
        stage.head = placed + layers == few_layers;
        stage.weight_type = stage.kv_type = DType::fp16;
        for (const auto& offload : homes(device, layers)) {
          stage.offload = offload;
          plan_.stages.push_back(stage);
          extend(used | 1u << device, placed + layers);
          plan_.stages.pop_back();
        }
      }
    }
  }

  std::vector<std::optional<Offload>> homes(int device, std::int64_t layers) const {
    std::vector<std::optional<Offload>> found = {std::nullopt};
    const MemoryTiers tiers = tiers_of(plan_.cluster, device);
    for (std::int64_t host = 0; host <= (tiers.host_bytes > 0 ? layers : 0); ++host)
      for (std::int64_t disk = 0; disk <= (tiers.disk ? layers - host : 0); ++disk)
        for (int kv = 0; kv < (tiers.host_bytes > 0 ? 3 : 1); ++kv)
          found.push_back(Offload{.weights = shares_of({layers - host - disk, host, disk}),
                                  .kv = kv == 0 ? TierShares{} : TierShares{0, 1, 0},
                                  .cpu_attention = kv == 1});
    return found;
  }

  void price(unsigned used) {
    ServePlan plan = plan_;
    plan.routes = {{.id = "r0", .path = {}}};
    for (const Stage& stage : plan.stages) plan.routes[0].path.push_back({stage.id, stage.layers});
    for (const std::int64_t batch : batch_grid(options_.max_batch)) {
      const ServePoint point{plan.workload.mean_prompt_tokens(), plan.workload.mean_output_tokens(), batch, plan.step};
      for (auto& stage : plan.stages) stage.kv_tokens = kv_tokens_of(point, batch);
      for (const auto& stage : plan.stages)
        for (const auto& [tier, of] : memory_tiers) {
          const TierMemory memory = stage_memory(plan, stage).front().*of;
          const std::int64_t reserve = of == &DeviceMemory::host ? host_reserve_bytes(memory.limit) : 0;
          if (memory.total() > memory.limit - reserve) return;
        }
      plan.routes[0].batch = batch;
      const ServeCost cost = price_serve(plan, {});
      rate_[used] = std::max(rate_[used], cost.requests_per_s);
      if (batch == 1) least_latency_s_ = std::min(least_latency_s_, cost.latency_s);
    }
  }

  const ServeOptions& options_;
  ServePlan plan_;
  std::vector<double> rate_;
  double least_latency_s_ = std::numeric_limits<double>::infinity();
};

TEST(Offloading, NoPlacementOrLayoutIsBetter) {
  const Model model = llama_of(1024, few_layers, 8, 8, 2816, 4000);
  int mixed = 0, streaming = 0;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    TierDice dice(seed);
    const Cluster cluster = machines_with_tiers(dice, 2);
    const Workload workload = workload_of(dice.between(20, 200), dice.between(4, 60));
    ServeOptions options{.objective = Objective::throughput,
                         .step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16},
                         .max_batch = 4,
                         .roles = StageRoles::both};
    const EveryPlacement all(cluster, model, workload, options);
    const double most = all.most_requests_per_s((1u << cluster.devices.size()) - 1);
    const auto plan = plan_serve(cluster, model, workload, options).plan;
    ASSERT_EQ(plan.has_value(), most > 0) << seed;
    if (!plan) continue;
    EXPECT_NEAR(plan->predicted.requests_per_s, most, 1e-9 * most) << seed;
    EXPECT_EQ(plan->search.status, SearchStatus::optimal) << seed;
    const auto offloads = [](const Stage& stage) { return stage.offload.has_value(); };
    const auto count = std::ranges::count_if(plan->stages, offloads);
    streaming += count > 0 ? 1 : 0;
    mixed += count > 0 && count < std::ssize(plan->stages) ? 1 : 0;

    options.objective = Objective::latency;
    const auto quickest = plan_serve(cluster, model, workload, options).plan;
    ASSERT_TRUE(quickest) << seed;
    EXPECT_NEAR(quickest->predicted.latency_s, all.least_latency_s(), 1e-9 * all.least_latency_s()) << seed;

    options.offloading = Offloading::never;
    if (const auto resident = plan_serve(cluster, model, workload, options).plan) {
      EXPECT_TRUE(std::ranges::none_of(resident->stages, offloads)) << seed;
    }
  }
  EXPECT_GE(streaming, 4);
  EXPECT_GE(mixed, 1);
}

// More host memory or a faster disk never makes the plan worse.
TEST(Offloading, MoreOfATierNeverHurts) {
  const Model model = llama_of(1024, few_layers, 8, 8, 2816, 4000);
  int better = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    TierDice dice(seed);
    Cluster cluster = machines_with_tiers(dice, 3);
    const Workload workload = workload_of(100, 20);
    const ServeOptions options{.objective = Objective::throughput,
                               .step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16},
                               .max_batch = 8,
                               .roles = StageRoles::both};
    const auto rate = [&] {
      const auto plan = plan_serve(cluster, model, workload, options).plan;
      return plan ? plan->predicted.requests_per_s : 0;
    };
    const double before = rate();
    for (MachineDescription& machine : cluster.description.machines) {
      machine.host_memory_bytes *= 2;
      if (machine.disk) machine.disk->read_bytes_per_s *= 2;
    }
    const double after = rate();
    EXPECT_GE(after, before * (1 - 1e-9)) << seed;
    better += after > before * (1 + 1e-6) ? 1 : 0;
  }
  EXPECT_GE(better, 2);
}

// A card of 12 GiB in a machine of 62 GiB, and a model of 17 GiB.
TEST(Offloading, TakesOfTheHostWhatTheWorkloadNeeds) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "desk"
devices = ["card"]
host_memory = "62 GiB"
host = { bandwidth = "80 GB/s", upload = "24 GB/s" }
[[device_type]]
name = "card"
vendor = "nvidia"
memory = "12 GiB"
memory_bandwidth = "672 GB/s"
flops = { fp32 = "30.9 TFLOP/s", fp16 = "61.7 TFLOP/s", bf16 = "61.7 TFLOP/s" }
)");
  const Model model = llama_of(5120, 64, 64, 8, 28672, 60000);
  const std::int64_t host = std::int64_t{62} << 30;
  const auto planned = [&](Objective objective, const Workload& workload) {
    ServePlan plan =
        plan_serve(cluster, model, workload, {.objective = objective, .weight_type = DType::q4_k}).plan.value();
    EXPECT_TRUE(verify(plan).empty());
    EXPECT_TRUE(plan.stages.at(0).offload.has_value());
    EXPECT_LE(plan.predicted.memory_bytes.at("desk/0").host.total(), host - host / 10);
    return plan;
  };
  const ServePlan one = planned(Objective::latency, workload_of(64, 128));
  EXPECT_EQ(one.stages[0].offload->kv.host, 1);
  EXPECT_EQ(one.stages[0].kv_tokens, 192);
  Workload longer = workload_of(64, 128);
  longer.classes[0].output_tokens.p99 = 1000;
  EXPECT_EQ(planned(Objective::latency, longer).stages[0].kv_tokens, 1072) << "blocks of 16 tokens";
  const ServePlan assumed = planned(Objective::latency, default_workload());
  EXPECT_GE(assumed.stages[0].kv_tokens, model.arch.context) << "requests may be of any length";
  // Any number of requests: all but the reserve.
  const ServePlan many = planned(Objective::throughput, workload_of(64, 128));
  EXPECT_GT(many.stages[0].kv_tokens, 10 * one.stages[0].kv_tokens);
}

TEST(Offloading, SizesCoverTheLayers) {
  EXPECT_EQ(offload_sizes(3), (std::vector<std::int64_t>{1, 2, 3}));
  const auto sizes = offload_sizes(80);
  EXPECT_EQ(std::ssize(sizes), most_offload_sizes);
  EXPECT_EQ(sizes.back(), 80);
  EXPECT_EQ(std::set(sizes.begin(), sizes.end()).size(), sizes.size());
}

}  // namespace
}  // namespace motley
