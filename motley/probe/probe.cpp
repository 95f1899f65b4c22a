#include "motley/probe/probe.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/base/free_memory.hpp"
#include "motley/base/rounding.hpp"
#include "motley/cost/serve/stage_group.hpp"
#include "motley/probe/probe_run.hpp"
#include "motley/probe/probe_scale.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workers/local_fleet.hpp"

namespace motley {
namespace {

constexpr std::int64_t few_layers = 1, more_layers = 4;  // their difference tells the layers from the rest
constexpr std::int64_t few_rows = 8;                     // with which a product is bound by memory, or nearly
constexpr std::int64_t most_layers = 8;                  // of the pipeline that the server is measured with
constexpr std::ptrdiff_t most_stages = 8;
constexpr std::int64_t answer_tokens = 33;
// Of the seconds asked for: the server's, and each of four measurements of steps.
constexpr double server_share = 1.0 / 3, steps_share = 1.0 / 6;

// What people can read; measurements have no more digits.
double rounded(double value) {
  constexpr int digits = 4;
  if (!std::isfinite(value) || value == 0) return value;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(value))) + 1 - digits);
  return unit >= 1 ? std::round(value / unit) * unit : std::round(value / unit) / std::round(1 / unit);
}

// Per token that a step of it attends to half of its own chunk.
StepLoad load_of(const ProbeStep& step) {
  const auto sequences = static_cast<double>(step.sequences), tokens = static_cast<double>(step.tokens);
  const double context = static_cast<double>(step.position) + tokens / 2;
  return {.tokens = sequences * tokens, .context = context, .cached = sequences * context, .logits = sequences};
}

constexpr int most_tries = 3;  // of times that contradict each other
constexpr ProbeStep small_step{1, 1, 64};

// Of the host; or of the GPU that has least.
std::int64_t free_for_probe(const ProbeOptions& options) {
  if (!options.backend.starts_with("cuda")) return free_memory_bytes();
  if (options.device_free_bytes > 0) return options.device_free_bytes;
  return std::ranges::min(nvidia_gpus(), {}, &NvidiaGpu::free_bytes).free_bytes;
}

class Probe {
 public:
  explicit Probe(const ProbeOptions& options)
      : options_(options),
        scale_(scale_of(options.backend, options.rates_only)),
        memory_bytes_(free_for_probe(options)),
        shape_(probe_shape(options.shape, scale_, memory_bytes_)) {
    result_.vendor = scale_.vendor;
    result_.device_memory_bytes = on_processors() ? 0 : memory_bytes_;
    result_.cores = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
    result_.inside.resize(options.cluster.machines.size());
    if (const std::int64_t layers = layers_beyond_cache(options.cluster, options.shape, shape_);
        on_processors() && layers > more_layers)
      layer_counts_ = {few_layers, layers / 2, layers};
  }

  ProbeResult run() {
    if (!options_.disk.empty()) probe_tiers();
    for (int tries = 1; !probe_rates(); ++tries) {
      if (tries == most_tries)
        throw Error(ErrorCode::environment, "the measured times contradict each other",
                    "probe again without other programs on the cores");
      report("these times are inconsistent, as if other programs used the cores: measuring again");
    }
    if (options_.rates_only) return std::move(result_);
    // Threads of several workers would be in each other's way on these cores, and one device has no other to talk to.
    const bool alone = options_.cluster.devices.size() == 1 && (options_.threads > 1 || !on_processors());
    for (const char* transport : {"shm", "tcp"})
      if (!alone) probe_channels(transport);
    limit_step_overhead();
    probe_server();
    result_.elapsed_s = seconds_since(start_);
    return std::move(result_);
  }

 private:
  void report(const std::string& what) const {
    if (options_.report) options_.report(what, seconds_since(start_));
  }

  bool on_processors() const { return options_.backend == "cpu"; }

  void probe_tiers() {
    std::int64_t host_memory_bytes = free_memory_bytes();
    for (const Device& device : options_.cluster.devices)
      if (const DeviceType& type = options_.cluster.types[static_cast<std::size_t>(device.type)];
          type.vendor == scale_.vendor)
        host_memory_bytes -= type.memory_bytes;
    result_.host_memory_bytes = std::max<std::int64_t>(0, host_memory_bytes);
    const std::int64_t threads = options_.threads * std::ssize(options_.cluster.devices);
    result_.tiers = motley::probe_tiers({.folder = options_.disk,
                                         .file_bytes = options_.disk_bytes,
                                         .computing_threads = static_cast<int>(std::min(result_.cores, threads))});
    report("disk and host memory");
  }

  LocalFleet fleet(const std::string& transport) const {
    return LocalFleet({.program = options_.worker_program,
                       .transport = transport,
                       .backend = options_.backend,
                       .threads = options_.threads});
  }

  ServePlan plan_of(const Architecture& shape, std::int64_t layers, const std::vector<ProbeRoute>& routes) const {
    return probe_plan(probe_model(shape, layers), scale_.limits, kv_tokens_of(scale_), routes);
  }

  // False where the times of some type are not those of any rates.
  bool probe_rates() {
    samples_.clear();
    result_.types.clear();
    probe_steps(shape_);
    probe_steps(with_another_ffn(shape_));
    for (const DType type : dtypes_with(Support::served, Use::values)) {
      ProbedType& probed = result_.types[type];
      StepRates& rates = probed.rates = with_unseen_rates(fit_steps(samples_[type]), samples_[type]);
      if (!std::isfinite(rates.bandwidth_bytes_per_s) || !std::isfinite(rates.product_flop_per_s)) return false;
      // Where blocks are wide and contexts short, attention does not show next to the products.
      rates.attention_bandwidth_bytes_per_s =
          std::min(rates.attention_bandwidth_bytes_per_s, rates.bandwidth_bytes_per_s);
      rates.attention_flop_per_s = std::min(rates.attention_flop_per_s, rates.product_flop_per_s);
      probed.error = fit_error(samples_[type], rates);
      for (std::size_t i = 0; i < probed.steps.size(); ++i)
        probed.steps[i].predicted_s = step_s(samples_[type][i], rates);
    }
    return true;
  }

  // The group of a route's first stage.
  static TensorGroup group_of(const ServePlan& plan, std::size_t route) {
    return stage_group(plan, plan.stage(plan.routes[route].path.front().stage));
  }

  // Workers of several devices take turns, as in a pipeline: each finds its weights pushed out of the caches by the
  // others. One device has them to itself, and its threads the cores.
  std::vector<std::vector<ProbeCase>> in_turns(const std::vector<ProbeCase>& cases) const {
    if (options_.cluster.devices.size() > 1) return {cases};
    std::vector<std::vector<ProbeCase>> alone;
    for (const ProbeCase& one : cases) alone.push_back({one});
    return alone;
  }

  // Not of large steps with many layers, which take long, nor of small ones with weights in a cache where in service
  // they are not.
  bool worthwhile(const Architecture& shape, std::int64_t layers, const ProbeStep& step) const {
    const std::int64_t rows = step.sequences * step.tokens;
    if (layers == few_layers) return rows > few_rows || layer_counts_.size() == 2;
    return static_cast<double>(layers * rows) * block_flops(shape, 0, 0) < scale_.most_flops;
  }

  // Single workers with few and more layers, in both types.
  void probe_steps(const Architecture& shape) {
    std::vector<ProbeRoute> routes;
    for (const DType type : dtypes_with(Support::served, Use::values))
      for (const std::int64_t layers : layer_counts_) routes.push_back({{{1, layers}}, type});
    std::vector<std::vector<ProbeCase>> cases;
    for (const ProbeStep& step : scale_.steps) {
      std::vector<ProbeCase> same_step;
      for (std::size_t route = 0; route < routes.size(); ++route)
        if (worthwhile(shape, routes[route].stages[0].layers, step)) same_step.push_back({route, step});
      for (const auto& turns : in_turns(same_step)) cases.push_back(turns);
    }
    const TemporaryFolder folder;
    const ServePlan plan = plan_of(shape, layer_counts_.back(), routes);
    write_weights(plan.model.arch, folder.path(), scale_.fill);
    LocalFleet local = fleet("shm");
    ProbeRun run(plan, local, folder.path());
    for (const MeasuredStep& measured : measure(run, cases, steps_share * options_.seconds))
      take_sample(plan, measured);
    report(fmt::format("steps of blocks with {} x {} and {} x {} elements", shape.hidden, shape.hidden, shape.hidden,
                       shape.kinds.front().ffn));
  }

  void take_sample(const ServePlan& plan, const MeasuredStep& measured) {
    const Stage& stage = plan.stages[measured.route];
    ranks_.push_back(std::make_unique<Rank>(group_of(plan, measured.route).ranks.front()));
    samples_[stage.weight_type].push_back(
        {ranks_.back().get(), static_cast<double>(stage.layers.size()), load_of(measured.step), measured.compute_s});
    result_.types[stage.weight_type].steps.push_back({.ffn = plan.model.arch.kinds.front().ffn,
                                                      .layers = stage.layers.size(),
                                                      .sequences = measured.step.sequences,
                                                      .tokens = measured.step.tokens,
                                                      .position = measured.step.position,
                                                      .measured_s = measured.compute_s});
  }

  // One worker; two in a row that share its layers; two that share each of them, as all workers of a machine do.
  void probe_channels(const std::string& transport) {
    const bool chosen = transport == options_.transport;
    const DType type = scale_.channel_type;
    std::vector<ProbeRoute> routes{{{{1, 2 * few_layers}}, type}, {{{1, few_layers}, {1, few_layers}}, type}};
    std::map<int, std::size_t> route_of_degree;
    const auto add = [&](int degree) {
      if (degree > 1 && degree <= shape_.heads && route_of_degree.try_emplace(degree, routes.size()).second)
        routes.push_back({{{degree, more_layers}}, type});
    };
    add(2);
    for (const Machine& machine : options_.cluster.machines)
      if (chosen) add(static_cast<int>(machine.devices.size()));
    const TemporaryFolder folder;
    const ServePlan plan = plan_of(shape_, more_layers, routes);
    write_weights(plan.model.arch, folder.path(), scale_.fill);
    LocalFleet local = fleet(transport);
    ProbeRun run(plan, local, folder.path());
    std::vector<ProbeCase> small_cases, large_cases;
    for (std::size_t route = 0; route < routes.size(); ++route) {
      small_cases.push_back({route, small_step});
      large_cases.push_back({route, large_step()});
    }
    const std::vector<MeasuredStep> measured = measure(run, {small_cases, large_cases}, steps_share * options_.seconds);
    const std::vector<MeasuredStep> small(measured.begin(), measured.begin() + std::ssize(routes)),
        large(measured.begin() + std::ssize(routes), measured.end());
    std::map<int, PathSpeed> link_of_degree;
    for (const auto& [degree, route] : route_of_degree) link_of_degree[degree] = link_inside(plan, route, small, large);
    result_.channels[transport] = link_of_degree.at(2);
    report(fmt::format("{} channels", transport));
    if (!chosen) return;
    for (std::size_t m = 0; m < options_.cluster.machines.size(); ++m) {
      const auto found = link_of_degree.find(static_cast<int>(options_.cluster.machines[m].devices.size()));
      if (found != link_of_degree.end()) result_.inside[m] = found->second;
    }
    further_stage_s_ = std::max(
        0.0, small[1].round_s - small[0].round_s - result_.channels[transport].seconds(frame_bytes(small_step)));
  }

  PathSpeed link_inside(ServePlan plan, std::size_t route, const std::vector<MeasuredStep>& small,
                        const std::vector<MeasuredStep>& large) const {
    for (DeviceType& type : plan.cluster.description.device_types) set_rates(type, result_, scale_.channel_type);
    plan.cluster = resolve(plan.cluster.description, "probe");
    const TensorGroup group = group_of(plan, route);
    const auto sample = [&](const std::vector<MeasuredStep>& steps) {
      return GroupSample{load_of(steps[route].step), std::max(steps[route].round_s - steps[0].rest_s, 0.0)};
    };
    const double crowding =
        on_processors() ? std::max(1.0, static_cast<double>(group.degree()) / static_cast<double>(result_.cores)) : 1;
    const PathSpeed link = fit_link(StepCost({}, plan.cluster, plan.model.arch), group, more_layers, crowding,
                                    sample(small), sample(large));
    return {rounded(link.latency_s), rounded(link.bandwidth_bytes_per_s)};
  }

  // The fit knows whole chains only: what a further stage does not pay again is paid once per step, by the driver.
  void limit_step_overhead() {
    for (auto& [type, probed] : result_.types)
      probed.rates.overhead.step_s = std::min(probed.rates.overhead.step_s, further_stage_s_);
  }

  ProbeStep large_step() const { return {1, scale_.limits.max_tokens, 0}; }

  double frame_bytes(const ProbeStep& step) const {
    return static_cast<double>(bytes_of(scale_.channel_type, step.tokens * step.sequences * shape_.hidden));
  }

 public:
  static void set_rates(DeviceType& device, const ProbeResult& result, DType type) {
    const StepRates& rates = result.types.at(type).rates;
    device.memory_bandwidth_bytes_per_s = rounded(rates.bandwidth_bytes_per_s);
    device.flop_per_s.clear();
    for (const auto& [weights, probed] : result.types)
      device.flop_per_s[std::string(name_of(weights))] = rounded(probed.rates.product_flop_per_s);
    const auto share = [](double of, double whole) { return std::min(1.0, rounded(of / whole)); };
    device.efficiency = {
        .compute = 1,
        .bandwidth = 1,
        .attention_compute = share(rates.attention_flop_per_s, rates.product_flop_per_s),
        .attention_bandwidth = share(rates.attention_bandwidth_bytes_per_s, rates.bandwidth_bytes_per_s),
        .in_turn = rates.in_turn};
    device.training = {};  // these shares hold for training, too
    device.overhead = Overhead{.layer_s = rounded(rates.overhead.layer_s), .step_s = rounded(rates.overhead.step_s)};
  }

 private:
  // The real server, with a pipeline of all machines, asked as people ask. What its answers take beyond what the
  // simulator makes of the rates that are known by now is the driver's: per step, and per request.
  void probe_server() {
    const TemporaryFolder folder;
    ServePlan plan = pipeline_of_machines();
    write_weights(plan.model.arch, folder.path(), scale_.fill);
    LocalFleet local = fleet(options_.transport);
    const AnswerTimes measured =
        options_.measure_answers(plan, local, folder.path(), answer_tokens, server_share * options_.seconds);
    for (std::size_t m = 0; m < plan.stages.size(); ++m)
      for (std::size_t rank = 0; rank < plan.stages[m].devices.size(); ++rank) {
        const int device = options_.cluster.machines[m].devices[rank];
        plan.stages[m].devices[rank] = options_.cluster.devices[static_cast<std::size_t>(device)].name;
      }
    plan.cluster = resolve(calibrated(options_.cluster, result_, options_.transport, scale_.channel_type), "probe");
    const std::vector<TraceRequest> request{{.arrival_s = 0,
                                             .prompt_tokens = measured.prompt_tokens,
                                             .output_tokens = answer_tokens,
                                             .class_name = plan.workload.classes.front().name}};
    const RequestRecord simulated = simulate(plan, request, {}).records.front();
    const std::int64_t chunk = scale_.limits.max_tokens;
    const auto chunks = static_cast<double>(ceil_div(measured.prompt_tokens, chunk));
    result_.driver.step_s = rounded(std::max(0.0, measured.per_token_s - simulated.tpot_s()));
    result_.driver.request_s =
        rounded(std::max(0.0, measured.first_token_s - simulated.ttft_s() - chunks * result_.driver.step_s));
    report("server");
  }

  ServePlan pipeline_of_machines() const {
    const std::ptrdiff_t machines = std::min(std::ssize(options_.cluster.machines), most_stages);
    const std::int64_t layers = std::max<std::int64_t>(1, std::min(shape_.layers, most_layers) / machines);
    std::vector<ProbeStage> stages;
    for (std::ptrdiff_t m = 0; m < machines; ++m) {
      const auto devices = std::ssize(options_.cluster.machines[static_cast<std::size_t>(m)].devices);
      stages.push_back({static_cast<int>(std::min(devices, shape_.heads)), layers});
    }
    return plan_of(shape_, layers * machines, {{.stages = stages, .type = scale_.channel_type}});
  }

  const ProbeOptions& options_;
  const ProbeScale& scale_;
  const std::int64_t memory_bytes_;
  Architecture shape_;
  std::vector<std::int64_t> layer_counts_{few_layers, more_layers};  // three: all but few are beyond the cache
  Instant start_ = Clock::now();
  ProbeResult result_;
  double further_stage_s_ = std::numeric_limits<double>::infinity();  // what one more stage adds to a step in addition
                                                                      // to its layers and the hop
  std::map<DType, std::vector<StepSample>> samples_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // of the samples
};

}  // namespace

DeviceType probe_device(ProbeOptions options) {
  options.rates_only = true;
  const ProbeScale& scale = scale_of(options.backend, options.rates_only);
  ClusterDescription machine = one_machine(1, std::int64_t{1} << 50);
  machine.device_types.front().vendor = scale.vendor;
  options.cluster = resolve(machine, "the device");
  DeviceType type;
  type.name = options.backend;
  type.vendor = scale.vendor;
  Probe::set_rates(type, Probe(options).run(), scale.channel_type);
  type.efficiency.basis = Basis::measured;
  return type;
}

ProbeResult probe(const ProbeOptions& options) {
  const auto measured =
      std::ranges::count(options.cluster.types, scale_of(options.backend).vendor, &DeviceType::vendor);
  const bool on_processors = options.backend == "cpu";
  if (measured == 0 && on_processors)
    throw input_error("no device of this cluster is a CPU",
                      "give CPU device types vendor = \"cpu\", or measure GPUs with --backend cuda");
  if (measured == 0)
    throw input_error("no device of this cluster is an NVIDIA GPU",
                      "give GPU device types vendor = \"nvidia\", or measure processors without --backend");
  if (measured > 1 && !on_processors)
    throw input_error("GPUs of several types cannot be measured at once: GPU 0 stands for all",
                      "describe those of one type with --cluster, and let CUDA_VISIBLE_DEVICES name them");
  if (!options.disk.empty() && options.cluster.machines.size() > 1)
    throw input_error(
        fmt::format("--disk measures one machine, and the cluster has {}", options.cluster.machines.size()),
        "describe this machine alone with --cluster, or leave --cluster out");
  return Probe(options).run();
}

ClusterDescription calibrated(const Cluster& cluster, const ProbeResult& result, const std::string& transport,
                              DType type) {
  ClusterDescription description = cluster.description;
  for (DeviceType& device : description.device_types)
    if (device.vendor == result.vendor) {
      Probe::set_rates(device, result, type);
      if (result.device_memory_bytes > 0)
        device.memory_bytes = std::min(device.memory_bytes, result.device_memory_bytes);
    }
  const auto speed = [](const PathSpeed& path) {
    return LinkSpeed{.latency_s = path.latency_s, .bandwidth_bytes_per_s = path.bandwidth_bytes_per_s};
  };
  for (const Machine& machine : cluster.machines) {
    const auto& inside = result.inside.at(static_cast<std::size_t>(&machine - cluster.machines.data()));
    auto& described = description.machines[static_cast<std::size_t>(machine.description)];
    described.link = inside ? std::optional(speed(*inside)) : std::nullopt;
  }
  if (result.tiers) {
    MachineDescription& machine = description.machines.front();
    const Disk& disk = result.tiers->disk;
    machine.host_memory_bytes = result.host_memory_bytes;
    machine.disk = Disk{.capacity_bytes = disk.capacity_bytes,
                        .read_bytes_per_s = rounded(disk.read_bytes_per_s),
                        .write_bytes_per_s = rounded(disk.write_bytes_per_s),
                        .both_bytes_per_s = rounded(disk.both_bytes_per_s)};
    machine.host = HostRates{.upload_bytes_per_s = rounded(result.tiers->copy_bytes_per_s)};
  }
  description.network = {};
  if (const auto hop = result.channels.find(transport); hop != result.channels.end())
    description.network.within_machine = description.network.within_site = description.network.between_sites =
        speed(hop->second);
  description.links.clear();
  description.switches.clear();
  description.driver = result.driver;
  if (result.vendor == "cpu") description.local = LocalHost{.cores = result.cores};
  return description;
}

}  // namespace motley
