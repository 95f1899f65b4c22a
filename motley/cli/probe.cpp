#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/probe_members.hpp"
#include "motley/cli/worker_program.hpp"
#include "motley/cluster/write.hpp"
#include "motley/cost/form/term.hpp"
#include "motley/plan/served.hpp"
#include "motley/probe/probe_schedule.hpp"
#include "motley/report/table.hpp"
#include "motley/server/probe.hpp"

namespace motley::cli {
namespace {

constexpr const char* default_shape = "llama-3-8b";

struct ProbeCommand {
  std::string cluster, model, weight_type;
  std::string transport = "shm";
  int worker_threads = 0;    // 0: one; all cores where this machine is described as one device
  MemberProbeCommand group;  // with --members
  Output output;
};

// Between machines what is said of both belongs to both; the rest to one of them.
int probe_group(const ProbeCommand& options) {
  if (!options.model.empty() || !options.weight_type.empty() || options.worker_threads > 0)
    throw input_error(
        "--members cannot be combined with --model, --weight-type or --worker-threads: it measures links, they measure "
        "workers",
        "probe one after the other, and give the second the file of the first with --cluster");
  MemberProbeCommand command = options.group;
  command.cluster = options.cluster;
  command.member.transport = options.transport;
  command.output = options.output;
  return run_member_probe(command);
}

Value path_json(const PathSpeed& path) {
  return Value::object({{"latency_s", path.latency_s}, {"bandwidth_bytes_per_s", path.bandwidth_bytes_per_s}});
}

Value steps_json(const std::vector<ProbedStep>& steps) {
  Value list = Value::array();
  for (const ProbedStep& step : steps)
    list.push_back(Value::object({{"ffn", step.ffn},
                                  {"layers", step.layers},
                                  {"sequences", step.sequences},
                                  {"tokens", step.tokens},
                                  {"position", step.position},
                                  {"measured_s", step.measured_s},
                                  {"predicted_s", step.predicted_s}}));
  return list;
}

Value measured_json(const Cluster& cluster, const ProbeResult& result) {
  Value types = Value::object();
  for (const auto& [type, probed] : result.types)
    types.set(
        name_of(type),
        Value::object({{"bandwidth_bytes_per_s", probed.rates.bandwidth_bytes_per_s},
                       {"product_flop_per_s", probed.rates.product_flop_per_s},
                       {"attention_bandwidth_bytes_per_s", probed.rates.attention_bandwidth_bytes_per_s},
                       {"attention_flop_per_s", probed.rates.attention_flop_per_s},
                       {"layer_overhead_s", probed.rates.overhead.layer_s},
                       {"step_overhead_s", probed.rates.overhead.step_s},
                       {"fit_error", Value::object({{"median", probed.error.median}, {"worst", probed.error.worst}})},
                       {"steps", steps_json(probed.steps)}}));
  Value channels = Value::object(), machines = Value::object();
  for (const auto& [transport, path] : result.channels) channels.set(transport, path_json(path));
  for (std::size_t m = 0; m < result.inside.size(); ++m)
    if (result.inside[m]) machines.set(cluster.machines[m].name, path_json(*result.inside[m]));
  return Value::object({{"types", types},
                        {"channels", channels},
                        {"machines", machines},
                        {"driver_step_s", result.driver.step_s},
                        {"driver_request_s", result.driver.request_s},
                        {"cores", result.cores},
                        {"elapsed_s", result.elapsed_s}});
}

std::string report(const Cluster& cluster, const ProbeResult& result) {
  Table rates({{"weights"},
               {"one row", Align::right},
               {"many rows", Align::right},
               {"attention, one", Align::right},
               {"many", Align::right},
               {"per layer", Align::right},
               {"per step", Align::right},
               {"fit error"}});
  for (const auto& [type, probed] : result.types)
    rates.add({std::string(name_of(type)), human_rate(probed.rates.bandwidth_bytes_per_s),
               human_flop(probed.rates.product_flop_per_s) + "/s",
               human_rate(probed.rates.attention_bandwidth_bytes_per_s),
               human_flop(probed.rates.attention_flop_per_s) + "/s", human_seconds(probed.rates.overhead.layer_s),
               human_seconds(probed.rates.overhead.step_s),
               fmt::format("{:.0f} % (worst {:.0f} %)", 100 * probed.error.median, 100 * probed.error.worst)});
  Table links({{"link"}, {"latency", Align::right}, {"bandwidth", Align::right}});
  const auto add = [&](const std::string& name, const PathSpeed& path) {
    links.add({name, human_seconds(path.latency_s), human_rate(path.bandwidth_bytes_per_s)});
  };
  for (const auto& [transport, path] : result.channels) add("between two workers, " + transport, path);
  for (std::size_t m = 0; m < result.inside.size(); ++m)
    if (result.inside[m])
      add(fmt::format("in {}, {} workers at once", cluster.machines[m].name, cluster.machines[m].devices.size()),
          *result.inside[m]);
  return fmt::format("{}\n{}\ndriver: {} per step, {} per request; {} cores; measured in {}\n", rates.render(),
                     links.render(), human_seconds(result.driver.step_s), human_seconds(result.driver.request_s),
                     result.cores, human_seconds(result.elapsed_s));
}

std::string heading(const ProbeCommand& options, const ProbeResult& result, DType type, int threads) {
  const FitError& error = result.types.at(type).error;
  return fmt::format(
      "Measured by `motley cluster probe` at {:%Y-%m-%d %H:%M} UTC, on {} cores, with {} weights of the shape of {}, "
      "over {}, {} threads per worker.\n"
      "Rates are reached rates, not peaks. They explain the measured steps to within {:.0f} % (median; worst {:.0f} "
      "%).",
      fmt::gmtime(std::time(nullptr)), result.cores, name_of(type),
      options.model.empty() ? default_shape : options.model, options.transport, threads, 100 * error.median,
      100 * error.worst);
}

int probe_and_write(const ProbeCommand& options) {
  if (!options.group.member.members.empty()) return probe_group(options);
  if (options.group.member.rank >= 0)
    throw input_error("--rank needs --members",
                      "list all members in order, as in --members 10.0.0.1:4711,10.0.0.2:4711");
  check_output_folder(options.output);
  const bool described = !options.cluster.empty();
  const Cluster cluster = described ? read_cluster(options.cluster) : resolve(this_machine(), "this machine");
  const Architecture shape = read_model(options.model.empty() ? default_shape : options.model).arch;
  const DType type =
      options.weight_type.empty() ? shape.checkpoint_type : parse_dtype_option(options.weight_type, "--weight-type");
  if (!is_served(type))
    throw input_error(fmt::format("CPU workers need fp32 or bf16 weights, found {}", name_of(type)),
                      "give --weight-type fp32 or --weight-type bf16");
  const int all_cores = described ? 1 : static_cast<int>(std::thread::hardware_concurrency());
  const bool has_tokenizer = std::filesystem::exists(std::filesystem::path(options.model) / "tokenizer.json");
  ProbeOptions asked{.cluster = cluster,
                     .shape = shape,
                     .text_folder = has_tokenizer ? options.model : "",
                     .worker_program = prepare_worker_program(),
                     .transport = options.transport,
                     .threads = options.worker_threads > 0 ? options.worker_threads : std::max(1, all_cores),
                     .seconds = options.group.seconds > 0 ? options.group.seconds : default_probe_seconds,
                     .report = {}};
  if (!options.output.quiet)
    asked.report = [](const std::string& what, double elapsed_s) {
      fmt::print(stderr, "[{:7.2f}s] {}\n", elapsed_s, what);
    };
  const ProbeResult result = probe(asked);
  const ClusterDescription description = calibrated(cluster, result, options.transport, type);
  if (!options.output.file.empty()) {
    const bool json = options.output.file.ends_with(".json");
    write_file(options.output.file, json ? to_json(write(description), 2) + "\n"
                                         : cluster_toml(description, heading(options, result, type, asked.threads)));
    if (!options.output.quiet) fmt::print(stderr, "wrote {}\n", options.output.file);
  }
  if (options.output.json)
    fmt::print(
        "{}\n",
        to_json(Value::object({{"cluster", write(description)}, {"measured", measured_json(cluster, result)}}), 2));
  else
    fmt::print("{}", report(cluster, result));
  return 0;
}

}  // namespace

void add_probe(CLI::App& cluster_verbs, Action& action) {
  auto options = std::make_shared<ProbeCommand>();
  auto* verb =
      cluster_verbs.add_subcommand("probe", "Measure CPU workers, or links between machines, and write a cluster file");
  verb->footer(
      "examples:\n"
      "  motley cluster probe -o here.toml                                          measure this machine as one "
      "device\n"
      "  motley cluster probe --cluster examples/garage/cluster.toml --model data/models/tales -o garage.toml\n"
      "  motley cluster probe --members 10.0.0.1:4711,10.0.0.2:4711 --rank 0 --key secret -o net.toml\n"
      "  motley plan allreduce --cluster net.toml --bytes \"400 MB\"                  plan with the measured links\n"
      "\n"
      "With --members, start the command on each machine with its own --rank; rank 0 writes the file.");
  verb->add_option("--cluster", options->cluster, "Cluster file whose CPU device types or links are measured")
      ->type_name("FILE");
  verb->add_option("--model", options->model,
                   fmt::format("Model whose blocks are run: folder, config.json or name (default {})", default_shape));
  verb->add_option("--weight-type", options->weight_type,
                   "Weight type to measure: fp32 or bf16 (default: the model's)");
  verb->add_option("--transport", options->transport, "Transport between workers, or members of one host (default shm)")
      ->check(CLI::IsMember({"shm", "tcp"}));
  verb->add_option("--worker-threads", options->worker_threads,
                   "Threads per worker (default 1; without --cluster, all cores)")
      ->check(CLI::Range(0, 1024));
  auto& group = options->group;
  add_member_options(*verb, group.member, most_probe_members);
  verb->add_option("--names", group.names, "Names of the members' machines, comma-separated (default member-0, ...)")
      ->needs("--members");
  verb->add_option(
          "--seconds", group.seconds,
          fmt::format("Measuring time in seconds (default {:.0f}; with --members, 10 or more)", default_probe_seconds))
      ->check(CLI::Range(0.1, 3600.0));
  verb->add_option("--wait", group.wait_s, "Seconds to wait for all members")
      ->needs("--members")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  add_output_options(*verb, options->output);
  verb->callback([options, &action] { action = [options] { return probe_and_write(*options); }; });
}

}  // namespace motley::cli
