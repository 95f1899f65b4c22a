#include "bench/training/published_runs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/cluster/interconnect.hpp"
#include "motley/cost/train/run_table.hpp"

namespace motley {
namespace {

constexpr std::int64_t node_devices = 8;
constexpr std::int64_t mpt_vocabulary = 50368;
constexpr double network_latency_s = 5e-6;  // not published; that of a switched network inside a site

struct MptSize {
  const char* name;
  std::int64_t hidden, layers, heads;
};
constexpr MptSize mpt_sizes[] = {{"125m", 768, 12, 12}, {"350m", 1024, 24, 16}, {"760m", 1536, 24, 12},
                                 {"1b", 2048, 24, 16},  {"3b", 2560, 32, 20},   {"7b", 4096, 32, 32},
                                 {"13b", 5120, 40, 40}, {"30b", 7168, 48, 56},  {"70b", 8192, 80, 64}};

// Devices of a node are joined by what the catalogue has for them, nodes by this many bytes per second each.
struct Nodes {
  const char* name;
  const char* device_type;
  double bytes_per_s;
};
constexpr Nodes nodes_of[] = {
    {"a100_40gb", "A100-40", 200e9}, {"a100_80gb", "A100-80", 200e9}, {"h100_80gb", "H100", 400e9}};

template <class List>
const auto& find_named(const List& list, const RunRow& row, const std::string& column) {
  const std::string& name = row.text(column);
  const auto found = std::find_if(std::begin(list), std::end(list), [&](const auto& one) { return one.name == name; });
  if (found == std::end(list))
    throw input_error(fmt::format("{}: {} = \"{}\" is unknown", row.place, column, name),
                      "use a name of the README of data/training");
  return *found;
}

// A decoder with learned positions and an FFN of four times the width, as MPT.
Model mpt_model(const MptSize& size, std::int64_t sequence_length) {
  Model model;
  model.name = fmt::format("mpt-{}", size.name);
  model.config =
      parse_json(fmt::format(R"({{"architectures": ["OPTForCausalLM"], "model_type": "opt",
      "hidden_size": {0}, "word_embed_proj_dim": {0}, "num_hidden_layers": {1}, "num_attention_heads": {2},
      "ffn_dim": {3}, "activation_function": "gelu", "vocab_size": {4}, "max_position_embeddings": {5},
      "do_layer_norm_before": true, "tie_word_embeddings": true}})",
                             size.hidden, size.layers, size.heads, 4 * size.hidden, mpt_vocabulary, sequence_length),
                 model.name);
  model.arch = read_architecture(model.config, model.name);
  return model;
}

Cluster nodes_cluster(const Nodes& nodes, std::int64_t devices, const RunRow& row) {
  ClusterDescription description;
  description.name = nodes.name;
  MachineDescription& machine = description.machines.emplace_back();
  machine.name = "node";
  machine.count = std::max<std::int64_t>(1, devices / node_devices);
  machine.devices = {fmt::format("{}*{}", nodes.device_type, std::min(devices, node_devices))};
  machine.link = machine_link(nodes.device_type);
  description.network.within_site =
      LinkSpeed{.latency_s = network_latency_s, .bandwidth_bytes_per_s = nodes.bytes_per_s};
  return resolve(std::move(description), row.place);
}

PublishedRun published_run(const RunRow& row) {
  const MptSize& size = find_named(mpt_sizes, row, "model");
  const Nodes& nodes = find_named(nodes_of, row, "gpu");
  const std::int64_t devices = row.count("gpus"), length = row.count("sequence");
  const std::string& sharding = row.text("sharding");
  if (sharding != "FULL_SHARD" && sharding != "SHARD_GRAD_OP")
    throw input_error(fmt::format("{}: sharding = \"{}\" is unknown", row.place, sharding),
                      "use FULL_SHARD or SHARD_GRAD_OP");
  if (devices > node_devices && devices % node_devices != 0)
    throw input_error(fmt::format("{}: {} devices are not whole nodes of {}", row.place, devices, node_devices),
                      "give a multiple of it");
  PublishedRun run{.name = fmt::format("{} {} x {} {}", size.name, length, devices, nodes.name),
                   .device_type = nodes.device_type,
                   .iteration_s = 0,
                   .plan = {}};
  TrainPlan& plan = run.plan;
  plan.model = mpt_model(size, length);
  plan.cluster = nodes_cluster(nodes, devices, row);
  Training training;
  training.sequence_length = length;
  training.global_batch = row.count("global_batch");
  training.micro_batch = row.count("micro_batch") * devices;
  training.executor = Executor::fsdp;
  plan.workload.training = training;
  run.iteration_s = static_cast<double>(training.global_batch * length) / row.number("tokens_per_s");
  TrainReplica& replica = plan.replicas.emplace_back();
  replica.micro_batches = row.count("accumulation");
  TrainStage& stage = replica.stages.emplace_back();
  stage.layers = {0, size.layers};
  for (const Device& device : plan.cluster.devices) stage.devices.push_back(device.name);
  stage.strategies = {{.layers = stage.layers,
                       .tp = 1,
                       .dp = devices,
                       .shard = sharding == "FULL_SHARD" ? Sharding::zero3 : Sharding::zero2,
                       .recompute = row.text("recompute") == "1"}};
  return run;
}

}  // namespace

std::vector<PublishedRun> read_published_runs(const std::filesystem::path& file) {
  std::vector<PublishedRun> runs;
  for (const RunRow& row : read_run_table(file)) runs.push_back(published_run(row));
  return runs;
}

}  // namespace motley
