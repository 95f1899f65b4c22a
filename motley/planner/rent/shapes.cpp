#include "motley/planner/rent/shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "motley/base/rounding.hpp"
#include "motley/base/units.hpp"
#include "motley/cluster/interconnect.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/solve/chain_dp.hpp"

namespace motley {
namespace {

constexpr int machine_slots = 8;  // devices of a machine
constexpr int degrees[] = {1, 2, 4, 8};
constexpr int most_stages = 8;
constexpr int most_mixed_stages = 2;  // of each part
constexpr int most_machines = 6;
constexpr double most_memory = 12;  // times the weights: beyond it, published templates stopped improving
constexpr LinkSpeed between_machines{.latency_s = 0.2e-3, .bandwidth_bytes_per_s = 1.25e9};

int machines_of(const ShapePart& part) {
  const int per_machine = machine_slots / part.degree;
  return ceil_div(part.stages, per_machine);
}

std::vector<int> devices_from(int first, int count) {
  std::vector<int> devices;
  for (int i = 0; i < count; ++i) devices.push_back(first + i);
  return devices;
}

}  // namespace

std::string shape_name(const ShapeSpec& spec) {
  std::string name;
  for (const auto& part : spec) {
    if (!name.empty()) name += " + ";
    name += part.type;
    if (part.degree > 1) name += fmt::format(" tp{}", part.degree);
    if (part.stages > 1) name += fmt::format(" x{}", part.stages);
  }
  return name;
}

std::map<std::string, std::int64_t> shape_devices(const ShapeSpec& spec) {
  std::map<std::string, std::int64_t> devices;
  for (const auto& part : spec) devices[part.type] += part.degree * part.stages;
  return devices;
}

// Two machines of each type, so that every hop has both ends: inside a machine, between two, and between types.
struct ShapeMaker::Pair {
  Cluster cluster;
  std::map<std::string, int> first_device;                          // of a type: 16 in a row, 8 per machine
  std::map<std::tuple<std::string, int, int>, TensorGroup> groups;  // by type, degree and first slot

  // The stage of a part with this number. Consecutive ones are neighbours: in one machine while all stages of the part
  // are, otherwise in two.
  const TensorGroup& stage(const ShapePart& part, std::int64_t index) const {
    const int neighbour = machines_of(part) == 1 ? machine_slots - part.degree : machine_slots;
    return groups.at({part.type, part.degree, index % 2 == 0 ? 0 : neighbour});
  }
};

struct ShapeMaker::Priced {
  double rate_per_s = 0;  // 0: does not fit
  RouteCost route;
  std::vector<StageLayout> stages;
};

ShapeMaker::~ShapeMaker() = default;

ShapeMaker::ShapeMaker(const Offers& market, const Model& model, const Workload& workload,
                       const ModelRentOptions& options)
    : market_(market),
      model_(model),
      workload_(workload),
      options_(options),
      weight_type_(options.weight_type.value_or(model.arch.checkpoint_type)),
      kv_type_(options.kv_type.value_or(dtype_row(weight_type_).computed_in)) {
  check_kv_type(model.arch, kv_type_);
  if (workload.classes.empty())
    throw input_error("the workload has no request class", "add [[class]] tables: a rent plan is made for requests");
  const bool rates = workload.total_rate_per_s() > 0;
  market_.utilisation = options.utilisation;
  market_.classes.clear();
  market_.configurations.clear();
  for (const auto& described : workload.classes) {
    OfferClass one{.name = described.name, .model = {}, .demand_per_s = {}, .share = {}};
    if (rates)
      one.demand_per_s = described.rate_per_s;
    else
      one.share = 1.0 / static_cast<double>(workload.classes.size());
    market_.classes.push_back(std::move(one));
  }
  ClusterDescription all;
  for (const auto& [name, type] : market_.types) {
    all.machines.push_back({});
    all.machines.back().name = fmt::format("m{}", all.machines.size());
    all.machines.back().devices = {name};
  }
  const Cluster resolved = resolve(all, "offers: types");
  std::size_t index = 0;
  for (const auto& [name, type] : market_.types) types_[name] = resolved.type_of(static_cast<int>(index++));
  weight_bytes_ = static_cast<double>(
      weight_bytes(model.arch, whole_model(model.arch), make_shards(model.arch, 1).front(), weight_type_));
}

bool ShapeMaker::plausible(const ShapeSpec& spec) const {
  double memory = 0;
  int machines = 0, stages = 0;
  for (const auto& part : spec) {
    const DeviceType& type = types_.at(part.type);
    memory += static_cast<double>(part.degree * part.stages) *
              static_cast<double>(type.memory_bytes - type.reserve_bytes.value_or(0));
    machines += machines_of(part);
    stages += part.stages;
    const auto& available = market_.types.at(part.type).available;
    if (available && *available < part.degree * part.stages) return false;
    if (part.degree > model_.arch.heads) return false;
  }
  if (stages > model_.arch.layers || machines > most_machines) return false;
  const bool single = spec.size() == 1 && stages == 1 && spec[0].degree == 1;
  return memory >= weight_bytes_ && (single || memory <= most_memory * weight_bytes_);
}

std::vector<ShapeSpec> ShapeMaker::alike() const {
  std::vector<ShapeSpec> specs;
  for (const auto& [name, type] : market_.types)
    for (const int degree : degrees)
      for (int stages = 1; stages <= most_stages; ++stages)
        if (ShapeSpec spec = {{name, degree, stages}}; plausible(spec)) specs.push_back(std::move(spec));
  return specs;
}

std::vector<ShapeSpec> ShapeMaker::mixed() const {
  std::vector<ShapeSpec> specs;
  for (auto a = market_.types.begin(); a != market_.types.end(); ++a)
    for (auto b = std::next(a); b != market_.types.end(); ++b)
      for (const int degree_a : degrees)
        for (const int degree_b : degrees)
          for (int stages_a = 1; stages_a <= most_mixed_stages; ++stages_a)
            for (int stages_b = 1; stages_b <= most_mixed_stages; ++stages_b)
              if (ShapeSpec spec = {{a->first, degree_a, stages_a}, {b->first, degree_b, stages_b}}; plausible(spec))
                specs.push_back(std::move(spec));
  return specs;
}

ShapeMaker::Pair& ShapeMaker::pair_of(const ShapeSpec& spec) {
  std::string key;
  for (const auto& part : spec) key += part.type + "\n";
  const auto [entry, added] = pairs_.try_emplace(key);
  Pair& pair = entry->second;
  if (!added) return pair;
  ClusterDescription description;
  for (const auto& part : spec) {
    if (pair.first_device.contains(part.type)) continue;
    const int index = static_cast<int>(pair.first_device.size());
    pair.first_device[part.type] = index * 2 * machine_slots;
    MachineDescription machine;
    machine.name = fmt::format("m{}", index);
    machine.count = 2;
    machine.devices = {fmt::format("{}*{}", part.type, machine_slots)};
    machine.link = machine_link(part.type);
    description.machines.push_back(std::move(machine));
  }
  description.network.within_site = market_.network.value_or(between_machines);
  pair.cluster = resolve(description, "rented machines");
  for (const auto& [type, first] : pair.first_device)
    for (const int degree : degrees)
      for (const int slot : {0, machine_slots - degree, machine_slots})
        if (degree <= model_.arch.heads)
          pair.groups.try_emplace(
              {type, degree, slot},
              make_group(pair.cluster, model_.arch, devices_from(first + slot, degree), {}, weight_type_, kv_type_,
                         options_.step, choose_expert_shares(model_.arch, degree, {}, weight_type_)));
  return pair;
}

std::vector<double> ShapeMaker::rate_bounds(const ShapeSpec& spec) {
  std::vector<double> bounds;
  for (std::size_t w = 0; w < workload_.classes.size(); ++w) {
    double layers_per_s = 0;
    for (const auto& part : spec) {
      const auto [entry, added] = layer_load_s_.try_emplace(fmt::format("{}\n{}\n{}", part.type, part.degree, w));
      if (added) {
        Pair& alone = pair_of({part});
        const RequestClass& one = workload_.classes[w];
        // Steps of more sequences cost each of them less.
        const ServePoint point{one.prompt_tokens.mean,
                               one.output_tokens.mean,
                               std::min(options_.max_batch, options_.step.max_sequences),
                               options_.step,
                               Phase::both,
                               true};
        const auto form = make_form({}, alone.cluster, model_.arch, point);
        entry->second = price_layers(*form, alone.stage(part, 0), mean_layer_counts(model_.arch, 1)).load_s;
      }
      layers_per_s += part.stages / entry->second;
    }
    // Every layer is computed once per request, and no stage is busy for longer than the time between requests.
    bounds.push_back(layers_per_s / static_cast<double>(model_.arch.layers));
  }
  return bounds;
}

// Every stage of the shape, whatever their order: items are stages, places are parts.
ChainProblem ShapeMaker::chain_problem(const Pair& pair, const ShapeSpec& spec, const ServeForm& form,
                                       const CacheRoom& caches) const {
  ChainProblem problem;
  problem.units = model_.arch.layers;
  problem.kind_of_unit = model_.arch.kind_of_layer;
  for (std::size_t p = 0; p < spec.size(); ++p) {
    const TensorGroup& group = pair.stage(spec[p], 0);
    const LayerRoom room = layer_room(model_.arch, group, caches, options_.step);
    ChainOption option{.place = static_cast<int>(p),
                       .takes = std::vector<int>(spec.size(), 0),
                       .per_unit = {},
                       .at = {},
                       .unit_size = room.size};
    option.takes[p] = 1;
    for (std::size_t kind = 0; kind < model_.arch.kinds.size(); ++kind) {
      const StagePrice block = form.block(group, kind);
      option.per_unit.push_back({block.latency.sum(), block.load_s});
    }
    for (const StageEnds ends : all_ends) {
      const StagePrice price = form.ends(group, ends);
      option.at[ends_index(ends)] = {.fixed = {price.latency.sum(), price.load_s},
                                     .capacity = room.capacity[ends_index(ends)]};
    }
    problem.counts.push_back(spec[p].stages);
    problem.options.push_back(std::move(option));
  }
  problem.must_use = problem.counts;
  for (const auto& from : spec) {
    problem.hops.emplace_back();
    problem.return_latency_s.emplace_back();
    for (const auto& to : spec) {
      const TensorGroup& sender = pair.stage(from, 0);
      const TensorGroup& receiver = pair.stage(to, from == to ? 1 : 0);
      const StagePrice hop = form.hop(sender, receiver);
      problem.hops.back().push_back({hop.latency.sum(), hop.load_s});
      problem.return_latency_s.back().push_back(form.token_return(sender, receiver).sum());
    }
  }
  return problem;
}

ShapeMaker::Priced ShapeMaker::price(Pair& pair, const ShapeSpec& spec, std::size_t class_index, std::int64_t batch) {
  const RequestClass& one = workload_.classes[class_index];
  int stages = 0;
  for (const auto& part : spec) stages += part.stages;
  Priced best;
  for (const std::int64_t micro_batches : micro_batch_counts(batch, options_.step)) {
    // A pipeline is full with as many micro-batches as stages; more make its steps smaller.
    if (micro_batches >= 2 * stages && best.rate_per_s > 0) break;
    const ServePoint point{one.prompt_tokens.mean,
                           one.output_tokens.mean,
                           sequences_per_step(batch, micro_batches),
                           options_.step,
                           Phase::both,
                           batch > 1};
    const auto form = make_form({}, pair.cluster, model_.arch, point);
    const ChainProblem problem = chain_problem(pair, spec, *form, room_of(point, batch));
    ChainSolver solver(problem);
    const CycleAnswer answer =
        least_cycle(solver, static_cast<double>(batch), std::numeric_limits<double>::infinity(), Instant::max());
    if (!answer.chain) continue;
    const double cycle = cycle_s(*form, answer.chain->seconds.latency_s, answer.chain->seconds.load_s, batch);
    if (1 / cycle <= best.rate_per_s) continue;
    best = {.rate_per_s = 1 / cycle, .route = {}, .stages = {}};
    std::vector<PathStage> path;
    const auto& chain = answer.chain->stages;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const ShapePart& part = spec[static_cast<std::size_t>(chain[i].option)];
      path.push_back({&pair.stage(part, static_cast<std::int64_t>(i)),
                      {.first = i == 0, .last = i + 1 == chain.size()},
                      layer_counts(model_.arch, {first, first + chain[i].units})});
      first += chain[i].units;
      best.stages.push_back({part.type, part.degree, chain[i].units});
    }
    double first_token_s = std::numeric_limits<double>::infinity();
    at_best_chunk({one.prompt_tokens.mean, one.output_tokens.mean, 1, options_.step}, [&](const ServePoint& at) {
      const double seconds = price_path(*make_form({}, pair.cluster, model_.arch, at), path).first_token_s();
      first_token_s = std::min(first_token_s, seconds);
      return seconds;
    });
    const double steps = std::max(0.0, one.output_tokens.mean - 1);
    best.route = {.batch = batch, .latency_s = cycle * static_cast<double>(batch), .first_token_s = first_token_s};
    best.route.per_token_s = steps > 0 ? (best.route.latency_s - first_token_s) / steps : 0;
  }
  return best;
}

Configuration ShapeMaker::make(const ShapeSpec& spec) {
  Pair& pair = pair_of(spec);
  Configuration made{
      .name = shape_name(spec), .model = {}, .devices = shape_devices(spec), .rate_per_s = {}, .stages = {}};
  double greatest = 0;
  for (std::size_t w = 0; w < workload_.classes.size(); ++w) {
    Workload alone;
    alone.classes = {workload_.classes[w]};
    double rate = 0;
    // The largest power of two that fits and keeps the deadlines; both end for good where they end.
    int low = -1, high = static_cast<int>(std::floor(std::log2(static_cast<double>(options_.max_batch)))) + 1;
    while (high - low > 1) {
      const int middle = low < 0 ? 0 : (low + high + 1) / 2;
      const std::int64_t batch = std::int64_t{1} << middle;
      const Priced priced = price(pair, spec, w, batch);
      const double excess = priced.rate_per_s > 0 ? deadline_excess(alone, priced.route) : 0;
      if (priced.rate_per_s > 0 && excess <= 0) {
        low = middle;
        if (priced.rate_per_s >= rate) {
          rate = priced.rate_per_s;
          if (rate >= greatest) {
            greatest = rate;
            made.stages = priced.stages;
          }
        }
        continue;
      }
      high = middle;
      if (priced.rate_per_s <= 0 || batch > 1) continue;
      const auto found = nearest_.find(w);
      if (found == nearest_.end() || excess < found->second.excess)
        nearest_[w] = {excess, made.name,
                       fmt::format("{} to the first token and {} per token", human_seconds(priced.route.first_token_s),
                                   human_seconds(priced.route.per_token_s))};
    }
    made.rate_per_s.push_back(rate);
  }
  return made;
}

ShapeMaker::Lack ShapeMaker::why_unserved(std::size_t class_index) const {
  const RequestClass& one = workload_.classes[class_index];
  if (const auto nearest = nearest_.find(class_index); nearest != nearest_.end())
    return {fmt::format(
                "no configuration keeps the deadlines of class \"{}\": the closest, {}, takes {} for a single request",
                one.name, nearest->second.shape, nearest->second.text),
            fmt::format("make the deadlines at least {:.2f} times as long", 1 + nearest->second.excess)};
  return {fmt::format("no configuration holds {} for class \"{}\": {} of weights at {}, and the keys and values of one "
                      "request of {:g} tokens",
                      model_.name, one.name, human_bytes(weight_bytes_), name_of(weight_type_),
                      one.prompt_tokens.mean + one.output_tokens.mean),
          "offer types with more memory, or more devices"};
}

}  // namespace motley
