#include "bench/training/measured_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "motley/base/error.hpp"
#include "motley/cost/train/run_table.hpp"
#include "motley/cost/train/train_cost.hpp"

namespace motley {
namespace {

constexpr std::int64_t measured_sequence_length = 2048;
constexpr double fit_unit_bytes = 1e6, giga = 1e9;
constexpr const char* zone = "us-central1-a";  // under which both clusters stand
constexpr int fit_doublings = 8;               // the fits are sampled from 1 MB to 256 MB

struct Tables {
  std::vector<RunRow> layers, links;  // links: those between the clusters' nodes
};

// fp32 outside tensor cores.
DeviceType device_type(const std::string& name, const RunRow& place) {
  const struct {
    const char* name;
    double memory_gib, bandwidth_bytes_per_s, flop_per_s;
  } known[] = {{"GH-96", 96, 4000e9, 67e12},
               {"RTX-3090", 24, 936e9, 35.6e12},
               {"RTX-2080", 11, 616e9, 13.4e12},
               {"Titan-RTX", 24, 672e9, 16.3e12}};
  for (const auto& type : known)
    if (name == type.name)
      return {.name = name,
              .vendor = "nvidia",
              .memory_bytes = static_cast<std::int64_t>(type.memory_gib * 1073741824.0),
              .memory_bandwidth_bytes_per_s = type.bandwidth_bytes_per_s,
              .flop_per_s = {{"fp32", type.flop_per_s}, {"fp16", type.flop_per_s}, {"bf16", type.flop_per_s}},
              .efficiency = {},
              .overhead = {},
              .reserve_bytes = {}};
  std::vector<std::string> names;
  for (const auto& type : known) names.emplace_back(type.name);
  throw input_error(fmt::format("{}: \"{}\" is an unknown device", place.place, name),
                    did_you_mean(name, names, fmt::format("choose one of {}", fmt::join(names, ", "))));
}

// Both are decoders with learned positions and an FFN of four times the width; GPT-Neo differs from OPT in its
// activation and in windows on every other layer, which measured times contain.
Model model_of(const std::string& name, const RunRow& place) {
  const bool small = name == "OPT-350";
  if (!small && name != "GPT-Neo-2.7")
    throw input_error(fmt::format("{}: \"{}\" is an unknown model", place.place, name), "use OPT-350 or GPT-Neo-2.7");
  Model model;
  model.name = name;
  const std::int64_t hidden = small ? 1024 : 2560;
  model.config = parse_json(fmt::format(R"({{"architectures": ["OPTForCausalLM"], "model_type": "opt",
      "hidden_size": {}, "word_embed_proj_dim": {}, "num_hidden_layers": {}, "num_attention_heads": {},
      "ffn_dim": {}, "activation_function": "relu", "vocab_size": {}, "max_position_embeddings": 2048,
      "do_layer_norm_before": true, "tie_word_embeddings": {}}})",
                                        hidden, hidden, small ? 24 : 32, small ? 16 : 20, 4 * hidden,
                                        small ? 50272 : 50257, small ? "false" : "true"),
                            name);
  model.arch = read_architecture(model.config, name);
  return model;
}

struct StageGroup {
  std::string type;
  std::int64_t devices = 1;
};

// "2x(GH-96:4>GH-96:4)", without the count, which the column dp repeats.
std::vector<StageGroup> groups_of(const RunRow& row) {
  const std::string& text = row.text("replicas");
  const auto open = text.find('('), close = text.find(')');
  if (open == std::string::npos || close == std::string::npos || close < open)
    throw input_error(fmt::format("{}: replicas = \"{}\" is not N x (TYPE:GPUs>...)", row.place, text),
                      "write it as in 2x(GH-96:4>GH-96:4)");
  std::vector<StageGroup> groups;
  for (const auto& part : split(text.substr(open + 1, close - open - 1), '>')) {
    const auto pieces = split(part, ':');
    const bool sound =
        pieces.size() == 2 && pieces[1].size() == 1 && std::isdigit(static_cast<unsigned char>(pieces[1][0])) != 0;
    if (!sound)
      throw input_error(fmt::format("{}: \"{}\" is not TYPE:GPUs", row.place, part), "write it as in GH-96:4");
    groups.push_back({pieces[0], pieces[1][0] - '0'});
  }
  return groups;
}

std::string machine_name(std::int64_t replica, std::size_t stage) { return fmt::format("r{}s{}", replica, stage); }

bool joins(const RunRow& row, const std::string& a, const std::string& b) {
  const std::string &from = row.text("src_gpu"), &to = row.text("dst_gpu");
  return (from == a && to == b) || (from == b && to == a);
}

// Some rows repeat those of another pair of types to the last digit: they were filled in, not measured.
bool filled_in(const std::vector<RunRow>& links, const RunRow& row) {
  return std::any_of(links.begin(), links.end(), [&](const RunRow& other) {
    return other.text("c2") == row.text("c2") && other.text("c1") == row.text("c1") &&
           other.text("c0") == row.text("c0") && !joins(other, row.text("src_gpu"), row.text("dst_gpu"));
  });
}

// The row of these numbers of devices; if that was filled in, the nearest row of the same types that was not.
const RunRow& link_row(const Tables& tables, const RunRow& run, const StageGroup& from, const StageGroup& to) {
  const RunRow* best = nullptr;
  std::pair<bool, std::int64_t> best_rank;
  for (const RunRow& row : tables.links) {
    if (row.text("src_gpu") != from.type || row.text("dst_gpu") != to.type) continue;
    const std::int64_t distance =
        std::abs(row.count("src_gpus_per_node") - from.devices) + std::abs(row.count("dst_gpus_per_node") - to.devices);
    const bool copied = filled_in(tables.links, row);
    if (copied && distance > 0) continue;
    if (const std::pair rank{copied, distance}; !best || rank < best_rank) {
      best = &row;
      best_rank = rank;
    }
  }
  if (!best)
    throw input_error(fmt::format("{}: no link from {} to {} was measured", run.place, from.type, to.type),
                      "network_fits.csv needs a row with this src_gpu and dst_gpu");
  return *best;
}

LinkRate link_rate(const Tables& tables, const RunRow& run, const StageGroup& from, const StageGroup& to) {
  const RunRow& row = link_row(tables, run, from, to);
  LinkRate rate;
  for (int x = 0; x <= fit_doublings; ++x) {
    rate.bytes.push_back(std::ldexp(fit_unit_bytes, x));
    const double fitted = row.number("c2") * x * x + row.number("c1") * x + row.number("c0");
    rate.bytes_per_s.push_back(std::min(fitted * giga, row.number("peak_bytes_per_s")));
  }
  return rate;
}

Cluster cluster_of(const RunRow& run, const std::vector<StageGroup>& groups, const Profile& profile) {
  ClusterDescription description;
  description.name = run.text("site");
  double slowest_bytes_per_s = giga;  // where all is one machine
  for (const auto& rate : profile.link_rate)
    slowest_bytes_per_s = std::min(slowest_bytes_per_s, rate.bytes_per_s.back());
  description.network.within_site = LinkSpeed{.bandwidth_bytes_per_s = slowest_bytes_per_s};
  description.network.within_machine = LinkSpeed{.bandwidth_bytes_per_s = slowest_bytes_per_s};
  for (std::int64_t r = 0; r < run.count("dp"); ++r)
    for (std::size_t s = 0; s < groups.size(); ++s) {
      MachineDescription& machine = description.machines.emplace_back();
      machine.name = machine_name(r, s);
      machine.devices = {fmt::format("{}*{}", groups[s].type, groups[s].devices)};
      const auto same = [&](const DeviceType& type) { return type.name == groups[s].type; };
      if (std::none_of(description.device_types.begin(), description.device_types.end(), same))
        description.device_types.push_back(device_type(groups[s].type, run));
    }
  return resolve(std::move(description), run.place);
}

Profile profile_of(const RunRow& run, const std::vector<StageGroup>& groups, const Tables& tables) {
  Profile profile;
  for (const RunRow& row : tables.layers) {
    const bool used = std::any_of(groups.begin(), groups.end(),
                                  [&](const StageGroup& group) { return group.type == row.text("gpu"); });
    if (!used || row.text("model") != run.text("model")) continue;
    const std::pair<LayerPart, std::string> parts[] = {
        {LayerPart::embedding, "embed"}, {LayerPart::block, "block"}, {LayerPart::head, "head"}};
    for (const auto& [part, column] : parts)
      profile.layer_time.push_back({.device_type = row.text("gpu"),
                                    .tp = row.count("tp"),
                                    .micro_batch = row.count("micro_batch"),
                                    .sequence_length = measured_sequence_length,
                                    .part = part,
                                    .forward_s = row.number(column + "_fwd"),
                                    .backward_s = row.number(column + "_bwd")});
  }
  const auto add = [&](std::int64_t r, std::size_t s, std::int64_t other, std::size_t next) {
    LinkRate rate = link_rate(tables, run, groups[s], groups[next]);
    rate.from = machine_name(r, s);
    rate.to = machine_name(other, next);
    profile.link_rate.push_back(std::move(rate));
  };
  // Neighbours in a pipeline, and those who hold the same layers.
  for (std::int64_t r = 0; r < run.count("dp"); ++r)
    for (std::size_t s = 0; s < groups.size(); ++s) {
      if (s > 0) add(r, s, r, s - 1);
      if (s + 1 < groups.size()) add(r, s, r, s + 1);
      for (std::int64_t other = 0; other < run.count("dp"); ++other)
        if (other != r) add(r, s, other, s);
    }
  return profile;
}

// The file counts embedding and head as a layer each.
std::vector<LayerRange> ranges_of(const RunRow& run, std::size_t stages, std::int64_t blocks) {
  const auto counts = split(run.text("layers"), '/');
  std::vector<LayerRange> ranges;
  std::int64_t first = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    const RunRow cell{run.place, {{"layers", counts[s]}}};
    const std::int64_t last = first + cell.count("layers") - (s == 0 ? 1 : 0) - (s + 1 == counts.size() ? 1 : 0);
    ranges.push_back({first, last});
    first = last;
  }
  if (counts.size() != stages || first != blocks)
    throw input_error(fmt::format("{}: layers = {} are not {} stages of {} blocks, embedding and head", run.place,
                                  run.text("layers"), stages, blocks),
                      fmt::format("a number per stage, slash between, that sum to {}", blocks + 2));
  return ranges;
}

MeasuredRun run_of(const RunRow& row, const Tables& tables) {
  MeasuredRun run{.name = row.text("case"), .site = row.text("site"), .iteration_s = row.number("iter_s"), .plan = {}};
  TrainPlan& plan = run.plan;
  const auto groups = groups_of(row);
  plan.model = model_of(row.text("model"), row);
  plan.profile = profile_of(row, groups, tables);
  plan.cluster = cluster_of(row, groups, plan.profile);
  Training training;
  training.sequence_length = measured_sequence_length;
  training.global_batch = row.count("global_batch");
  training.micro_batch = row.count("micro_batch");
  training.precision = DType::fp32;
  plan.workload.training = training;

  const std::int64_t replicas = row.count("dp");
  const auto ranges = ranges_of(row, groups.size(), plan.model.arch.layers);
  for (std::int64_t r = 0; r < replicas; ++r) {
    TrainReplica& replica = plan.replicas.emplace_back();
    replica.share = 1 / static_cast<double>(replicas);
    replica.micro_batches = training.global_batch / (replicas * training.micro_batch);
    for (std::size_t s = 0; s < groups.size(); ++s) {
      TrainStage stage{
          .layers = ranges[s], .devices = {}, .strategies = {{.layers = ranges[s], .tp = groups[s].devices}}};
      for (std::int64_t d = 0; d < groups[s].devices; ++d)
        stage.devices.push_back(fmt::format("{}/{}", machine_name(r, s), d));
      replica.stages.push_back(std::move(stage));
    }
  }
  return run;
}

}  // namespace

std::vector<MeasuredRun> read_measured_runs(const std::filesystem::path& folder) {
  Tables tables{read_run_table(folder / "layer_profiles.csv"), read_run_table(folder / "network_fits.csv")};
  std::erase_if(tables.links,
                [](const RunRow& row) { return row.text("src_zone") != zone || row.text("dst_zone") != zone; });
  std::vector<MeasuredRun> runs;
  for (const RunRow& row : read_run_table(folder / "measured_iterations.csv")) runs.push_back(run_of(row, tables));
  return runs;
}

bool same_job(const MeasuredRun& a, const MeasuredRun& b) {
  return a.plan.model.name == b.plan.model.name &&
         training_of(a.plan.workload).global_batch == training_of(b.plan.workload).global_batch;
}

CostOptions measured_runs_options(double boundary_overhead_s) {
  return {.form = "motley",
          .settings = {{"motley.blocking_hops", 1}, {"motley.boundary_overhead_s", boundary_overhead_s}}};
}

double fit_boundary_overhead_s(const std::vector<const MeasuredRun*>& runs) {
  double product = 0, square = 0;
  for (const MeasuredRun* run : runs) {
    const double boundaries = static_cast<double>(run->plan.replicas.front().stages.size() - 1) / run->iteration_s;
    product += boundaries * (1 - price_train(run->plan, measured_runs_options(0)).iteration_s / run->iteration_s);
    square += boundaries * boundaries;
  }
  return square > 0 ? std::max(0.0, product / square) : 0;
}

}  // namespace motley
