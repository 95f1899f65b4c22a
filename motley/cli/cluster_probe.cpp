#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "motley/base/printable.hpp"
#include "motley/base/worker_program.hpp"
#include "motley/cli/cluster_probe_members.hpp"
#include "motley/cli/command.hpp"
#include "motley/cluster/write_cluster.hpp"
#include "motley/cost/form/term.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/plan/train_plan.hpp"
#include "motley/probe/fit/probe_schedule.hpp"
#include "motley/probe/probe.hpp"
#include "motley/probe/probe_report.hpp"
#include "motley/probe/routing_probe.hpp"
#include "motley/probe/train_probe.hpp"
#include "motley/server/answer_times.hpp"
#include "motley/text/text_codec.hpp"
#include "motley/workers/copy_list.hpp"
#include "motley/workers/local_fleet.hpp"

namespace motley::cli {
namespace {

constexpr const char* default_shape = "llama-3-8b";
constexpr double default_rates_seconds = 6;

struct ProbeCommand {
  std::string cluster, model, weight_type, workload, text;
  bool routing = false, rates = false;
  std::string backend = "cpu";
  std::string transport = "shm";
  std::string disk, disk_bytes;
  int worker_threads = 0;    // 0: one; all cores where this machine is described as one device
  MemberProbeCommand group;  // with --members
  Output output;
};

// Between machines what is said of both belongs to both; the rest to one of them.
int probe_group(const ProbeCommand& options) {
  if (!options.model.empty() || !options.weight_type.empty() || !options.workload.empty() || !options.disk.empty() ||
      options.routing || options.worker_threads > 0 || options.backend != "cpu")
    throw input_error(
        "--members cannot be combined with --model, --weight-type, --workload, --routing, --disk, --backend or "
        "--worker-threads: it measures links, they measure workers",
        "probe one after the other, and give the second the file of the first with --cluster");
  MemberProbeCommand command = options.group;
  command.cluster = options.cluster;
  command.member.transport = options.transport;
  command.output = options.output;
  return run_member_probe(command);
}

// What was measured: "4 cores", or the GPU that stands for all.
std::string measured_on(const Cluster& cluster, const ProbeResult& result) {
  if (result.vendor == "cpu") return fmt::format("{} cores", result.cores);
  return std::ranges::find(cluster.types, result.vendor, &DeviceType::vendor)->name;
}

std::string heading(const ProbeCommand& options, const Cluster& cluster, const ProbeResult& result, DType type,
                    int threads) {
  const FitError& error = result.types.at(type).error;
  return fmt::format(
      "Measured by `motley cluster probe` at {:%Y-%m-%d %H:%M} UTC, on {}, with {} weights of the shape of {}, "
      "over {}, {} threads per worker.\n"
      "Rates are reached rates, not peaks. They explain the measured steps to within {:.0f} % (median; worst {:.0f} "
      "%).{}",
      fmt::gmtime(std::time(nullptr)), measured_on(cluster, result), name_of(type),
      options.model.empty() ? default_shape : options.model, options.transport, threads, 100 * error.median,
      100 * error.worst, options.disk.empty() ? "" : fmt::format("\nThe disk is that of {}.", options.disk));
}

std::function<void(const std::string&, double)> reporter(const Output& output) {
  if (output.quiet) return {};
  return [](const std::string& what, double elapsed_s) {
    fmt::print(stderr, "[{:7.2f}s] {}\n", elapsed_s, printable(what));
  };
}

// How workers train the model: a profile.
int probe_steps_and_write(const ProbeCommand& options) {
  if (options.backend != "cpu")
    throw input_error("--workload cannot be combined with --backend cuda: workers train on processors",
                      "leave --backend out");
  if (!options.disk.empty())
    throw input_error("--disk cannot be combined with --workload: a profile holds no disk",
                      "probe one after the other");
  if (options.model.empty() || !options.weight_type.empty())
    throw input_error(options.model.empty() ? "--workload needs --model: its parts are what is timed"
                                            : "--weight-type cannot be combined with --workload, which has a precision",
                      "give --cluster FILE --model MODEL --workload FILE");
  const Workload workload = read_workload(options.workload);
  const bool described = !options.cluster.empty();
  TrainProbeOptions asked{
      .cluster = described ? read_cluster(options.cluster) : resolve(this_machine(), "this machine"),
      .model = read_named_model(options.model),
      .training = training_of(workload),
      .worker_program = prepare_worker_program(),
      .threads = std::max(1, options.worker_threads),
      .report = reporter(options.output)};
  if (options.group.seconds > 0) asked.seconds = options.group.seconds;
  const Profile profile = probe_training(asked);
  emit(options.output, write(profile), profile_text(profile));
  return 0;
}

// Which experts the tokens of a text take: a profile.
int count_routing_and_write(const ProbeCommand& options) {
  if (!options.cluster.empty() || !options.workload.empty() || !options.disk.empty() || options.backend != "cpu")
    throw input_error(
        "--routing cannot be combined with --cluster, --workload, --disk or --backend cuda: one worker "
        "on this machine's processors runs the model",
        "give --routing --model MODEL --text FILE");
  if (options.model.empty() || options.text.empty())
    throw input_error(fmt::format("--routing needs {}", options.model.empty() ? "--model" : "--text"),
                      "give --routing --model MODEL --text FILE, with a text as users send them");
  const Model model = read_named_model(options.model);
  const std::string weights = locate_model(options.model, ModelFiles::all).path;
  const Profile profile = probe_routing(
      {.model = model,
       .weights = weights,
       .weight_type = options.weight_type.empty() ? model.arch.checkpoint_type
                                                  : parse_dtype_option(options.weight_type, "--weight-type"),
       .text = TextCodec::open(weights)->encode(read_file(options.text), false),
       .worker_program = prepare_worker_program(),
       .threads = options.worker_threads > 0 ? options.worker_threads
                                             : std::max(1, static_cast<int>(std::thread::hardware_concurrency())),
       .report = reporter(options.output)});
  emit(options.output, write(profile), routing_text(profile, model));
  return 0;
}

// One device, as the type of a cluster file: for the agent that offers it.
int measure_rates_and_write(const ProbeCommand& options) {
  if (!options.cluster.empty() || !options.workload.empty() || !options.disk.empty() || options.routing ||
      options.backend == "cpu" || options.backend == "cuda")
    throw input_error("--rates measures one device, by --backend cuda:N, and nothing else",
                      "give --rates --backend cuda:0");
  const std::filesystem::path program = prepare_worker_program();
  ProbeOptions asked;
  asked.shape = read_named_model(options.model.empty() ? default_shape : options.model).arch;
  asked.worker_program = program;
  asked.backend = options.backend;
  asked.seconds = options.group.seconds > 0 ? options.group.seconds : default_rates_seconds;
  asked.report = reporter(options.output);
  const DeviceCopies copies = list_copies(program, {options.backend}, {}).devices.front();
  asked.device_free_bytes = copies.free_bytes;
  DeviceType type = probe_device(std::move(asked));
  type.copies = copies.at_once;
  emit(options.output, write(type), to_json(write(type)) + "\n");
  return 0;
}

int probe_and_write(const ProbeCommand& options) {
  if (!options.group.member.members.empty()) return probe_group(options);
  if (options.group.member.rank >= 0)
    throw input_error("--rank needs --members",
                      "list all members in order, as in --members 10.0.0.1:4711,10.0.0.2:4711");
  check_output_folder(options.output);
  if (options.rates) return measure_rates_and_write(options);
  if (options.routing) return count_routing_and_write(options);
  if (!options.text.empty())
    throw input_error("--text needs --routing", "add --routing to count which experts its tokens take");
  if (!options.workload.empty()) return probe_steps_and_write(options);
  const bool described = !options.cluster.empty();
  const bool on_processors = options.backend == "cpu";
  if (!on_processors && !options.disk.empty())
    throw input_error("--disk cannot be combined with --backend cuda: copies to GPUs are not measured",
                      "probe the disk without --backend, and take `disk` and `host_memory` over into the file");
  const bool on_gpus = options.backend.starts_with("cuda");
  const Cluster cluster = described ? read_cluster(options.cluster)
                          : on_gpus ? resolve(machine_of(nvidia_gpus()), "this machine")
                                    : resolve(this_machine(), "this machine");
  const Architecture shape = read_named_model(options.model.empty() ? default_shape : options.model).arch;
  const DType type =
      options.weight_type.empty() ? shape.checkpoint_type : parse_dtype_option(options.weight_type, "--weight-type");
  if (!supports(type, Support::served, Use::values))
    throw input_error(
        fmt::format("the probe runs {} weights, found {}", names_with(Support::served, Use::values), name_of(type)),
        "give --weight-type " + names_with(Support::served, Use::values));
  const int all_cores = described || !on_processors ? 1 : static_cast<int>(std::thread::hardware_concurrency());
  const bool has_tokenizer = std::filesystem::exists(std::filesystem::path(options.model) / "tokenizer.json");
  const std::string text_folder = has_tokenizer ? options.model : "";
  ProbeOptions asked{
      .cluster = cluster,
      .shape = shape,
      .measure_answers =
          [&](const ServePlan& plan, Fleet& fleet, const std::filesystem::path& folder, std::int64_t tokens,
              double seconds) { return measure_answers(plan, fleet, folder, text_folder, tokens, seconds); },
      .worker_program = prepare_worker_program(),
      .backend = options.backend,
      .transport = options.transport,
      .threads = options.worker_threads > 0 ? options.worker_threads : std::max(1, all_cores),
      .seconds = options.group.seconds > 0 ? options.group.seconds : default_probe_seconds,
      .disk = options.disk,
      .report = reporter(options.output)};
  if (!options.disk_bytes.empty())
    asked.disk_bytes = static_cast<std::int64_t>(parse_bytes_option(options.disk_bytes, "--disk-bytes"));
  const ProbeResult result = probe(asked);
  const ClusterDescription description = calibrated(cluster, result, options.transport, type);
  if (!options.output.file.empty()) {
    const bool json = options.output.file.ends_with(".json");
    write_file(options.output.file,
               json ? to_json(write(description), 2) + "\n"
                    : cluster_toml(description, heading(options, cluster, result, type, asked.threads)));
    if (!options.output.quiet) fmt::print(stderr, "wrote {}\n", options.output.file);
  }
  if (options.output.json)
    fmt::print("{}\n",
               to_json(Value::object({{"cluster", write(description)}, {"measured", probe_json(cluster, result)}}), 2));
  else
    print_text(stdout, probe_text(cluster, result));
  return 0;
}

}  // namespace

void add_cluster_probe(CLI::App& cluster_verbs, Action& action) {
  const auto [verb, options] = add_verb<ProbeCommand>(
      cluster_verbs, action, "probe", "Measure processors, GPUs or links between machines, and write a cluster file",
      probe_and_write);
  verb->footer(
      "examples:\n"
      "  motley cluster probe -o here.toml                                          measure this machine as one "
      "device\n"
      "  motley cluster probe --backend cuda -o gpus.toml                            its GPUs, with what is free of "
      "them\n"
      "  motley cluster probe --disk /var/tmp -o here.toml                          also its disk and memory, to "
      "offload\n"
      "  motley cluster probe --cluster examples/garage/cluster.toml --model data/models/tales -o garage.toml\n"
      "  motley cluster probe --cluster garage.toml --model fresh --workload job.toml -o profile.json\n"
      "  motley cluster probe --routing --model mixture --text prompts.txt -o profile.json    which experts are taken\n"
      "  motley cluster probe --members 10.0.0.1:4711,10.0.0.2:4711 --rank 0 --key secret -o net.toml\n"
      "  motley plan allreduce --cluster net.toml --bytes \"400 MB\"                  plan with the measured links\n"
      "\n"
      "With --members, start the command on each machine with its own --rank; rank 0 writes the file.");
  verb->add_option("--cluster", options->cluster, "Cluster file whose device types or links are measured")
      ->type_name("FILE");
  verb->add_option("--model", options->model,
                   fmt::format("Model whose blocks are run: folder, config.json or name (default {})", default_shape));
  verb->add_option("--workload", options->workload,
                   "Measure training steps of this job ([training]) and write a profile")
      ->type_name("FILE");
  verb->add_flag("--routing", options->routing, "Count the experts that tokens of a text take and write a profile");
  verb->add_option("--text", options->text, "Text whose tokens are routed, as users send them (up to 4,096 tokens)")
      ->type_name("FILE");
  verb->add_option("--backend", options->backend,
                   "What is measured: the processors, with cuda the GPUs, or cuda:N (default cpu)")
      ->check([](const std::string& given) {
        return is_backend(given) ? "" : given + " is none of cpu, cuda, cuda:0, cuda:1, ...";
      });
  verb->add_flag("--rates", options->rates,
                 "Measure one device alone, in some seconds, as agents do, and write a device type");
  verb->add_option("--weight-type", options->weight_type,
                   "Weight type to measure: fp32 or bf16 (default: the model's)");
  verb->add_option("--transport", options->transport, "Transport between workers, or members of one host (default shm)")
      ->check(CLI::IsMember({"shm", "tcp"}));
  verb->add_option("--worker-threads", options->worker_threads,
                   "Threads per worker (default 1; of processors without --cluster, all)")
      ->check(CLI::Range(0, 1024));
  verb->add_option("--disk", options->disk, "Also measure this folder's disk and the host's memory, for offloading")
      ->type_name("FOLDER");
  verb->add_option("--disk-bytes", options->disk_bytes, "Size of the test file on the disk (default \"1 GiB\")")
      ->type_name("SIZE")
      ->needs("--disk");
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
}

}  // namespace motley::cli
