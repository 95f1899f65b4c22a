// Acceptance check 8 of the published search: what holds for every plan, on random clusters.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/model/part_tensors.hpp"
#include "motley/model/unlike_layers_test.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/planner/serve/pipeline/search.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

Model small_llama() { return llama_of(1024, 6, 8, 4, 2816, 8000); }

Cluster random_cluster() {
  std::string text = "format = \"motley.cluster/1\"\n";
  const int machines = *rc::gen::inRange(1, 4);
  for (int i = 0; i < machines; ++i) {
    text += "[[machine]]\nname = \"m" + std::to_string(i) + "\"\ndevices = [";
    const int kinds = *rc::gen::inRange(1, 3);
    for (int k = 0; k < kinds; ++k)
      text += (k > 0 ? ", \"t" : "\"t") + std::to_string(*rc::gen::inRange(0, 3)) + "*" +
              std::to_string(*rc::gen::inRange(1, 3)) + "\"";
    text += "]\n";
    if (*rc::gen::arbitrary<bool>()) text += "site = \"s" + std::to_string(*rc::gen::inRange(0, 2)) + "\"\n";
  }
  for (int t = 0; t < 3; ++t)
    text += "[[device_type]]\nname = \"t" + std::to_string(t) + "\"\nvendor = \"nvidia\"\nmemory = \"" +
            std::to_string(*rc::gen::inRange(60, 600)) + " MiB\"\nmemory_bandwidth = \"" +
            std::to_string(*rc::gen::inRange(10, 900)) + " GB/s\"\nflops = { fp16 = \"" +
            std::to_string(*rc::gen::inRange(1, 200)) + " TFLOP/s\" }\nreserve = \"8 MiB\"\n";
  text += "[network]\nbetween_sites = { latency = \"" + std::to_string(*rc::gen::inRange(1, 50)) +
          " ms\", bandwidth = \"100 MB/s\" }\n";
  return cluster_of(text);
}

ServeOptions random_options() {
  ServeOptions options;
  options.objective = *rc::gen::element(Objective::slo, Objective::throughput, Objective::latency, Objective::flow);
  options.cost.form = *rc::gen::element(std::string("motley"), std::string("hexgen"));
  options.use_devices = *rc::gen::element(UseDevices::may_idle, UseDevices::all);
  options.tensor_parallel = *rc::gen::element(TensorParallel::within_machine, TensorParallel::across_machines);
  options.step = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
  options.max_batch = 64;
  options.seed = 7;
  options.deadline_s = 600;  // what a deadline cuts short is not the same twice
  return options;
}

std::string text_without_time(ServePlan plan) {
  plan.search.elapsed_s = 0;
  return to_json(write(plan), 1);
}

TEST(Invariants, PlansOfRandomClustersAreSoundAndTheSameWhateverTheThreads) {
  int planned = 0;
  EXPECT_TRUE(rc::check([&] {
    const Cluster cluster = random_cluster();
    ServeOptions options = random_options();
    const Model model = small_llama();
    const Workload workload = workload_of(*rc::gen::inRange(1, 400), *rc::gen::inRange(1, 200));
    const ServeOutcome outcome = plan_serve(cluster, model, workload, options);
    if (!outcome.plan) {
      RC_ASSERT(!outcome.reason.empty());
      return;
    }
    ++planned;
    const ServePlan& plan = *outcome.plan;
    RC_ASSERT(verify(plan).empty());
    std::map<std::string, int> uses;
    for (const auto& stage : plan.stages)
      for (const auto& device : stage.devices) ++uses[device];
    for (const auto& unused : plan.unused) ++uses[unused.device];
    for (const auto& device : cluster.devices)
      RC_ASSERT(uses[device.name] == 1);  // in one stage, or unused with a reason
    if (options.use_devices == UseDevices::all) RC_ASSERT(plan.unused.empty());
    for (const auto& route : plan.routes) {
      std::int64_t next = 0;
      const auto hand_over = hand_over_hop(plan, route);
      for (std::size_t i = 0; i < route.path.size(); ++i) {
        const Hop& hop = route.path[i];
        if (hand_over == i) {
          RC_ASSERT(next == model.arch.layers);
          next = 0;
        }
        RC_ASSERT(hop.layers.first == next && hop.layers == plan.stage(hop.stage).layers);
        next = hop.layers.end;
      }
      RC_ASSERT(next == model.arch.layers);
    }
    for (const auto& [device, memory] : plan.predicted.memory_bytes)
      RC_ASSERT(memory.device.total() <= memory.device.limit);

    const std::string text = text_without_time(plan);
    options.threads = 4;
    RC_ASSERT(text_without_time(*plan_serve(cluster, model, workload, options).plan) == text);
    RC_ASSERT(text_without_time(read_plan<ServePlan>(parse_json(to_json(write(plan)), "plan"), "plan")) == text);
  }));
  EXPECT_GT(planned, 20);
}

// A model of two or three kinds of layers; of_file: of a file whose tensors have unlike types.
Model random_unlike_model(bool of_file) {
  Model model = small_llama();
  std::vector<std::uint16_t> kinds;
  for (std::int64_t layer = 0; layer < model.arch.layers; ++layer)
    kinds.push_back(of_file ? *rc::gen::element<std::uint16_t>(0, 2) : *rc::gen::inRange<std::uint16_t>(0, 3));
  model.arch = with_unlike_layers(model.arch, kinds);
  if (!of_file) return model;
  for (const TensorSpec& tensor : part_tensors(model.arch, whole_model(model.arch)))
    if (tensor.may_be_quantised())
      model.tensor_types[tensor.name] = *rc::gen::element(DType::q4_k, DType::q4_k, DType::q6_k);
  set_tensor_types(model.arch, model.tensor_types);
  model.arch.checkpoint_type = DType::file;
  return model;
}

// Tensor by tensor, each rounded up to the allocator's units.
std::int64_t bytes_of_tensors(const Model& model, const Stage& stage, const Shard& shard) {
  std::int64_t bytes = 0;
  const ModelPart part{.layers = stage.layers, .embedding = stage.embedding, .head = stage.head};
  for (const TensorSpec& tensor : part_tensors(model.arch, part))
    bytes += (held_bytes(slice_of(model.arch, tensor, shard), held_type(model.arch, tensor, stage.weight_type)) + 63) /
             64 * 64;
  return bytes;
}

TEST(Invariants, PlansOfUnlikeLayersHoldTheBytesOfTheirTensors) {
  int planned = 0;
  EXPECT_TRUE(rc::check([&] {
    const Cluster cluster = random_cluster();
    ServeOptions options = random_options();
    options.cost.form = "motley";
    const bool of_file = *rc::gen::arbitrary<bool>();
    const Model model = random_unlike_model(of_file);
    const Workload workload = workload_of(*rc::gen::inRange(1, 400), *rc::gen::inRange(1, 200));
    const ServeOutcome outcome = plan_serve(cluster, model, workload, options);
    if (!outcome.plan) return;
    ++planned;
    const ServePlan& plan = *outcome.plan;
    RC_ASSERT(verify(plan).empty());
    for (const Stage& stage : plan.stages) {
      const std::vector<Shard> shards =
          make_shards(model.arch, static_cast<int>(stage.devices.size()), stage.shares, stage.weight_type);
      const std::vector<DeviceMemory> memory = stage_memory(plan, stage);
      for (std::size_t rank = 0; rank < shards.size(); ++rank)
        RC_ASSERT(memory[rank].device.weights == bytes_of_tensors(model, stage, shards[rank]));
    }
    const ServeCost cost = price_serve(plan, {});
    if (options.objective != Objective::flow)
      RC_ASSERT(std::abs(cost.tokens_per_s - plan.predicted.tokens_per_s) <= 1e-9 * cost.tokens_per_s);
  }));
  EXPECT_GT(planned, 20);
}

// What the search believes of its best pipeline is what the plan is priced at. Nothing is said where it is.
std::string unlike_its_price(const Cluster& cluster, const ServeOptions& options) {
  const Model model = small_llama();
  const Workload workload = workload_of(100, 50);
  std::vector<int> devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  const ServeProblem problem{cluster, model, workload, options, DType::fp16, DType::fp16, Instant::max()};
  const PartAnswer answer = search_part(problem, devices);
  if (!answer.exact) return "the search was cut short";
  if (plan_serve(cluster, model, workload, options).plan.has_value() != answer.best.has_value())
    return "a plan without a pipeline, or the other way round";
  if (!answer.best) return "";
  // Not plan_serve()'s own: of pipelines that are as good as equal it may take another one.
  const Pipeline pipeline{devices, std::make_shared<GroupAnswer>(GroupAnswer{devices, answer})};
  const ServeCost cost = price_serve(write_pipelines(problem, {pipeline}, options.step), options.cost);
  if (std::abs(cost.requests_per_s - answer.best->requests_per_s) > 1e-9 * cost.requests_per_s)
    return fmt::format("{} requests/s, priced at {}", answer.best->requests_per_s, cost.requests_per_s);
  if (std::abs(cost.latency_s - answer.best->latency_s) > 1e-9 * cost.latency_s)
    return fmt::format("{} s, priced at {}", answer.best->latency_s, cost.latency_s);
  return "";
}

TEST(Invariants, TheSearchSeesThePriceOnRandomClusters) {
  EXPECT_TRUE(rc::check([] {
    const Cluster cluster = random_cluster();
    ServeOptions options = random_options();
    options.replication = Replication::one_pipeline;
    options.front = Front::skip;
    RC_ASSERT(unlike_its_price(cluster, options) == "");
  }));
}

// Classes made by type alone know nothing of links; here they took a device across the sea for its twin next door.
TEST(Invariants, TheSearchSeesTheReturnBetweenAlikeDevices) {
  const Cluster cluster = cluster_of(R"(
    format = "motley.cluster/1"
    [[machine]]
    name = "here"
    site = "here"
    devices = ["t"]
    [[machine]]
    name = "there"
    devices = ["t"]
    [[device_type]]
    name = "t"
    vendor = "nvidia"
    memory = "107 MiB"
    memory_bandwidth = "183 GB/s"
    flops = { fp16 = "2 TFLOP/s" }
    reserve = "8 MiB"
    [network]
    between_sites = { latency = "2 ms", bandwidth = "100 MB/s" })");
  ServeOptions options;
  options.objective = Objective::throughput;
  options.replication = Replication::one_pipeline;
  options.front = Front::skip;
  options.step = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
  options.max_batch = 64;
  options.deadline_s = 600;
  EXPECT_EQ(unlike_its_price(cluster, options), "");
}

TEST(Invariants, CoarseClassesArePricedAtTheirRealLinks) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
machine = [{ name = "m0", site = "s0", devices = ["t0", "t1*3"] },
           { name = "m1", site = "s0", devices = ["t2", "t0*2"] },
           { name = "m2", site = "s1", devices = ["t0*3", "t1"] }]
network.between_sites = { latency = "5 ms", bandwidth = "0.1 GB/s" }
[[device_type]]
name = "t0"
vendor = "nvidia"
memory = "60 MiB"
memory_bandwidth = "10 GB/s"
flops = { fp16 = "1 TFLOP/s" }
reserve = "8 MiB"
[[device_type]]
name = "t1"
vendor = "nvidia"
memory = "60 MiB"
memory_bandwidth = "94 GB/s"
flops = { fp16 = "4 TFLOP/s" }
reserve = "8 MiB"
[[device_type]]
name = "t2"
vendor = "nvidia"
memory = "60 MiB"
memory_bandwidth = "40 GB/s"
flops = { fp16 = "1 TFLOP/s" }
reserve = "8 MiB"
)");
  ServeOptions options;
  options.replication = Replication::one_pipeline;
  options.step = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
  options.max_batch = 64;
  options.objective = Objective::throughput;
  EXPECT_EQ(unlike_its_price(cluster, options), "");
}

TEST(Invariants, MoreDevicesNeverWorsenTheBestPipeline) {
  EXPECT_TRUE(rc::check([] {
    const Model model = small_llama();
    const Workload workload = workload_of(100, 50);
    ServeOptions options;
    options.objective = *rc::gen::element(Objective::throughput, Objective::latency);
    options.replication = Replication::one_pipeline;
    options.step = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
    options.max_batch = 16;
    const auto cluster = [](int big, int small) {
      return cluster_of("format = \"motley.cluster/1\"\n[[machine]]\nname = \"a\"\ndevices = [\"big*" +
                        std::to_string(big) + "\"]\n[[machine]]\nname = \"b\"\ndevices = [\"small*" +
                        std::to_string(small) + "\"]\n" + R"(
[[device_type]]
name = "big"
vendor = "nvidia"
memory = "400 MiB"
memory_bandwidth = "700 GB/s"
flops = { fp16 = "100 TFLOP/s" }
reserve = "8 MiB"
[[device_type]]
name = "small"
vendor = "nvidia"
memory = "150 MiB"
memory_bandwidth = "300 GB/s"
flops = { fp16 = "40 TFLOP/s" }
reserve = "8 MiB"
)");
    };
    const int big = *rc::gen::inRange(1, 3), small = *rc::gen::inRange(1, 4);
    options.stage_types = StageTypes::alike;
    const auto before = plan_serve(cluster(big, small), model, workload, options).plan;
    const auto after = plan_serve(cluster(big, small + 1), model, workload, options).plan;
    if (!before) return;
    RC_ASSERT(after.has_value());
    if (options.objective == Objective::latency)
      RC_ASSERT(after->predicted.latency_s <= before->predicted.latency_s * (1 + 1e-9));
    else
      RC_ASSERT(after->predicted.tokens_per_s >= before->predicted.tokens_per_s * (1 - 1e-9));
  }));
}

}  // namespace
}  // namespace motley
