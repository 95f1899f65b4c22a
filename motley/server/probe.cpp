#include "motley/server/probe.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "motley/server/driver.hpp"
#include "motley/server/probe_run.hpp"

namespace motley {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr const char* cpu = "cpu";  // the vendor
constexpr StepLimits limits{.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
constexpr std::int64_t most_context = 256;
constexpr std::int64_t few_layers = 1, more_layers = 4;  // their difference tells the layers from the rest
constexpr std::int64_t wider = 4;                        // as much FFN tells bytes from layers
constexpr double seconds_per_launch = 1.5;
constexpr int fewest_rounds = 5, most_rounds = 60, warm_up_rounds = 2;

// Narrower until a block has no more than 64 MiB in fp32, and a vocabulary that fits beside it: the rates do not depend
// on it, the probe's time does.
Architecture probe_shape(Architecture shape) {
  constexpr std::int64_t most_elements = 16 << 20;
  constexpr std::int64_t most_vocabulary = 8192;
  const auto elements = [&] {
    return 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads) + 3 * shape.hidden * shape.ffn;
  };
  while (elements() > most_elements && shape.heads > 1) {
    const auto halved = [](std::int64_t n) { return std::max<std::int64_t>(1, n / 2); };
    shape.hidden = halved(shape.hidden);
    shape.ffn = halved(shape.ffn);
    shape.heads = halved(shape.heads);
    shape.kv_heads = std::min(halved(shape.kv_heads), shape.heads);
  }
  if (shape.heads % shape.kv_heads != 0) shape.kv_heads = shape.heads;
  shape.vocabulary = std::min(shape.vocabulary, most_vocabulary);
  shape.context = most_context + limits.max_tokens;
  return shape;
}

// The lower quartile: what other programs take away at times is not the workers'.
double typical(std::vector<double> values) {
  MOTLEY_CHECK(!values.empty());
  const auto quarter = values.begin() + std::ssize(values) / 4;
  std::nth_element(values.begin(), quarter, values.end());
  return *quarter;
}

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

const std::vector<ProbeStep>& probed_steps() {
  static const std::vector<ProbeStep> steps = {
      {1, 1, 0},  {1, 1, most_context},      {limits.max_sequences, 1, most_context},
      {1, 16, 0}, {1, limits.max_tokens, 0}, {1, limits.max_tokens, most_context}};
  return steps;
}
constexpr ProbeStep small_step{1, 1, 64}, large_step{1, limits.max_tokens, 0};

struct MeasuredStep {
  std::size_t route = 0;
  ProbeStep step;
  double round_s = 0;
  double compute_s = 0;  // of all workers together
  double rest_s = 0;     // of the round, beside that
};

// Taken in rounds in which every route runs every step, so that none finds its weights in a cache that in service is
// not its own.
std::vector<MeasuredStep> measure(ProbeRun& run, const std::vector<ProbeStep>& steps) {
  const std::size_t routes = run.plan().routes.size();
  struct Samples {
    std::vector<double> round_s, compute_s, rest_s;
  };
  std::vector<Samples> samples(routes * steps.size());
  const auto start = Clock::now();
  for (int round = 0; round < most_rounds; ++round) {
    if (round >= warm_up_rounds + fewest_rounds && seconds_since(start) > seconds_per_launch) break;
    for (std::size_t s = 0; s < steps.size(); ++s)
      for (std::size_t route = 0; route < routes; ++route) {
        const StepTime time = run.run(route, steps[s]);
        if (round < warm_up_rounds) continue;
        const double compute_s = std::accumulate(time.compute_s.begin(), time.compute_s.end(), 0.0);
        Samples& to = samples[s * routes + route];
        to.round_s.push_back(time.round_s);
        to.compute_s.push_back(compute_s);
        to.rest_s.push_back(time.round_s - compute_s);
      }
  }
  std::vector<MeasuredStep> measured;
  for (std::size_t s = 0; s < steps.size(); ++s)
    for (std::size_t route = 0; route < routes; ++route) {
      const Samples& of = samples[s * routes + route];
      measured.push_back({route, steps[s], typical(of.round_s), typical(of.compute_s), typical(of.rest_s)});
    }
  return measured;
}

class Probe {
 public:
  explicit Probe(const ProbeOptions& options) : options_(options), shape_(probe_shape(options.shape)) {
    result_.cores = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
    result_.inside.resize(options.cluster.machines.size());
  }

  ProbeResult run() {
    probe_steps(shape_);
    Architecture wide = shape_;
    wide.ffn *= wider;
    probe_steps(wide);
    for (const DType type : {DType::fp32, DType::bf16}) {
      ProbedType& probed = result_.types[type];
      probed.rates = fit_steps(samples_[type]);
      probed.error = fit_error(samples_[type], probed.rates);
    }
    for (const char* transport : {"shm", "tcp"}) probe_channels(transport);
    probe_driver();
    result_.elapsed_s = seconds_since(start_);
    return std::move(result_);
  }

 private:
  void report(const std::string& what) const {
    if (options_.report) options_.report(what, seconds_since(start_));
  }

  LaunchOptions launch(const TemporaryFolder& folder, const std::string& transport) const {
    return {.model_folder = folder.path(),
            .program = options_.worker_program,
            .transport = transport,
            .backend = "cpu",
            .threads = options_.threads};
  }

  ServePlan plan_of(const Architecture& shape, std::int64_t layers, const std::vector<ProbeRoute>& routes) const {
    const std::int64_t kv_tokens = limits.max_sequences * (most_context + limits.max_tokens);
    return probe_plan(probe_model(shape, layers), limits, kv_tokens, routes);
  }

  // The group of a route's first stage.
  static TensorGroup group_of(const ServePlan& plan, std::size_t route) {
    const Stage& stage = plan.stage(plan.routes[route].path.front().stage);
    std::vector<int> devices;
    for (const std::string& device : stage.devices) devices.push_back(plan.cluster.find_device(device));
    return make_group(plan.cluster, plan.model.arch, devices, stage.shares, stage.weight_type, stage.kv_type,
                      plan.step);
  }

  // Single workers with few and more layers, in both types.
  void probe_steps(const Architecture& shape) {
    std::vector<ProbeRoute> routes;
    for (const DType type : {DType::fp32, DType::bf16})
      for (const std::int64_t layers : {few_layers, more_layers}) routes.push_back({{{1, layers}}, type});
    const TemporaryFolder folder;
    const ServePlan plan = plan_of(shape, more_layers, routes);
    write_zeros(plan.model.arch, folder.path());
    ProbeRun run(plan, launch(folder, "shm"));
    std::vector<double> controls_s;
    for (const MeasuredStep& measured : measure(run, probed_steps())) {
      const Stage& stage = plan.stages[measured.route];
      ranks_.push_back(std::make_unique<Rank>(group_of(plan, measured.route).ranks.front()));
      samples_[stage.weight_type].push_back(
          {ranks_.back().get(), static_cast<double>(stage.layers.size()), load_of(measured.step), measured.compute_s});
      controls_s.push_back(measured.rest_s);
    }
    control_s_ = typical(controls_s);
    report(fmt::format("steps of blocks with {} x {} and {} x {} elements", shape.hidden, shape.hidden, shape.hidden,
                       shape.ffn));
  }

  // Two stages of one worker each; and for the chosen transport, all workers of each machine together.
  void probe_channels(const std::string& transport) {
    std::vector<ProbeRoute> routes{{{{1, few_layers}, {1, few_layers}}, DType::fp32}};
    std::map<int, std::size_t> route_of_degree;
    if (transport == options_.transport)
      for (const Machine& machine : options_.cluster.machines)
        if (const int degree = static_cast<int>(machine.devices.size());
            degree > 1 && degree <= shape_.heads && route_of_degree.try_emplace(degree, routes.size()).second)
          routes.push_back({{{degree, more_layers}}, DType::fp32});
    const TemporaryFolder folder;
    ServePlan plan = plan_of(shape_, more_layers, routes);
    write_zeros(plan.model.arch, folder.path());
    ProbeRun run(plan, launch(folder, transport));
    const std::vector<MeasuredStep> measured = measure(run, {small_step, large_step});
    const std::size_t count = routes.size();

    const auto hop_s = [&](const MeasuredStep& step) { return std::max(step.rest_s - control_s_, shortest_hop_s); };
    const double small_bytes = frame_bytes(small_step), large_bytes = frame_bytes(large_step);
    const double small_s = hop_s(measured[0]), large_s = hop_s(measured[count]);
    const double bandwidth = large_s > small_s ? (large_bytes - small_bytes) / (large_s - small_s) : fastest_channel;
    result_.channels[transport] = {rounded(std::max(small_s - small_bytes / bandwidth, shortest_hop_s)),
                                   rounded(bandwidth)};
    report(fmt::format("{} channels", transport));

    plan.cluster = resolve(with_rates(plan.cluster.description, DType::fp32), "probe");
    const StepCost cost({}, plan.cluster, plan.model.arch);
    for (std::size_t m = 0; m < options_.cluster.machines.size(); ++m) {
      const auto route = route_of_degree.find(static_cast<int>(options_.cluster.machines[m].devices.size()));
      if (route == route_of_degree.end()) continue;
      const TensorGroup group = group_of(plan, route->second);
      const double crowding = std::max(1.0, busy_cores(group) / static_cast<double>(result_.cores));
      const auto sample = [&](const MeasuredStep& step) {
        return GroupSample{load_of(step.step), std::max(step.round_s - control_s_, 0.0)};
      };
      const PathSpeed link = fit_link(cost, group, more_layers, crowding, sample(measured[route->second]),
                                      sample(measured[count + route->second]));
      result_.inside[m] = PathSpeed{rounded(link.latency_s), rounded(link.bandwidth_bytes_per_s)};
    }
    if (count > 1) report("machines with several workers");
  }

  double frame_bytes(const ProbeStep& step) const {
    return static_cast<double>(step.tokens * step.sequences * shape_.hidden) * 4;
  }

  ClusterDescription with_rates(ClusterDescription description, DType type) const {
    for (DeviceType& device : description.device_types) set_rates(device, result_, type);
    return description;
  }

 public:
  static void set_rates(DeviceType& device, const ProbeResult& result, DType type) {
    const StepRates& rates = result.types.at(type).rates;
    device.memory_bandwidth_bytes_per_s = rounded(rates.bandwidth_bytes_per_s);
    device.flop_per_s.clear();
    for (const auto& [weights, probed] : result.types)
      device.flop_per_s[std::string(name_of(weights))] = rounded(probed.rates.product_flop_per_s);
    device.efficiency = {.compute = 1,
                         .bandwidth = 1,
                         .attention = rounded(std::min(1.0, rates.attention_flop_per_s / rates.product_flop_per_s))};
    device.overhead = Overhead{.layer_s = rounded(rates.overhead.layer_s), .step_s = rounded(rates.overhead.step_s)};
  }

 private:
  // The real driver with one worker: what is left of the time between tokens when the worker's is taken away.
  void probe_driver() {
    const TemporaryFolder folder;
    const ServePlan plan = plan_of(shape_, few_layers, {{{{1, few_layers}}, DType::fp32}});
    write_zeros(plan.model.arch, folder.path());
    Driver driver(plan, {.model_folder = folder.path(),
                         .worker_program = options_.worker_program,
                         .transport = options_.transport,
                         .threads_per_worker = options_.threads,
                         .report = {}});
    std::vector<double> steps_s;
    for (int i = 0; i < fewest_rounds; ++i) steps_s.push_back(driver_step_s(driver));
    result_.driver.step_s = rounded(typical(steps_s));
    report("driver");
  }

  static double driver_step_s(Driver& driver) {
    struct Times {
      std::mutex mutex;
      std::condition_variable ended;
      std::vector<Clock::time_point> tokens;
      bool finished = false;
    };
    const auto times = std::make_shared<Times>();
    const WorkerStatus before = driver.status().workers.front();
    GenerateRequest request;
    request.prompt = {1};
    request.max_new_tokens = most_context;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    driver.generate(request, [times](const GenerateEvent& event) {
      const auto now = Clock::now();
      const std::lock_guard lock(times->mutex);
      if (event.token) times->tokens.push_back(now);
      if (event.finished) times->finished = true;
      if (event.finished) times->ended.notify_all();
    });
    std::unique_lock lock(times->mutex);
    times->ended.wait(lock, [&] { return times->finished; });
    if (times->tokens.size() < 2) throw Error(ErrorCode::peer, "the driver's request brought no tokens");
    const WorkerStatus after = driver.status().workers.front();
    const double gap_s = std::chrono::duration<double>(times->tokens.back() - times->tokens.front()).count() /
                         static_cast<double>(times->tokens.size() - 1);
    return std::max(0.0, gap_s - (after.busy_s - before.busy_s) / static_cast<double>(after.steps - before.steps));
  }

  static constexpr double shortest_hop_s = 1e-7;
  static constexpr double fastest_channel = 1e12;  // B/s: where the size of a message did not show

  const ProbeOptions& options_;
  Architecture shape_;
  Clock::time_point start_ = Clock::now();
  ProbeResult result_;
  std::map<DType, std::vector<StepSample>> samples_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // of the samples
  double control_s_ = 0;                      // of a step, from here to a worker and back
};

}  // namespace

ProbeResult probe(const ProbeOptions& options) {
  if (std::ranges::none_of(options.cluster.types, [](const DeviceType& type) { return type.vendor == cpu; }))
    throw input_error("no device of this cluster is a CPU",
                      "only CPU workers are measured: give their types vendor = \"cpu\"");
  return Probe(options).run();
}

ClusterDescription calibrated(const Cluster& cluster, const ProbeResult& result, const std::string& transport,
                              DType type) {
  ClusterDescription description = cluster.description;
  for (DeviceType& device : description.device_types)
    if (device.vendor == cpu) Probe::set_rates(device, result, type);
  const auto speed = [](const PathSpeed& path) {
    return LinkSpeed{.latency_s = path.latency_s, .bandwidth_bytes_per_s = path.bandwidth_bytes_per_s};
  };
  for (const Machine& machine : cluster.machines) {
    const auto& inside = result.inside.at(static_cast<std::size_t>(&machine - cluster.machines.data()));
    auto& described = description.machines[static_cast<std::size_t>(machine.description)];
    described.link = inside ? std::optional(speed(*inside)) : std::nullopt;
  }
  const LinkSpeed hop = speed(result.channels.at(transport));
  description.network = {};
  description.network.within_machine = description.network.within_site = description.network.between_sites = hop;
  description.links.clear();
  description.switches.clear();
  description.driver = result.driver;
  description.local = LocalHost{.cores = result.cores};
  return description;
}

ClusterDescription this_machine() {
  return one_machine(1, static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE) / 2);
}

}  // namespace motley
